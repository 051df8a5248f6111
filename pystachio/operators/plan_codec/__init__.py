"""Physical plans as bytes and back, with everything checked that came as bytes."""
