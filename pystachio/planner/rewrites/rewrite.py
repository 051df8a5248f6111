"""Clean-up of a logical plan before its joins are ordered.

Predicates go down to the tables, cross joins under equalities become joins with keys, outer joins whose padded rows
would not survive become inner ones, and what is constant or empty goes away. Producers leave all this to the engine:
`planner.sql` on purpose, others because they translate their statement as it is written.
"""

from __future__ import annotations

from collections import Counter

from pystachio.operators.expressions import JoinKind
from pystachio.planner.logical import Join, LogicalPlan, Query
from pystachio.planner.rewrites.predicates import place
from pystachio.planner.rewrites.shape import tidy
from pystachio.planner.sharing import inputs_of

# A join that became another, or none, lets predicates go further.
_MOST_PASSES = 4


def simplify(query: Query) -> Query:
    """The same rows from a simpler plan. Scalar sub-plans keep their positions."""
    return Query(simplify_plan(query.root), tuple(simplify_plan(scalar) for scalar in query.scalars))


def simplify_plan(plan: LogicalPlan) -> LogicalPlan:
    """The same rows in the same fields."""
    joins = _joins(plan)
    for _ in range(_MOST_PASSES):
        before = joins
        plan = tidy(place(plan))
        joins = _joins(plan)
        if joins == before:
            break
    return plan


def _joins(plan: LogicalPlan) -> Counter[JoinKind]:
    found: Counter[JoinKind] = Counter()
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Join):
            found[node.kind] += 1
        waiting.extend(inputs_of(node))
    return found
