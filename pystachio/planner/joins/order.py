"""The order of joins: groups of joins are taken apart and put together again more cheaply.

Inner joins may change places with each other. Semi, anti, mark and one-sided outer joins may happen anywhere among them
where the fields they read are at hand. A full outer join stays where it is; its sides are ordered inside.

Equalities are closed transitively: fields that must be equal form a class, and any member may serve as the key. Among
relations that are joined all members of a class are equal, because every join compares one member of each side for
every class that both sides have.
"""

from __future__ import annotations

from dataclasses import replace

from pystachio.operators.expressions import FieldReference
from pystachio.planner.cardinality import Estimator
from pystachio.planner.joins.components import JoinSpace
from pystachio.planner.joins.graph import collect, is_reorderable
from pystachio.planner.joins.search import best_order
from pystachio.planner.logical import (
    Aggregate,
    Filter,
    Join,
    Limit,
    LogicalPlan,
    Project,
    Query,
    Read,
    Sort,
    UnionAll,
    Values,
)


def reorder(query: Query, estimator: Estimator) -> Query:
    """The same query with its joins in a cheaper order; fields, their order and their names stay."""
    order = _Reordering(estimator).order
    return Query(order(query.root), tuple(order(scalar) for scalar in query.scalars))


class _Reordering:
    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator

    def order(self, plan: LogicalPlan) -> LogicalPlan:
        if is_reorderable(plan):
            return self._order_group(plan)
        match plan:
            case Read() | Values():
                return plan
            case Join():
                return replace(plan, left=self.order(plan.left), right=self.order(plan.right))
            case UnionAll():
                return replace(plan, inputs=tuple(self.order(part) for part in plan.inputs))
            case Filter() | Project() | Aggregate() | Sort() | Limit():
                return replace(plan, input=self.order(plan.input))

    def _order_group(self, plan: LogicalPlan) -> LogicalPlan:
        graph, output = collect(plan, self.order)
        space = JoinSpace(graph, self._estimator)
        ordered, numbers = space.plan(best_order(space).tree)
        if numbers == output:
            return ordered
        references = tuple(FieldReference(numbers.index(n), graph.fields[n].type) for n in output)
        return Project(ordered, references, plan.schema)
