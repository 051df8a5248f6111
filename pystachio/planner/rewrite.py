"""Clean-up of logical plans."""

from __future__ import annotations

from pystachio.planner.logical import Query


def simplify(query: Query) -> Query:
    """The same query."""
    return query
