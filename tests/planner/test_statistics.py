"""Statistics from footers and samples, against the data itself."""

from __future__ import annotations

import asyncio
import datetime
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pystachio.errors import DataError
from pystachio.io_scheduler.client import HostBuffer
from pystachio.io_scheduler.core.request import Extent
from pystachio.operators.arrow import column_to_arrow
from pystachio.operators.expressions import Call, FieldReference, Literal, ScalarSubquery
from pystachio.operators.table import Table
from pystachio.planner.sample import choose_runs
from pystachio.planner.statistics import StatisticsCache
from tests.operators.parquet_sources import every_type, open_table, reading, write

ROWS = 60_000


class Fetching:
    """Blocking reads, as the planner's thread does them; `failing` makes them fail."""

    def __init__(self) -> None:
        self.reads = 0
        self.failing = False

    def __call__(self, path: str, extents: Sequence[Extent]) -> list[HostBuffer]:
        self.reads += 1
        if self.failing:
            raise DataError("unreadable")

        async def read() -> list[HostBuffer]:
            async with reading() as client:
                return await client.read(path, extents)

        return asyncio.run(read())


@pytest.fixture
def fetch() -> Fetching:
    return Fetching()


@pytest.fixture
def cache(fetch: Fetching) -> StatisticsCache:
    return StatisticsCache(fetch)


def data(rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(3)
    start = datetime.date(1992, 1, 1).toordinal() - datetime.date(1970, 1, 1).toordinal()
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "order": pa.array([i // 4 for i in range(rows)], pa.int64()),
            "customer": pa.array(rng.integers(0, 9000, rows)),
            "day": pa.array(rng.integers(start, start + 2500, rows).astype(np.int32)).cast(pa.date32()),
            "status": pa.array(rng.choice(["open", "done", "lost"], rows, p=[0.7, 0.2, 0.1])),
            "note": pa.array([f"note {i} {'special' if i % 100 == 0 else ''}" for i in range(rows)]),
            "rare": pa.array([None if i % 10 else i for i in range(rows)], pa.int32()),
            "ratio": pa.array(rng.random(rows)),
            "nested": pa.array([[i] for i in range(rows)]),
        }
    )


def open_(path: Path) -> Table:
    async def opened() -> Table:
        async with reading() as client:
            return await open_table(client, path)

    return asyncio.run(opened())


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    path = tmp_path_factory.mktemp("statistics") / "t.parquet"
    return open_(write(data(), path, row_group_size=5000))


def test_rows_ranges_and_nulls(cache: StatisticsCache, table: Table) -> None:
    statistics = cache.statistics(table)
    assert statistics.rows == ROWS
    by_name = dict(zip([field.name for field in table.schema], statistics.columns, strict=True))
    assert by_name["nested"] is None
    identity, rare, status = by_name["id"], by_name["rare"], by_name["status"]
    assert identity is not None
    assert rare is not None
    assert status is not None
    assert (identity.low, identity.high, identity.nulls) == (0, ROWS - 1, 0)
    assert rare.nulls == ROWS - ROWS // 10
    assert (status.low, status.high) == (b"done", b"open")
    assert 7.5 < identity.average_bytes < 12


@pytest.fixture(scope="module")
def plain_table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    path = tmp_path_factory.mktemp("plain") / "t.parquet"
    return open_(write(data(), path, row_group_size=5000, use_dictionary=False))


@pytest.mark.parametrize("encoding", ["table", "plain_table"])
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("id", ROWS, ROWS),
        ("order", ROWS / 4 * 0.8, ROWS / 4 * 1.3),
        ("customer", 6000, 9001),
        ("day", 2000, 2500),
        ("status", 2, 4),
        ("note", ROWS / 2, ROWS),
    ],
)
def test_distinct_values(
    cache: StatisticsCache, request: pytest.FixtureRequest, encoding: str, name: str, low: float, high: float
) -> None:
    """From the sizes of dictionary-encoded chunks, and counted where there are none."""
    table: Table = request.getfixturevalue(encoding)
    column = [field.name for field in table.schema].index(name)
    distinct = cache.column(table, column).distinct
    assert distinct is not None
    assert low <= distinct <= high


