"""How many rows a join puts out, estimated from the profiles of its keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

from pystachio.operators.column import Bounds
from pystachio.operators.expressions import Call, Expression, FieldReference, JoinKind, conjuncts
from pystachio.planner.profiles import (
    ColumnProfile,
    Estimate,
    Profiles,
    Seen,
    groups,
    join_domain,
    pair_domain,
    plausible,
    side_by_side,
)
from pystachio.planner.selectivity import selectivity

_LEAST_LONELY = 0.1
"""Of the rows of an anti join: whoever asks for rows without a partner expects some, while counts of distinct values
that are a little off promise none at all, and none make every order of joins behind it look good."""

_MOST_CONCENTRATED = 1e9
_MOST_OF_RANGE = 0.5
"""A predicate that leaves values in so much of a column's range does so by chance."""


def join_estimate(
    left: Estimate,
    right: Estimate,
    kind: JoinKind,
    left_keys: Sequence[int],
    right_keys: Sequence[int],
    residual: Expression | None = None,
) -> Estimate:
    """The output of a join of two estimated inputs."""
    left_columns = [left.columns[key] for key in left_keys]
    right_columns = [right.columns[key] for key in right_keys]
    domain = join_domain(left_columns, right_columns) if left_keys else 1.0
    share = 1.0 if residual is None else selectivity(residual, side_by_side(left.columns, right.columns))
    others = _excludes_equals(residual, len(left.columns))
    concentration = _most_telling(
        [_concentration(a, left.rows, b, right.rows) for a, b in zip(left_columns, right_columns, strict=True)]
    )
    pairs = _matching_pairs(left, right, left_columns, right_columns, domain) * concentration
    pairs = min(pairs, left.rows * right.rows) * share
    lonely_left = 1.0 - _matched(left_columns, right_columns, right.rows, domain / concentration, share, others)
    lonely_right = 1.0 - _matched(right_columns, left_columns, left.rows, domain / concentration, share, others)
    match kind:
        case JoinKind.INNER:
            rows = pairs
        case JoinKind.LEFT:
            rows = pairs + left.rows * lonely_left
        case JoinKind.RIGHT:
            rows = pairs + right.rows * lonely_right
        case JoinKind.FULL:
            rows = pairs + left.rows * lonely_left + right.rows * lonely_right
        case JoinKind.SEMI:
            kept = left.with_rows(left.rows * (1.0 - lonely_left))
            return _joined_keys(kept, left_keys, right_columns, domain, has_one_key=len(left_keys) == 1)
        case JoinKind.ANTI:
            return left.with_rows(left.rows * max(_LEAST_LONELY, lonely_left))
        case JoinKind.MARK:
            mark = ColumnProfile(2.0, 2.0, -1, max(2.0, left.rows))
            return Estimate(left.rows, side_by_side(left.columns, (mark,)))
        case _:
            assert_never(kind)
    lefts, rights = left.with_rows(rows).columns, right.with_rows(rows).columns
    if kind in (JoinKind.RIGHT, JoinKind.FULL):
        lefts = _padded(lefts, right.rows * lonely_right / plausible(rows))
    if kind in (JoinKind.LEFT, JoinKind.FULL):
        rights = _padded(rights, left.rows * lonely_left / plausible(rows))
    both = Estimate(plausible(rows), side_by_side(lefts, rights))
    if kind is not JoinKind.INNER:
        return both
    keys = (*left_keys, *(len(left.columns) + key for key in right_keys))
    return _joined_keys(both, keys, (*right_columns, *left_columns), domain, has_one_key=len(left_keys) == 1)


def _padded(columns: Sequence[ColumnProfile], share: float) -> Profiles:
    """The columns when this share of all rows has NULLs instead of them."""

    def with_nulls(index: int) -> ColumnProfile:
        column = columns[index]
        return column._replace(nulls=1.0 - (1.0 - column.nulls) * (1.0 - share))

    return Profiles(len(columns), with_nulls, (columns,))


def _matching_pairs(
    left: Estimate,
    right: Estimate,
    left_keys: Sequence[ColumnProfile],
    right_keys: Sequence[ColumnProfile],
    domain: float,
) -> float:
    """Expected pairs of rows that agree on the keys."""
    pairs = left.rows * right.rows / domain
    for a, b in zip(left_keys, right_keys, strict=True):
        pairs *= (1.0 - a.nulls) * (1.0 - b.nulls) * _overlap(a, b)
    return pairs


def _overlap(left: ColumnProfile, right: ColumnProfile) -> float:
    """The share of pairs left when the ranges of two key columns only partly overlap.

    A key's values beyond the other side's range match nothing, and neither do the other side's values beyond the key's:
    only the latter are lost pairs, because the domain counts all values of the key.
    """
    if left.bounds is None or right.bounds is None or left.is_key == right.is_key:
        return 1.0
    key, other = (left.bounds, right.bounds) if left.is_key else (right.bounds, left.bounds)
    width = other[1] - other[0] + 1
    common = min(key[1], other[1]) - max(key[0], other[0]) + 1
    return max(common, 0) / width


