"""Substrait to logical plans."""
