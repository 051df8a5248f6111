"""Where a join's build side may take rows out of its probe side, and through which operators that travels down.

A runtime filter drops rows whose value of one field is not among a build side's keys (NULL never is). Whoever asks for
it is a join above that drops exactly these rows, so below it the filter may be applied anywhere it removes no other row
of the join's result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from typing import Literal

from pystachio.operators.expressions import FieldReference, JoinKind
from pystachio.planner.cardinality import Estimator
from pystachio.planner.logical import Aggregate, Join, Project
from pystachio.planner.profiles import join_domain

Side = Literal["left", "right"]

_MOST_PASSING = 0.8
"""A filter that is expected to let more of the rows through costs more than it saves."""


@dataclass(frozen=True, slots=True)
class WantedFilter:
    """Slot `slot` will hold the values that the plan's field at position `field` must have; `share` is the expected
    share of the field's values that pass."""

    slot: int
    field: int
    share: float = 1.0


def filtering_keys(join: Join, build: Side, estimator: Estimator, share: float = 1.0) -> dict[int, float]:
    """The join's keys, by position, for which the build side may and should filter the probe side, and the share of the
    keys that will pass. Filters from above leave the `share` of the build side's rows."""
    if not _drops_unmatched_probe_rows(join.kind, build) or join.null_aware:
        return {}
    keys = [key for key in range(len(join.left_keys)) if _may_filter(join, key)]
    passing = {key: _passing(join, key, build, estimator, share) for key in keys}
    return {key: passes for key, passes in passing.items() if passes <= _MOST_PASSING}


def _drops_unmatched_probe_rows(kind: JoinKind, build: Side) -> bool:
    match kind:
        case JoinKind.INNER | JoinKind.SEMI:
            return True
        case JoinKind.ANTI:
            return build == "left"
        case JoinKind.LEFT:
            return build == "left"
        case JoinKind.RIGHT:
            return build == "right"
        case JoinKind.FULL | JoinKind.MARK:
            return False


def _may_filter(join: Join, key: int) -> bool:
    """Where NULLs are equal a NULL of the probe side may match, unless one side has none."""
    if not join.null_equal[key]:
        return True
    left, right = join.left.schema[join.left_keys[key]], join.right.schema[join.right_keys[key]]
    return not (left.nullable and right.nullable)


def _passing(join: Join, key: int, build: Side, estimator: Estimator, share: float) -> float:
    """The share of the key's values that the build side has."""
    left = estimator.estimate(join.left).columns[join.left_keys[key]]
    right = estimator.estimate(join.right).columns[join.right_keys[key]]
    present = left.distinct if build == "left" else right.distinct
    rows = estimator.rows(join.left if build == "left" else join.right)
    return min(present, share * rows) / join_domain([left], [right])


def share_left(filters: Iterable[WantedFilter], filtered: Set[int]) -> float:
    """The expected share of a plan's rows that are left by those of the filters by which it is `filtered` (slots): each
    counts once, as if they knew nothing of each other."""
    return math.prod({wanted.slot: wanted.share for wanted in filters if wanted.slot in filtered}.values())


def filtered_by_join(kind: JoinKind, left: frozenset[int], right: frozenset[int]) -> frozenset[int]:
    """Slots of the filters that take rows out of a join's output, of those that take them out of its inputs: an outer
    join puts out the rows of the kept side in any case."""
    match kind:
        case JoinKind.INNER | JoinKind.SEMI:
            return left | right
        case JoinKind.LEFT | JoinKind.ANTI | JoinKind.MARK:
            return left
        case JoinKind.RIGHT:
            return right
        case JoinKind.FULL:
            return frozenset()


def through_project(project: Project, filters: Iterable[WantedFilter]) -> tuple[WantedFilter, ...]:
    """The filters on fields that the projection only passes on."""
    traced = []
    for wanted in filters:
        expression = project.expressions[wanted.field]
        if isinstance(expression, FieldReference):
            traced.append(replace(wanted, field=expression.index))
    return tuple(traced)


def through_aggregate(aggregate: Aggregate, filters: Iterable[WantedFilter]) -> tuple[WantedFilter, ...]:
    """The filters on group keys: they take out whole groups. A key that a grouping set leaves out is NULL there, in
    groups made of rows that the filter would have to keep."""
    return tuple(
        replace(wanted, field=aggregate.keys[wanted.field])
        for wanted in filters
        if wanted.field < len(aggregate.keys) and all(wanted.field in chosen for chosen in aggregate.grouping_sets)
    )


def through_join(
    join: Join, filters: Iterable[WantedFilter]
) -> tuple[tuple[WantedFilter, ...], tuple[WantedFilter, ...]]:
    """The filters for the left and for the right input.

    A field of either side is filtered there: what it loses could only have made rows with a value that the filter
    drops, or (in an outer join) rows with a NULL, dropped just the same. A key filters its partner for the same reason.
    Not so the right side of a MARK or a NOT IN: a NULL there changes the answer for other values.
    """
    width = len(join.left.schema)
    right_counts = join.kind is not JoinKind.MARK and not join.null_aware
    left: list[WantedFilter] = []
    right: list[WantedFilter] = []
    for wanted in filters:
        if wanted.field < width:
            left.append(wanted)
            if right_counts:
                partners = zip(join.left_keys, join.right_keys, strict=True)
                right += [replace(wanted, field=r) for key, r in partners if key == wanted.field]
        elif join.kind is not JoinKind.MARK:
            field = wanted.field - width
            right.append(replace(wanted, field=field))
            partners = zip(join.left_keys, join.right_keys, strict=True)
            left += [replace(wanted, field=key) for key, r in partners if r == field]
    return tuple(left), tuple(right)
