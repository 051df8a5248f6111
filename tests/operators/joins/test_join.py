"""Every kind of join against nested loops in plain Python."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest

from pystachio.errors import ResourceExhausted
from pystachio.operators.expressions import Call, FieldReference, JoinKind
from pystachio.operators.joins.join import Join
from pystachio.operators.kernels.selection import slice_batch
from pystachio.operators.runtime_filter import RuntimeFilter
from pystachio.runtime.slots import Slot

Row = tuple[Any, ...]


def expected(
    left: list[Row],
    right: list[Row],
    kind: JoinKind,
    keys: list[tuple[int, int]],
    null_equal: list[bool],
    residual: Callable[[Row, Row], bool | None] | None,
    null_aware: bool,
    width: int,
) -> Counter[Row]:
    def equal(a: Row, b: Row) -> bool:
        for (i, j), null in zip(keys, null_equal, strict=True):
            if a[i] is None or b[j] is None:
                if not (null and a[i] is None and b[j] is None):
                    return False
            elif a[i] != b[j]:
                return False
        return residual is None or residual(a, b) is True

    def perhaps(a: Row, b: Row) -> bool:
        if a[keys[0][0]] is not None and b[keys[0][1]] is not None:
            return equal(a, b)
        return residual is None or residual(a, b) is True

    out: list[Row] = []
    matched_right = [False] * len(right)
    for a in left:
        hits = [j for j, b in enumerate(right) if (perhaps if null_aware else equal)(a, b)]
        for j in hits:
            matched_right[j] = True
        match kind:
            case JoinKind.SEMI:
                out += [a] if hits else []
            case JoinKind.ANTI:
                out += [] if hits else [a]
            case JoinKind.MARK:
                out.append((*a, bool(hits)))
            case _:
                out += [a + right[j] for j in hits]
                if not hits and kind in (JoinKind.LEFT, JoinKind.FULL):
                    out.append(a + (None,) * width)
    if kind in (JoinKind.RIGHT, JoinKind.FULL):
        out += [(None,) * width + b for b, hit in zip(right, matched_right, strict=True) if not hit]
    return Counter(out)


def table(rows: list[Row], types: list[pa.DataType], names: str) -> pa.Table:
    columns = [pa.array([row[i] for row in rows], type_) for i, type_ in enumerate(types)]
    return pa.table(columns, names=list(names))


VALUES: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "int": (pa.int64(), lambda r: r.randrange(-3, 9)),
    "sparse int": (pa.int64(), lambda r: r.choice([-(2**63), -5, 0, 7, 2**40, 2**63 - 1])),
    "small int": (pa.int8(), lambda r: r.randrange(-128, -120)),
    "string": (pa.string(), lambda r: r.choice(["", "a", "b", "ä", "longer than the others", "z"])),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), lambda r: r.choice(["", "a", "b", "ä", "z"])),
    "float": (pa.float64(), lambda r: r.choice([0.0, -0.0, 1.5, -2.25, 1e300])),
    "bool": (pa.bool_(), lambda r: r.random() < 0.5),
    "date": (pa.date32(), lambda r: r.randrange(10_000, 10_009)),
    "decimal": (pa.decimal128(12, 2), lambda r: Decimal(r.randrange(-4, 4)) / 100),
    "wide decimal": (pa.decimal128(38, 2), lambda r: r.choice([Decimal(10) ** 30, Decimal(-1), Decimal(10) ** 30 + 1])),
}


def random_rows(r: random.Random, count: int, makers: list[Callable[[random.Random], Any]], nulls: float) -> list[Row]:
    return [tuple(None if r.random() < nulls else make(r) for make in makers) for _ in range(count)]


def check(harness: Any, seed: int, kind: JoinKind, build: str, **options: Any) -> None:
    r = random.Random(seed)
    names = options.get("keys") or r.choice(
        [["int"], ["string"], ["int", "string"], ["sparse int", "float"], *[[k] for k in VALUES]]
    )
    types = [VALUES[name][0] for name in names]
    makers = [VALUES[name][1] for name in names]
    sizes = options.get("sizes") or r.choice([(0, 5), (5, 0), (0, 0), (1, 1), (30, 12), (12, 40), (60, 60)])
    nulls = r.choice([0.0, 0.0, 0.2, 1.0]) if "nulls" not in options else options["nulls"]
    payload = lambda r: r.randrange(100)  # noqa: E731
    left = random_rows(r, sizes[0], [*makers, payload], nulls)
    right = random_rows(r, sizes[1], [*makers, payload], nulls)
    types = [*types, pa.int64()]
    width = len(types)
    null_aware = options.get("null_aware", False)
    null_equal = [not null_aware and r.random() < 0.3 for _ in names]
    with_residual = options.get("residual", r.random() < 0.4)
    residual = None
    compare = None
    if with_residual:
        residual = Call(
            "lt", (FieldReference(width - 1, pa.int64()), FieldReference(2 * width - 1, pa.int64())), pa.bool_()
        )

        def compare(a: Row, b: Row) -> bool | None:
            return None if a[-1] is None or b[-1] is None else a[-1] < b[-1]

    output = tuple(range(width)) if kind in (JoinKind.SEMI, JoinKind.ANTI) else tuple(range(2 * width))
    if kind is JoinKind.MARK:
        output = (*range(width), 2 * width)
    key_positions = tuple(range(len(names))) if not options.get("keyless") else ()
    join = Join(
        harness.source(table(left, types, "abcdef"[:width]), r.choice([1, 7, 1000])),
        harness.source(table(right, types, "uvwxyz"[:width]), r.choice([1, 7, 1000])),
        kind,
        key_positions,
        key_positions,
        tuple(null_equal) if key_positions else (),
        residual,
        null_aware,
        build,
        output,
        (None,) * len(key_positions),
    )
    got = harness.rows(join, batch_rows=r.choice([1, 5, 1000]), direct_addressing=r.random() < 0.7)
    left, right = ([normalised(row) for row in rows] for rows in (left, right))
    keys = [(position, position) for position in key_positions]
    want = expected(left, right, kind, keys, null_equal[: len(keys)], compare, null_aware, width)
    assert Counter(normalised(row) for row in got) == want
    assert harness.memory.held == 0


def normalised(row: Row) -> Row:
    return tuple(value.toordinal() - 719163 if hasattr(value, "toordinal") else value for value in row)


@pytest.mark.parametrize("build", ["left", "right"])
@pytest.mark.parametrize("kind", list(JoinKind))
@pytest.mark.parametrize("seed", range(25))
def test_against_nested_loops(harness: Any, kind: JoinKind, build: str, seed: int) -> None:
    check(harness, seed, kind, build)


@pytest.mark.parametrize("build", ["left", "right"])
@pytest.mark.parametrize("kind", list(JoinKind))
@pytest.mark.parametrize("seed", range(4))
def test_keyless(harness: Any, kind: JoinKind, build: str, seed: int) -> None:
    check(harness, seed, kind, build, keyless=True, keys=["int"], residual=seed % 2 == 0)


@pytest.mark.parametrize("build", ["left", "right"])
@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (20, 20), (20, 1)])
@pytest.mark.parametrize("nulls", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("residual", [False, True])
def test_not_in(harness: Any, build: str, sizes: tuple[int, int], nulls: float, residual: bool) -> None:
    for seed in range(3):
        check(
            harness,
            seed,
            JoinKind.ANTI,
            build,
            null_aware=True,
            keys=["int"],
            sizes=sizes,
            nulls=nulls,
            residual=residual,
        )


def int_join(harness: Any, left: list[int | None], right: list[int | None], **changes: Any) -> Join:
    options: dict[str, Any] = {
        "kind": JoinKind.INNER,
        "left_keys": (0,),
        "right_keys": (0,),
        "null_equal": (False,),
        "residual": None,
        "null_aware": False,
        "build": "right",
        "output": (0, 1),
        "runtime_filters": (None,),
    }
    options |= changes
    return Join(
        harness.source(pa.table({"a": pa.array(left, pa.int64())})),
        harness.source(pa.table({"b": pa.array(right, pa.int64())})),
        **options,
    )


def test_many_to_many_comes_in_bounded_slices_in_probe_order(harness: Any) -> None:
    join = int_join(harness, [1, 2, 1], [1] * 500 + [2] * 3)
    batches = harness.batches(join, batch_rows=64)
    assert max(batch.length for batch in batches) <= 64
    rows = [row[0] for row in harness.rows(join, batch_rows=64)]
    assert rows == [1] * 500 + [2] * 3 + [1] * 500


@pytest.mark.parametrize("kind", [JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI, JoinKind.MARK])
@pytest.mark.parametrize("build", ["left", "right"])
def test_a_long_nested_loop_can_pause(harness: Any, kind: JoinKind, build: Literal["left", "right"]) -> None:
    never = Call("equal", (FieldReference(0, pa.int64()), FieldReference(1, pa.int64())), pa.bool_())
    output = (0,) if kind in (JoinKind.SEMI, JoinKind.ANTI, JoinKind.MARK) else (0, 1)
    keyless = {"left_keys": (), "right_keys": (), "null_equal": (), "runtime_filters": ()}
    join = int_join(harness, [9] * 20, [1] * 30, kind=kind, residual=never, build=build, output=output, **keyless)
    opened = asyncio.run(join.open(harness.context(batch_rows=10), (harness.receiver(join.inputs[1].batches),)))
    (batch,) = join.inputs[0].batches
    pauses = sum(part.length == 0 for part in opened.process(batch))
    assert pauses >= 60


@pytest.mark.parametrize("build", ["left", "right"])
def test_several_threads_probe_one_build(harness: Any, build: Literal["left", "right"]) -> None:
    r = random.Random(3)
    left = [r.randrange(3000) for _ in range(4000)]
    right = [r.randrange(3000) for _ in range(4000)]
    join = int_join(harness, left, right, kind=JoinKind.FULL, build=build)
    probe, stored = (join.left, join.right) if build == "right" else (join.right, join.left)
    batches = [slice_batch(probe.batches[0], start, start + 50) for start in range(0, 4000, 50)]
    opened = asyncio.run(join.open(harness.context(), (harness.receiver(stored.batches),)))
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(lambda batch: list(opened.process(batch)), batches))
    parts.append(list(opened.finish() or ()))
    got = Counter(harness.rows_of([batch for part in parts for batch in part], join.schema))
    assert got == Counter(harness.rows(join))
    counts = Counter(left)
    assert sum(got.values()) == sum(max(1, counts[b]) for b in right) + sum(a not in set(right) for a in left)


def test_publishes_the_build_keys(harness: Any) -> None:
    harness.slots["filter", 4] = Slot()
    harness.rows(int_join(harness, [1, 2], [5, 9, None], runtime_filters=(4,)))
    published = harness.slots["filter", 4]
    value = asyncio.run(published.wait())
    assert isinstance(value, RuntimeFilter)
    assert value.bounds == (5, 9)


def test_a_filter_that_would_lose_nulls_is_not_published(harness: Any) -> None:
    harness.slots["filter", 4] = Slot()
    harness.rows(int_join(harness, [None], [5, None], null_equal=(True,), runtime_filters=(4,)))
    assert asyncio.run(harness.slots["filter", 4].wait()) is None


def test_a_large_direct_table_gives_way_to_hashing_when_memory_is_short(harness: Any) -> None:
    join = int_join(harness, [1, 2_000_000, 7], [2_000_000, 1])
    want = [(1, 1), (2_000_000, 2_000_000)]
    assert harness.rows(join) == want
    harness.memory.most = 20_000  # a hash table of two rows takes 12,336 bytes, the direct one 125,000 and more
    assert harness.rows(join) == want


def test_a_build_side_beyond_the_budget_is_a_typed_error(harness: Any) -> None:
    harness.memory.most = 1000
    with pytest.raises(ResourceExhausted):
        harness.rows(int_join(harness, [1], list(range(1000))))
