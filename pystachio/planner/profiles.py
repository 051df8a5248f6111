"""What is estimated about a sub-plan's output: its rows and, per field, the spread of the values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, overload

from pystachio.operators.column import Bounds

_LEAST_ROWS = 1e-3
_MOST_ROWS = 1e30

_KEY_TOLERANCE = 0.95
"""A column with this share of distinct values in its relation counts as a key of it: distinct counts are estimates."""


_DEEPEST = 64
"""Profiles that wait for others that wait for others: more would come near the interpreter's limit of calls."""


class Seen(Protocol):
    """Values of an integer-like column in some rows of a sample."""

    @property
    def rows(self) -> int:
        """Those that are not NULL; at least as many as tell something."""
        ...

    @property
    def is_all(self) -> bool:
        """Whether the sample has every row of the table."""
        ...

    @property
    def range(self) -> Bounds:
        """The least and the greatest."""
        ...

    def share_in(self, others: Seen) -> float:
        """The share of these rows whose value is one of the others; above 0."""
        ...


def unseen() -> None:
    """Of a column whose values nobody has seen."""


class ColumnProfile(NamedTuple):
    """One field of an estimated output.

    `distinct`: expected distinct values among the output's rows. `domain`: distinct values before other predicates and
    joins took rows away; independent filters on two sides of a join keep the domain, so it is what equality is
    estimated with. `narrowing` is the share of the domain that predicates on this very column leave. `source` numbers
    the relation the column was read from, which had `source_rows` rows: several key columns of one source cannot have
    more distinct combinations than that. `nulls` is a fraction; `bounds` are those of the base column (integer-like
    columns only). `kept` tells the values in those rows of a sample that predicates on other columns leave,
    if there are any; `sampled` those of a sample in any case.
    """

    distinct: float
    domain: float
    source: int
    source_rows: float
    nulls: float = 0.0
    bounds: Bounds | None = None
    narrowing: float = 1.0
    kept: Callable[[], Seen | None] = unseen
    sampled: Callable[[], Seen | None] = unseen

    @property
    def is_key(self) -> bool:
        """Whether a value occurs about once in the relation the column comes from."""
        return self.domain >= _KEY_TOLERANCE * self.source_rows


class Profiles(Sequence[ColumnProfile]):
    """Profiles that are worked out when somebody asks for one: of most fields of a plan nobody does.

    `work_out` is asked for each position once at most, and may ask the profiles that these are made `of`.
    """

    __slots__ = ("_depth", "_known", "_work_out")

    def __init__(
        self, count: int, work_out: Callable[[int], ColumnProfile], of: Iterable[Sequence[ColumnProfile]] = ()
    ) -> None:
        self._known: list[ColumnProfile | None] = [None] * count
        self._work_out = work_out
        self._depth: int = 1 + max((each._depth for each in of if isinstance(each, Profiles)), default=0)
        if self._depth > _DEEPEST:
            self._known[:] = map(work_out, range(count))
            self._depth = 0

    def __len__(self) -> int:
        return len(self._known)

    @overload
    def __getitem__(self, index: int) -> ColumnProfile: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ColumnProfile, ...]: ...

    def __getitem__(self, index: int | slice) -> ColumnProfile | tuple[ColumnProfile, ...]:
        if isinstance(index, slice):
            return tuple(self[position] for position in range(*index.indices(len(self))))
        known = self._known[index]
        if known is None:
            known = self._known[index] = self._work_out(index if index >= 0 else index + len(self._known))
        return known

    def __iter__(self) -> Iterator[ColumnProfile]:
        return map(self.__getitem__, range(len(self._known)))


class Estimate(NamedTuple):
    """Expected `rows` (`plausible`: above 0 and finite) and a profile per field."""

    rows: float
    columns: Sequence[ColumnProfile]

    def with_rows(self, rows: float) -> Estimate:
        """The same fields when a predicate or join that is independent of them leaves `rows` rows."""
        rows = plausible(rows)
        before, columns = self
        if rows >= before:
            return Estimate(rows, columns)

        def shrunk(index: int) -> ColumnProfile:
            column = columns[index]
            return column._replace(distinct=shrink(column.distinct, before, rows))

        return Estimate(rows, Profiles(len(columns), shrunk, (columns,)))


def side_by_side(left: Sequence[ColumnProfile], right: Sequence[ColumnProfile]) -> Profiles:
    """The fields of both."""
    width = len(left)
    return Profiles(
        width + len(right), lambda index: left[index] if index < width else right[index - width], (left, right)
    )


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
    domain = math.prod(pair_domain(a, b) for a, b in zip(left, right, strict=True))
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


def pair_domain(left: ColumnProfile, right: ColumnProfile) -> float:
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
