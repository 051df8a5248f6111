"""Parquet files written again in a layout that is quick to read: `rewrite.rewrite`."""
