"""Clean-up of a logical plan before its joins are ordered.

Predicates go down to the tables, cross joins under equalities become joins with keys, outer joins whose padded rows
would not survive become inner ones, and what is constant or empty goes away. Producers leave all this to the engine:
`planner.sql` on purpose, others because they translate their statement as it is written.
"""

from __future__ import annotations

from pystachio.planner.logical import LogicalPlan, Query
from pystachio.planner.rewrite_predicates import place
from pystachio.planner.rewrite_shape import tidy

# Joins that became inner let predicates go further; three passes are as many as any plan was seen to need.
_MOST_PASSES = 3


def simplify(query: Query) -> Query:
    """The same rows from a simpler plan. Scalar sub-plans keep their positions."""
    return Query(simplify_plan(query.root), tuple(simplify_plan(scalar) for scalar in query.scalars))


def simplify_plan(plan: LogicalPlan) -> LogicalPlan:
    """The same rows in the same fields."""
    for _ in range(_MOST_PASSES):
        simpler = tidy(place(plan))
        if simpler == plan:
            break
        plan = simpler
    return plan
