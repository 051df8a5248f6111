"""Parquet files: footers, pruning, and column chunks to columns. Nothing in a file is believed unchecked."""
