"""Joins of two inputs by keys, one side stored and one streaming."""
