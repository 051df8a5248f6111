"""Scenarios that `pystachio-node simulate NAME` knows by name: each module has a function `scenario`."""
