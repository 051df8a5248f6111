"""Clean-up of logical plans before their joins are ordered."""
