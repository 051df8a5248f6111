"""Aggregates: partial batches where rows are made, merged into groups in one place."""
