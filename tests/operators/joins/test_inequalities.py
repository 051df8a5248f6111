"""Joins by inequalities, whose build side stands in order, against nested loops in plain Python."""

from __future__ import annotations

import asyncio
import math
import operator
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest
import torch

from pystachio.operators.expressions import Call, Expression, FieldReference, JoinKind, conjunction
from pystachio.operators.expressions import Literal as Constant
from pystachio.operators.joins.inequalities import Inequalities, OrderedIndex, index_in_order
from pystachio.operators.joins.join import Join
from pystachio.operators.joins.places import PairCondition, Place, Source
from pystachio.operators.kernels.pairs import Matches
from tests.operators.joins.test_join import expected, table

Row = tuple[Any, ...]
Side = Literal["left", "right"]

COMPARE = {"lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge}
MIRRORED = {"lt": "gt", "lte": "gte", "gt": "lt", "gte": "lte"}
NOON = datetime(2026, 3, 1, 12)


def nan_last(value: Any) -> tuple[bool, float]:
    """Sorts as SQL does: NaN equals itself and is the greatest."""
    return (True, 0.0) if math.isnan(value) else (False, value)


VALUES: dict[str, tuple[pa.DataType, Callable[[random.Random], Any], Callable[[Any], Any]]] = {
    "int": (pa.int64(), lambda r: r.randrange(-30, 90), lambda v: v),
    "extreme int": (pa.int64(), lambda r: r.choice([-(2**63), -5, 0, 7, 2**40, 2**63 - 1]), lambda v: v),
    "byte": (pa.int8(), lambda r: r.randrange(-128, 128), lambda v: v),
    "float": (
        pa.float64(),
        lambda r: r.choice([0.0, -0.0, 1.5, -2.25, 1e300, -math.inf, math.inf, math.nan]),
        nan_last,
    ),
    "single": (pa.float32(), lambda r: r.choice([0.0, -0.0, 1.5, -2.25, math.nan, math.inf]), nan_last),
    "decimal": (pa.decimal128(12, 2), lambda r: Decimal(r.randrange(-400, 400)) / 100, lambda v: v),
    "wide decimal": (pa.decimal128(38, 2), lambda r: r.choice([Decimal(10) ** 30, Decimal(-1)]), lambda v: v),
    "time": (pa.timestamp("us"), lambda r: NOON + timedelta(minutes=r.randrange(-90, 90)), lambda v: v),
    "text": (pa.string(), lambda r: r.choice(["", "a", "ab", "ä", "z"]), lambda v: v.encode()),
}


def check(harness: Any, seed: int, kind: JoinKind, build: Side, **options: Any) -> None:
    """Both sides have two columns of each of two types; any two or three comparisons of the sides are asked for."""
    r = random.Random(seed)
    kinds = options.get("kinds") or [r.choice(list(VALUES)), r.choice(list(VALUES))]
    makers = [VALUES[name] for name in (kinds[0], kinds[0], kinds[1], kinds[1])]
    sizes = options.get("sizes") or r.choice([(0, 5), (5, 0), (1, 1), (30, 12), (12, 40), (60, 90), (90, 150)])
    nulls = r.choice([0.0, 0.0, 0.2, 1.0])

    def rows(count: int) -> list[Row]:
        return [tuple(None if r.random() < nulls else make(r) for _, make, _ in makers) for _ in range(count)]

    left, right = rows(sizes[0]), rows(sizes[1])
    types = [type_ for type_, _, _ in makers]
    parts: list[Expression] = []
    tests: list[Callable[[Row, Row], bool | None]] = []
    for _ in range(r.choice([1, 1, 2, 2, 3])):
        place = r.randrange(2) * 2
        mine, theirs = place + r.randrange(2), place + r.randrange(2)
        function = r.choice(list(COMPARE))
        first, second = FieldReference(mine, types[mine]), FieldReference(4 + theirs, types[theirs])
        if r.random() < 0.5:
            parts.append(Call(function, (first, second), pa.bool_()))
        else:
            parts.append(Call(MIRRORED[function], (second, first), pa.bool_()))
        tests.append(compared(function, mine, theirs, makers[place][2]))
    output = tuple(range(4)) if kind in (JoinKind.SEMI, JoinKind.ANTI) else tuple(range(8))
    if kind is JoinKind.MARK:
        output = (*range(4), 8)
    join = Join(
        harness.source(table(left, types, "abcd"), r.choice([1, 7, 1000])),
        harness.source(table(right, types, "wxyz"), r.choice([1, 7, 1000])),
        kind,
        (),
        (),
        (),
        conjunction(tuple(parts)),
        False,
        build,
        output,
        (),
    )
    got = harness.rows(join, batch_rows=r.choice([1, 5, 1000]))

    def all_hold(a: Row, b: Row) -> bool:
        return all(test(a, b) is True for test in tests)

    want = expected(left, right, kind, [], [], all_hold, False, 4)
    assert Counter(map(shown, got)) == Counter({shown(row): count for row, count in merged(want).items()})
    assert harness.memory.held == 0


def compared(function: str, mine: int, theirs: int, key: Callable[[Any], Any]) -> Callable[[Row, Row], bool | None]:
    def test(a: Row, b: Row) -> bool | None:
        return None if a[mine] is None or b[theirs] is None else bool(COMPARE[function](key(a[mine]), key(b[theirs])))

    return test


def shown(row: Row) -> Row:
    """NaN and -0.0 made equal to themselves and 0.0."""
    return tuple(("NaN" if math.isnan(value) else value + 0.0) if isinstance(value, float) else value for value in row)


def merged(rows: Counter[Row]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for row, count in rows.items():
        found[shown(row)] += count
    return found


@pytest.mark.parametrize("build", ["left", "right"])
@pytest.mark.parametrize("kind", list(JoinKind))
@pytest.mark.parametrize("seed", range(40))
def test_against_nested_loops(harness: Any, kind: JoinKind, build: Side, seed: int) -> None:
    check(harness, seed, kind, build)


@pytest.mark.parametrize("build", ["left", "right"])
@pytest.mark.parametrize("kind", list(JoinKind))
@pytest.mark.parametrize("name", list(VALUES))
def test_every_type(harness: Any, kind: JoinKind, build: Side, name: str) -> None:
    for seed in range(3):
        check(harness, 1000 + seed, kind, build, kinds=[name, "int"], sizes=(40, 100))


def number(field: int) -> FieldReference:
    return FieldReference(field, pa.int64())


def conditions(*parts: tuple[str, int, int]) -> Inequalities:
    """Of `(function, stored column, streamed column)`."""
    places = tuple(Place(Source.BUILD, p) for p in range(4)) + tuple(Place(Source.PROBE, p) for p in range(4))
    calls = tuple(Call(name, (number(stored), number(4 + streamed)), pa.bool_()) for name, stored, streamed in parts)
    whole = conjunction(calls)
    assert whole is not None
    found = Inequalities.of(PairCondition(whole, places))
    assert found is not None
    return found


def pairs_of(index: OrderedIndex, batch: Any) -> int:
    """How many pairs are looked at."""
    found = index.find(batch)
    assert found is not None
    return sum(int(part.counts.sum()) for part in found)


def indexed(harness: Any, found: Inequalities, *columns: list[int]) -> OrderedIndex:
    (stored,) = harness.source(
        pa.table([pa.array(c, pa.int64()) for c in columns], names=list("abcd")[: len(columns)])
    ).batches
    index = index_in_order(found, stored)
    assert index is not None
    return index


def batch_of(harness: Any, *columns: list[int]) -> Any:
    (batch,) = harness.source(
        pa.table([pa.array(c, pa.int64()) for c in columns], names=list("abcd")[: len(columns)])
    ).batches
    return batch


def test_a_point_in_intervals_looks_at_few_of_them_though_some_are_long(harness: Any) -> None:
    r = random.Random(5)
    starts = sorted(r.randrange(1_000_000) for _ in range(4000))
    lengths = [r.choice([900_000, 50_000]) if r.random() < 0.01 else r.randrange(500) for _ in starts]
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    points = [r.randrange(1_000_000) for _ in range(500)]
    hits = sum(start <= p <= end for p in points for start, end in zip(starts, ends, strict=True))
    index = indexed(harness, conditions(("lte", 0, 0), ("gte", 1, 0)), starts, ends)
    assert hits <= pairs_of(index, batch_of(harness, points)) <= 8 * hits + 16 * len(points)
    assert index.conditions.tells_matches


def test_a_window_around_a_stored_value_is_looked_at_exactly(harness: Any) -> None:
    r = random.Random(6)
    stored = [r.randrange(10_000) for _ in range(1000)]
    points = [r.randrange(10_000) for _ in range(300)]
    low, high = [p - 20 for p in points], [p + 20 for p in points]
    found = conditions(("gte", 0, 0), ("lt", 0, 1))
    assert found.rest is None
    index = indexed(harness, found, stored)
    want = sum(p - 20 <= value < p + 20 for p in points for value in stored)
    assert pairs_of(index, batch_of(harness, low, high)) == want


def test_what_is_checked_for_each_pair() -> None:
    assert conditions(("lt", 0, 0)).rest is None
    both = conditions(("lt", 0, 0), ("gt", 1, 0))
    assert both.tells_matches
    assert both.rest is not None
    assert both.rest.expression == Call("gt", (number(0), number(1)), pa.bool_())
    assert not conditions(("lt", 0, 0), ("lt", 1, 1)).tells_matches


@pytest.mark.parametrize("columns", [("build", "build"), ("probe", "probe"), ("build", "mixed")])
def test_comparisons_that_do_not_tell_a_range(columns: tuple[str, str]) -> None:
    places = (Place(Source.BUILD, 0), Place(Source.BUILD, 1), Place(Source.PROBE, 0), Place(Source.PROBE, 1))
    fields: dict[str, list[Expression]] = {
        "build": [number(0), number(1)],
        "probe": [number(2), number(3)],
        "mixed": [Call("add", (number(0), number(2)), pa.int64())] * 2,
    }
    call = Call("lt", (fields[columns[0]][0], fields[columns[1]][1]), pa.bool_())
    assert Inequalities.of(PairCondition(call, places)) is None


@pytest.mark.parametrize("build", ["left", "right"])
@pytest.mark.parametrize("kind", list(JoinKind))
def test_rows_whose_own_value_fails_fail_only_in_pairs_that_need_it(harness: Any, kind: JoinKind, build: Side) -> None:
    """10 / b cannot be computed where b is 0, which another condition keeps away."""
    share = Call("divide", (Constant(10, pa.int64()), number(1)), pa.int64())
    apart = Call(
        "not_equal", (Call("multiply", (number(0), number(1)), pa.int64()), Constant(0, pa.int64())), pa.bool_()
    )
    residual = Call("and", (apart, Call("lt", (number(0), share), pa.bool_())), pa.bool_())
    left, right = [(value,) for value in range(-4, 5)], [(value,) for value in range(-4, 5)]
    output = (0,) if kind in (JoinKind.SEMI, JoinKind.ANTI) else (0, 1)
    join = Join(
        harness.source(table(left, [pa.int64()], "a")),
        harness.source(table(right, [pa.int64()], "b")),
        kind,
        (),
        (),
        (),
        residual,
        False,
        build,
        output,
        (),
    )

    def holds(a: Row, b: Row) -> bool:
        return a[0] * b[0] != 0 and a[0] < math.trunc(10 / b[0])

    assert Counter(harness.rows(join)) == expected(left, right, kind, [], [], holds, False, 1)


def test_flags_cover_exactly_the_ranges(harness: Any) -> None:
    r = random.Random(9)
    stored = [r.randrange(100) for _ in range(80)]
    low = [r.randrange(100) for _ in range(10)]
    high = [value + r.randrange(5) for value in low]
    index = indexed(harness, conditions(("gte", 0, 0), ("lte", 0, 1)), stored)
    found = index.find(batch_of(harness, low, high))
    assert found is not None
    flags = torch.zeros(len(stored), dtype=torch.uint8)
    index.flag(found, flags)
    want = [any(a <= value <= b for a, b in zip(low, high, strict=True)) for value in stored]
    assert flags.view(torch.bool).tolist() == want


@pytest.mark.parametrize("build", ["left", "right"])
@pytest.mark.parametrize("kind", [JoinKind.SEMI, JoinKind.ANTI, JoinKind.MARK])
def test_whether_a_row_matches_at_all_is_seen_from_ranges(
    harness: Any, kind: JoinKind, build: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pairs(found: Matches, limit: int) -> Any:
        raise AssertionError("pairs are made")

    monkeypatch.setattr(Matches, "pairs", pairs)
    output = (0, 2) if kind is JoinKind.MARK else (0,)
    join = numbers_join(harness, list(range(100)), list(range(40, 90)), kind, build, output)
    found = {row[0] for row in harness.rows(join) if kind is not JoinKind.MARK or row[1]}
    assert found == ({*range(89)} if kind is not JoinKind.ANTI else {*range(89, 100)})


def test_a_join_in_order_says_so(harness: Any) -> None:
    join = numbers_join(harness, [1], [2], JoinKind.INNER, "right", (0, 1))
    assert join.label() == "Join inner by inequalities with residual build=right"


def numbers_join(
    harness: Any, left: list[int], right: list[int], kind: JoinKind, build: Side, output: tuple[int, ...]
) -> Join:
    """On a < b."""
    return Join(
        harness.source(pa.table({"a": left})),
        harness.source(pa.table({"b": right})),
        kind,
        (),
        (),
        (),
        Call("lt", (number(0), number(1)), pa.bool_()),
        False,
        build,
        output,
        (),
    )


def test_an_index_is_reserved(harness: Any) -> None:
    join = numbers_join(harness, list(range(1000)), list(range(1000)), JoinKind.INNER, "right", (0, 1))
    opened = asyncio.run(join.open(harness.context(), (harness.receiver(join.right.batches),)))
    assert isinstance(opened.side.index, OrderedIndex)
    assert harness.memory.held >= opened.side.index.nbytes + opened.side.rows.nbytes
    opened.close()
    assert harness.memory.held == 0
