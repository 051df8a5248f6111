"""Rows, runtime filters and parts of a plan on their way between nodes."""
