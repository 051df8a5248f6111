"""Scans of tables, and what is folded into them: statistics instead of rows, the first rows of an order."""
