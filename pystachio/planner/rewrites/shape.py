"""Plans with fewer nodes: inputs known to be empty, projections over projections, limits over projections."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa

from pystachio.operators.expressions import Cast, Expression, FieldReference, JoinKind, Literal, walk
from pystachio.planner.logical import (
    Aggregate,
    Filter,
    Join,
    Limit,
    LogicalPlan,
    Project,
    Read,
    Sort,
    UnionAll,
    Values,
)
from pystachio.planner.rewrites.fold import FALSE, fold
from pystachio.planner.rewrites.predicates import substitute
from pystachio.planner.rewrites.sums import shared_sums


def tidy(plan: LogicalPlan) -> LogicalPlan:
    """The same rows from a plan without superfluous nodes, bottom-up."""
    match plan:
        case Read() | Values():
            return plan
        case Filter():
            return _over(replace(plan, input=tidy(plan.input)))
        case Project():
            return _project(tidy(plan.input), plan)
        case Sort():
            return _over(replace(plan, input=tidy(plan.input)))
        case Aggregate():
            tidied = replace(plan, input=tidy(plan.input))
            # Without keys there is a row even for no input, as there is in every grouping set without keys.
            if is_empty(tidied.input) and plan.keys and not plan.grouping_sets:
                return _empty(plan)
            return shared_sums(tidied)
        case Limit():
            return _limit(tidy(plan.input), plan)
        case UnionAll():
            return _union(plan)
        case Join():
            return _join(replace(plan, left=tidy(plan.left), right=tidy(plan.right)))


def is_empty(plan: LogicalPlan) -> bool:
    """Whether the plan puts out no rows for sure."""
    return isinstance(plan, Values) and not plan.rows


def _empty(plan: LogicalPlan) -> Values:
    return Values((), plan.schema)


def _over(plan: Filter | Sort) -> LogicalPlan:
    return _empty(plan) if is_empty(plan.input) else plan


def _project(below: LogicalPlan, plan: Project) -> LogicalPlan:
    expressions = tuple(fold(expression) for expression in plan.expressions)
    if is_empty(below):
        return _empty(plan)
    merged = _merged(expressions, below.expressions) if isinstance(below, Project) else None
    if isinstance(below, Project) and merged is not None:
        return _project(below.input, Project(below.input, merged, plan.schema))
    if isinstance(below, Project) and any(isinstance(part, Literal) for part in below.expressions):
        expressions = tuple(fold(substitute(expression, _constants_in(below))) for expression in expressions)
    positions = [e.index if isinstance(e, FieldReference) else -1 for e in expressions]
    if positions == list(range(len(below.schema))):
        return below
    if isinstance(below, Read) and -1 not in positions and len(set(positions)) == len(positions):
        return _narrowed(below, positions) or Project(below, expressions, plan.schema)
    return Project(below, expressions, plan.schema)


def _narrowed(read: Read, positions: list[int]) -> Read | None:
    """A read of just these columns, unless its predicate needs others."""
    if read.predicate is not None:
        return None
    return Read(read.table, tuple(read.columns[p] for p in positions), tuple(read.schema[p] for p in positions))


def _constants_in(below: Project) -> tuple[Expression, ...]:
    """What a projection above may read instead of its fields."""
    return tuple(
        part if isinstance(part, Literal) else FieldReference(position, part.type)
        for position, part in enumerate(below.expressions)
    )


def _merged(outer: tuple[Expression, ...], inner: tuple[Expression, ...]) -> tuple[Expression, ...] | None:
    """The outer expressions over what the inner ones read; None where work would be done twice."""
    uses = Counter(node.index for expression in outer for node in walk(expression) if isinstance(node, FieldReference))
    repeated = {
        inner[p] for p, count in uses.items() if count > 1 and not isinstance(inner[p], FieldReference | Literal)
    }
    # Comparisons with constants may need no cast.
    if not all(isinstance(part, Cast) and isinstance(part.operand, FieldReference) for part in repeated):
        return None
    merged = tuple(fold(substitute(expression, inner)) for expression in outer)
    if repeated:
        left = Counter(node for expression in merged for node in walk(expression) if node in repeated)
        if any(count > 1 for count in left.values()):
            return None
    return merged


def _limit(below: LogicalPlan, plan: Limit) -> LogicalPlan:
    if is_empty(below) or plan.count == 0:
        return _empty(plan)
    if isinstance(below, Project):
        # So that a limit meets the sort below the projection.
        return replace(below, input=_limit(below.input, replace(plan, input=below.input)))
    if isinstance(below, Limit):
        return _limit(below.input, _nested(plan, below))
    if plan.offset == 0 and plan.count is None:
        return below
    return replace(plan, input=below)


def _nested(outer: Limit, inner: Limit) -> Limit:
    left = None if inner.count is None else max(0, inner.count - outer.offset)
    counts = [count for count in (left, outer.count) if count is not None]
    return Limit(inner.input, inner.offset + outer.offset, min(counts, default=None))


def _union(plan: UnionAll) -> LogicalPlan:
    parts = [part for part in map(tidy, plan.inputs) if not is_empty(part)]
    if not parts:
        return _empty(plan)
    return parts[0] if len(parts) == 1 else replace(plan, inputs=tuple(parts))


def _join(plan: Join) -> LogicalPlan:
    """A join whose side is empty, or whose condition is never true (a false residual)."""
    never = plan.residual == FALSE
    no_left, no_right = is_empty(plan.left), is_empty(plan.right)
    if not (never or no_left or no_right):
        return plan
    match plan.kind:
        case JoinKind.INNER | JoinKind.SEMI:
            return _empty(plan)
        case JoinKind.LEFT:
            return _empty(plan) if no_left else _padded(plan, plan.left, at=0)
        case JoinKind.RIGHT:
            return _empty(plan) if no_right else _padded(plan, plan.right, at=len(plan.left.schema))
        case JoinKind.FULL:
            if no_left and no_right:
                return _empty(plan)
            if no_right:
                return _padded(plan, plan.left, at=0)
            return _padded(plan, plan.right, at=len(plan.left.schema)) if no_left else plan
        case JoinKind.ANTI:
            return _empty(plan) if no_left else plan.left
        case JoinKind.MARK:
            if no_left:
                return _empty(plan)
            kept = tuple(FieldReference(p, f.type) for p, f in enumerate(plan.left.schema))
            return Project(plan.left, (*kept, Literal(False, pa.bool_())), plan.schema)


def _padded(plan: Join, kept: LogicalPlan, at: int) -> LogicalPlan:
    """The rows of one side with NULLs for the other's fields; `at` is where the side's fields begin."""
    end = at + len(kept.schema)
    columns = tuple(
        FieldReference(p - at, f.type) if at <= p < end else Literal(None, f.type) for p, f in enumerate(plan.schema)
    )
    return Project(kept, columns, plan.schema)