def _concentration(left: ColumnProfile, left_rows: float, right: ColumnProfile, right_rows: float) -> float:
    """How many times the pairs there are that independent values make, as far as samples tell.

    Where all values are known that predicates leave of a key, the other side's sample says how frequent just these are:
    what people ask for is seldom as rare as the average. Otherwise their range may tell: a year's days are a small
    share of the days of a calendar, but a large one of those that a shop has been open for.
    """
    if not left.is_key:
        left, left_rows, right, right_rows = right, right_rows, left, left_rows
    if not left.is_key or left.bounds is None or right.bounds is None:
        return 1.0
    # From here on the left one is the key.
    independent = left_rows * right_rows / pair_domain(left, right) * _overlap(left, right)
    if independent <= 0:
        return 1.0
    ours = left.kept()
    if ours is not None and ours.is_all:
        theirs = right.sampled()
        if theirs is None:
            return 1.0
        return right_rows * theirs.share_in(ours) * (left_rows / ours.rows) / independent
    our_range, their_range = _part(left.bounds, ours), _part(right.bounds, right.kept())
    if ours is None and left_rows < left.source_rows:
        # Nobody has seen what is left of the keys: it is taken to be where the other side has rows.
        our_range = _used(left.bounds, right.bounds)
    if our_range is None and their_range is None:
        return 1.0
    our_range, their_range = our_range or left.bounds, their_range or right.bounds
    common = max(1, min(our_range[1], their_range[1]) - max(our_range[0], their_range[0]) + 1)
    values = left.domain / _width(left.bounds) * _width(our_range)
    return right_rows * common / _width(their_range) * left_rows / max(1.0, values) / independent


def _most_telling(concentrations: Sequence[float]) -> float:
    """The one that is furthest from 1: several keys may say the same thing several times."""
    bounded = [min(_MOST_CONCENTRATED, max(1.0 / _MOST_CONCENTRATED, each)) for each in concentrations]
    return max(bounded, key=lambda each: abs(math.log(each)), default=1.0)


def _part(bounds: Bounds, seen: Seen | None) -> Bounds | None:
    """The range that was seen, where it is a part of the bounds only."""
    if seen is None or _width(seen.range) > _MOST_OF_RANGE * _width(bounds):
        return None
    return seen.range


def _used(bounds: Bounds, by: Bounds) -> Bounds | None:
    """The range of the values that occur on the other side, where it is a part of the bounds only."""
    common = max(bounds[0], by[0]), min(bounds[1], by[1])
    return common if common[0] <= common[1] and _width(common) <= _MOST_OF_RANGE * _width(bounds) else None


def _width(bounds: Bounds) -> int:
    return bounds[1] - bounds[0] + 1


def _matched(
    outer: Sequence[ColumnProfile],
    inner: Sequence[ColumnProfile],
    inner_rows: float,
    domain: float,
    share: float,
    others: bool,
) -> float:
    """The probability that a row of the outer side has a partner: its key value is present, and one of the rows with
    that value passes the residual condition of selectivity `share`.

    `others`: the condition asks for a partner that differs. Then a present value is not enough; the number of partners
    is taken as Poisson distributed.
    """
    if not outer:
        return 1.0 if inner_rows >= 1 else inner_rows
    valid = math.prod(1.0 - column.nulls for column in outer)
    if others:
        return valid * -math.expm1(-share * inner_rows / domain)
    present_values = max(1e-9, min(groups(inner, inner_rows), domain, inner_rows))
    present = valid * present_values / domain
    if share >= 1.0:
        return min(1.0, present)
    return min(1.0, present * -math.expm1(max(1.0, inner_rows / present_values) * math.log1p(-share)))


def _excludes_equals(residual: Expression | None, left_width: int) -> bool:
    """Whether a join condition wants a field of one side to differ from a field of the other."""
    for part in conjuncts(residual):
        match part:
            case Call(function="not_equal", arguments=(FieldReference(index=a), FieldReference(index=b))):
                if (a < left_width) != (b < left_width):
                    return True
    return False


def _joined_keys(
    joined: Estimate, keys: Sequence[int], partners: Sequence[ColumnProfile], domain: float, *, has_one_key: bool
) -> Estimate:
    """Key columns after an equality join: only values present on both sides are left."""
    rows, columns = joined
    of_key: dict[int, list[ColumnProfile]] = {}
    for key, partner in zip(keys, partners, strict=True):
        of_key.setdefault(key, []).append(partner)

    def work_out(index: int) -> ColumnProfile:
        profile = columns[index]
        for partner in of_key.get(index, ()):
            distinct = min(profile.distinct, partner.distinct, rows)
            if has_one_key:
                distinct = min(distinct, profile.distinct * partner.distinct / domain)
            profile = profile._replace(distinct=max(1.0, distinct), nulls=0.0)
        return profile

    return Estimate(rows, Profiles(len(columns), work_out, (columns,)))