def test_a_sample_is_small_spread_and_aligned(cache: StatisticsCache, table: Table, fetch: Fetching) -> None:
    sample = cache.sample(table, [0, 1, 5])
    assert 15_000 < sample.length <= 20_000
    ids, orders, notes = (column_to_arrow(column).to_pylist() for column in sample.columns)
    assert all(order == identity // 4 for identity, order in zip(ids, orders, strict=True))
    assert all(note.startswith(f"note {identity} ") for identity, note in zip(ids, notes, strict=True))
    assert abs(np.mean(ids) - ROWS / 2) < ROWS / 10
    assert len(set(ids)) == len(ids)
    reads = fetch.reads
    again = cache.sample(table, [5, 0])
    assert fetch.reads == reads
    assert again.columns[1] is sample.columns[0]


def test_a_small_table_is_its_own_sample(cache: StatisticsCache, tmp_path: Path) -> None:
    original = every_type(700).drop_columns(["f64"])
    small = open_(write(original, tmp_path / "t.parquet", row_group_size=100))
    sample = cache.sample(small, range(len(small.schema)))
    assert sample.length == 700
    for column, field in zip(sample.columns, small.schema, strict=True):
        assert column_to_arrow(column).equals(original[field.name].combine_chunks().cast(field.type)), field.name


@pytest.mark.parametrize(("rows", "group"), [(0, 10), (1, 1), (30_000, 30_000), (25_000, 7), (300, 1)])
def test_samples_of_odd_shapes(cache: StatisticsCache, tmp_path: Path, rows: int, group: int) -> None:
    odd = open_(write(pa.table({"a": range(rows)}), tmp_path / "t.parquet", row_group_size=group))
    assert sum(sampled.count for sampled in choose_runs(odd)) <= 20_000
    sample = cache.sample(odd, [0])
    values = column_to_arrow(sample.columns[0]).to_pylist() if rows else []
    assert values == sorted(set(values))
    assert (sample.length == 0) is (rows == 0)


def test_predicates_are_tried_on_the_sample(cache: StatisticsCache, table: Table) -> None:
    facts = cache.facts({"t": table})
    assert facts.rows("t") == ROWS
    predicate = Call("equal", (FieldReference(0, pa.string()), Literal("done", pa.string())), pa.bool_())
    found = facts.matching("t", (4,), predicate)
    assert found is not None
    exact = pc.sum(pc.equal(data()["status"], "done")).as_py() / ROWS
    assert abs(found.share - exact) < 0.02
    like = Call("like", (FieldReference(0, pa.string()), Literal("%special%", pa.string())), pa.bool_())
    found = facts.matching("t", (5,), like)
    assert found is not None
    assert 0.003 < found.share < 0.03


def test_what_a_predicate_leaves_of_other_columns(cache: StatisticsCache, table: Table, fetch: Fetching) -> None:
    facts = cache.facts({"t": table})
    early = Call("lt", (FieldReference(0, pa.int64()), Literal(ROWS // 4, pa.int64())), pa.bool_())
    found = facts.matching("t", (0,), early)
    assert found is not None
    seen = found.seen(0)
    assert seen is not None
    low, high = seen.range
    assert 0 <= low < ROWS // 100
    assert ROWS // 4 - ROWS // 100 < high < ROWS // 4
    assert not seen.is_all
    every = facts.everything("t")
    assert every is not None
    other = every.seen(0)
    assert other is not None
    assert other.range[1] - other.range[0] > 0.98 * ROWS
    assert other.share_in(seen) == pytest.approx(0.25, abs=0.02)
    assert found.seen(4) is None, "a text"
    never = Call("equal", (FieldReference(0, pa.int64()), Literal(-1, pa.int64())), pa.bool_())
    nothing = facts.matching("t", (0,), never)
    assert nothing is not None
    assert nothing.seen(0) is None
    found = facts.matching("t", (0,), early)
    fetch.failing = True
    assert found is not None
    assert found.seen(2) is None, "what cannot be read says nothing"


def test_of_a_small_table_all_values_are_seen(cache: StatisticsCache, tmp_path: Path) -> None:
    small = open_(write(pa.table({"id": range(500), "name": [f"name {i % 100}" for i in range(500)]}), tmp_path / "s"))
    facts = cache.facts({"s": small})
    named = Call("equal", (FieldReference(0, pa.string()), Literal("name 7", pa.string())), pa.bool_())
    found = facts.matching("s", (1,), named)
    assert found is not None
    seen = found.seen(0)
    assert seen is not None
    assert (seen.is_all, seen.rows, seen.range) == (True, 5, (7, 407))
    empty = open_(write(pa.table({"n": pa.array([], pa.int32())}), tmp_path / "e.parquet"))
    assert cache.facts({"e": empty}).everything("e") is None


def test_no_match_is_not_zero_and_failures_are_no_answer(cache: StatisticsCache, table: Table, fetch: Fetching) -> None:
    facts = cache.facts({"t": table})
    never = Call("equal", (FieldReference(0, pa.int64()), Literal(-1, pa.int64())), pa.bool_())
    found = facts.matching("t", (0,), never)
    assert found is not None
    assert 0 < found.share < 1e-4
    unbound = Call("equal", (FieldReference(0, pa.int64()), ScalarSubquery(0, pa.int64())), pa.bool_())
    assert facts.matching("t", (0,), unbound) is None
    zero = Call("divide", (Literal(1, pa.int64()), Literal(0, pa.int64())), pa.int64())
    failing = Call("equal", (FieldReference(0, pa.int64()), zero), pa.bool_())
    assert facts.matching("t", (0,), failing) is None
    fetch.failing = True
    assert facts.matching("t", (2,), never) is None


def test_facts_of_columns(cache: StatisticsCache, table: Table) -> None:
    facts = cache.facts({"t": table})
    identity = facts.column("t", 0)
    assert identity.bounds == (0, ROWS - 1)
    assert identity.distinct == ROWS
    assert facts.column("t", 6).nulls == pytest.approx(0.9)
    assert facts.column("t", 4).bounds is None
    assert facts.column("t", 8).distinct is None, "nested"


def test_an_all_null_and_an_empty_column(cache: StatisticsCache, tmp_path: Path) -> None:
    nulls = open_(write(pa.table({"n": pa.nulls(10, pa.int32())}), tmp_path / "n.parquet"))
    assert cache.column(nulls, 0).distinct == 0
    assert cache.column(nulls, 0).low is None
    empty = open_(write(pa.table({"n": pa.array([], pa.int32())}), tmp_path / "e.parquet"))
    assert cache.statistics(empty).rows == 0


def test_random_tables_never_fail(cache: StatisticsCache, tmp_path: Path) -> None:
    rng = random.Random(2)
    for number in range(12):
        options: dict[str, Any] = {
            "row_group_size": rng.choice([1, 7, 1000]),
            "use_dictionary": rng.random() < 0.5,
            "write_statistics": rng.random() < 0.8,
            "data_page_version": rng.choice(["1.0", "2.0"]),
        }
        rows = rng.choice([0, 1, 50, 400])
        original = every_type(rows, nulls=rng.choice([0, 0.5, 1]), seed=number)
        opened = open_(write(original, tmp_path / f"{number}.parquet", **options))
        for column in cache.statistics(opened).columns:
            assert column is not None
            assert column.distinct is None or 0 <= column.distinct <= rows
