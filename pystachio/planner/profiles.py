"""What is estimated about a sub-plan's output: its rows and, per field, the spread of the values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pystachio.operators.column import Bounds

_LEAST_ROWS = 1e-3
_MOST_ROWS = 1e30

_KEY_TOLERANCE = 0.95
"""A column with this share of distinct values in its relation counts as a key of it: distinct counts are estimates."""


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """One field of an estimated output.

    `distinct`: expected distinct values among the output's rows. `domain`: distinct values before other predicates and
    joins took rows away; independent filters on two sides of a join keep the domain, so it is what equality is
    estimated with. `narrowing` is the share of the domain that predicates on this very column leave. `source` numbers
    the relation the column was read from, which had `source_rows` rows: several key columns of one source cannot have
    more distinct combinations than that. `nulls` is a fraction; `bounds` are those of the base column (integer-like
    columns only).
    """

    distinct: float
    domain: float
    source: int
    source_rows: float
    nulls: float = 0.0
    bounds: Bounds | None = None
    narrowing: float = 1.0

    @property
    def is_key(self) -> bool:
        """Whether a value occurs about once in the relation the column comes from."""
        return self.domain >= _KEY_TOLERANCE * self.source_rows


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected `rows` (`plausible`: above 0 and finite) and a profile per field."""

    rows: float
    columns: tuple[ColumnProfile, ...]

    def with_rows(self, rows: float) -> Estimate:
        """The same fields when a predicate or join that is independent of them leaves `rows` rows."""
        rows = plausible(rows)
        if rows >= self.rows:
            return replace(self, rows=rows)
        kept = tuple(replace(c, distinct=shrink(c.distinct, self.rows, rows)) for c in self.columns)
        return Estimate(rows, kept)


def plausible(rows: float) -> float:
    """A number of rows that products and quotients of estimates stay finite with."""
    return min(_MOST_ROWS, max(_LEAST_ROWS, rows))


def shrink(distinct: float, rows: float, kept: float) -> float:
    """Distinct values expected in `kept` of `rows` rows that hold `distinct` equally frequent ones (Cardenas 1975)."""
    if kept >= rows or distinct <= 1.0:
        return min(distinct, max(kept, 1.0))
    share = kept / rows
    if share >= 1.0 - 1e-12:
        return distinct
    return max(1.0, -distinct * math.expm1(rows / distinct * math.log1p(-share)))


def groups(columns: Sequence[ColumnProfile], rows: float) -> float:
    """Distinct combinations of the columns among `rows` rows."""
    return max(1.0, min(rows, math.prod(c.distinct + (c.nulls > 0) for c in columns)))


def join_domain(left: Sequence[ColumnProfile], right: Sequence[ColumnProfile]) -> float:
    """The number of key values among which the rows of both sides spread: a row matches 1/domain of the other side.

    Several keys: the domain is the product, unless keys of a side depend on each other. They do where they come from
    one relation that has fewer rows than they have combinations; such a side bounds the domain only from above. So the
    side whose keys are independent decides, and of two dependent ones the smaller; but a side of which one column
    alone is a key says nothing about the other columns.
    """
    domain = math.prod(_pair_domain(a, b) for a, b in zip(left, right, strict=True))
    if len(left) > 1:
        (ours, we_depend), (theirs, they_depend) = _combinations(left), _combinations(right)
        if not (we_depend and they_depend):
            domain = min(domain, max(ours, theirs)) if we_depend or they_depend else domain
        elif _has_key(left) != _has_key(right):
            domain = min(domain, theirs if _has_key(left) else ours)
        else:
            domain = min(domain, ours, theirs)
    return max(1.0, domain)


def _has_key(columns: Sequence[ColumnProfile]) -> bool:
    return any(column.is_key for column in columns)


def _pair_domain(left: ColumnProfile, right: ColumnProfile) -> float:
    """The larger domain contains the smaller one; but a key's count is exact where the other side's is a guess.

    Predicates on the key columns themselves shrink the common domain only where both sides have one: the planner
    derives such predicates from each other, so the smaller effect is inside the larger.
    """
    if left.is_key != right.is_key:
        domain = left.domain if left.is_key else right.domain
    else:
        domain = min(left.domain, right.domain) if left.is_key else max(left.domain, right.domain)
    return domain * max(left.narrowing, right.narrowing)


def _combinations(columns: Sequence[ColumnProfile]) -> tuple[float, bool]:
    """At most how many combinations several columns have, and whether there must be fewer than their product."""
    by_source: dict[int, float] = {}
    limits: dict[int, float] = {}
    for column in columns:
        by_source[column.source] = by_source.get(column.source, 1.0) * column.domain
        limits[column.source] = column.source_rows
    total = math.prod(min(product, limits[source]) for source, product in by_source.items())
    return total, any(product > limits[source] for source, product in by_source.items())
