"""What the parts of the Substrait reader share while they read one plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from substrait import algebra_pb2

from pystachio.errors import Unsupported
from pystachio.operators.batch import Schema
from pystachio.operators.expressions import Literal
from pystachio.planner.logical import LogicalPlan
from pystachio.planner.substrait.datafusion_functions import ConstantCall

# Everything that walks plans and expressions recurses, and Python allows about a thousand frames.
MOST_RELATIONS_DEEP: Final = 150
MOST_EXPRESSIONS_DEEP: Final = 100
# A subquery restarts the count of expressions, so nesting counts again at a higher price.
SUBQUERY_DEPTH: Final = 10
# References let a small plan stand for an exponentially large one.
MOST_RELATIONS: Final = 20_000


@dataclass(slots=True)
class Reading:
    """One plan being read.

    `null_aware[i]` is about the i-th join in pre-order (a join before its inputs, inputs before the subqueries in
    expressions): whether it stands for [NOT] IN, whose NULLs count; None when the producer cannot tell.

    `written_decimals`, `moment` and `constant_call`: see `substrait.read_plan`.
    """

    tables: Mapping[str, Schema]
    functions: Mapping[int, str]
    parameters: Mapping[int, Literal]
    null_aware: Sequence[bool | None]
    is_datafusion: bool
    shared: Sequence[algebra_pb2.Rel]
    read_relation: Callable[[algebra_pb2.Rel, Reading, int], LogicalPlan]
    written_decimals: Collection[pa.DataType] | None = None
    moment: int | None = None
    constant_call: ConstantCall | None = None
    scalars: list[LogicalPlan] = field(default_factory=list)
    joins: int = 0
    relations: int = 0

    def enter_join(self) -> bool | None:
        """Count a join; its entry of `null_aware`, False beyond the end."""
        number, self.joins = self.joins, self.joins + 1
        return self.null_aware[number] if number < len(self.null_aware) else False

    def enter_relation(self, depth: int) -> None:
        """Count a relation; Unsupported when the plan is too deep or too large."""
        self.relations += 1
        if depth > MOST_RELATIONS_DEEP:
            raise Unsupported(f"a plan nested more than {MOST_RELATIONS_DEEP} relations deep")
        if self.relations > MOST_RELATIONS:
            raise Unsupported(f"a plan of more than {MOST_RELATIONS} relations")

    def scalar(self, plan: LogicalPlan) -> int:
        """The index of a scalar sub-plan; equal ones share it."""
        for index, known in enumerate(self.scalars):
            if known == plan:
                return index
        self.scalars.append(plan)
        return len(self.scalars) - 1
