"""Counts and extremes by footers against DuckDB: exact, or not used."""

from __future__ import annotations

import datetime
import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.operators.parquet.pruning import must_be_true
from pystachio.operators.parquet.statistics import ChunkStatistics
from tests.operators.parquet.test_pruning import against

ANSWERED = "row groups answered from statistics"
TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "i": (pa.int32(), lambda n: n * 37 % 101 - 50),
    "big": (pa.int64(), lambda n: (n * 2**55) % 2**62),
    "u": (pa.uint8(), lambda n: n * 3 % 256),
    "d": (pa.date32(), lambda n: datetime.date(2020, 1, 1) + datetime.timedelta(n)),
    "m": (pa.decimal128(12, 2), lambda n: Decimal(n) / 4),
    "wide": (pa.decimal128(38, 0), lambda n: Decimal(10) ** 25 + n),
    "f": (pa.float64(), lambda n: math.nan if n % 91 == 5 else (n + 1) / 8),
    "b": (pa.bool_(), lambda n: n % 3 == 0),
    "s": (pa.string(), lambda n: f"{'x' * (n % 3 * 60)}{n % 17}"),
    "moment": (pa.timestamp("us"), lambda n: datetime.datetime(2024, 1, 1) + datetime.timedelta(seconds=n)),
}


def random_file(r: random.Random, path: Path) -> None:
    rows = r.choice([0, 1, 300, 1000])
    nulls = {name: r.choice([0.0, 0.1, 1.0]) for name in TYPES}
    columns = {
        name: pa.array([None if r.random() < nulls[name] else value(n) for n in range(rows)], type_)
        for name, (type_, value) in TYPES.items()
    }
    columns["n"] = pa.array(range(rows), pa.int64())
    pq.write_table(
        pa.table(columns),
        path,
        row_group_size=r.choice([50, 128, 5000]),
        write_statistics=r.choice([True, True, ["n", "i", "s"]]),
    )


WHERE = (
    "",
    " where n >= 100",
    " where n < 130 and n >= 50",
    " where n is not null",
    " where i > 1000",
    " where n <> 7",
    " where 400 > n or n >= 600",
    " where n in (1, 2)",
    " where i >= -50",
    " where f > 3",
)


@pytest.mark.parametrize("seed", range(25))
def test_equals_duckdb(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    path = tmp_path / "t.parquet"
    random_file(r, path)
    with pystachio.connect(threads=2, batch_rows=r.choice([40, 1000])) as session, duckdb.connect() as peer:
        session.register("t", path)
        # Into a table of its own: on the file DuckDB believes the statistics of floats.
        peer.execute(f"create table t as from '{path}'")
        for _ in range(12):
            name = r.choice(list(TYPES))
            calls = r.sample([f"min({name})", f"max({name})", f"count({name})", "count(*)", "max(n)", "count(n)"], 3)
            if r.random() < 0.1:
                calls.append("sum(n)")
            where = r.choice(WHERE)
            ours = session.sql(f"select {', '.join(calls)} from t{where}").to_arrow()
            theirs = peer.sql(f"select {', '.join(calls)} from t{where}").fetchall()
            assert repr([tuple(row.values()) for row in ours.to_pylist()]) == repr(theirs), (calls, where)


def told_by(session: pystachio.Session, sql: str) -> str:
    result = session.sql(sql)
    result.to_arrow()
    return result.explain(analyze=True)


def test_only_undecided_row_groups_are_scanned(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array(range(1000))}), tmp_path / "t.parquet", row_group_size=100)
    with pystachio.connect(threads=1) as session:
        session.register("t", tmp_path / "t.parquet")
        sql = "select count(*) as c, min(n) as low, max(n) as high from t where n >= 250"
        assert session.sql(sql).to_arrow().to_pylist() == [{"c": 750, "low": 250, "high": 999}]
        told = told_by(session, sql)
        assert f"7 {ANSWERED}" in told
        assert "2 row groups pruned" in told
        assert "Scan" not in told_by(session, "select count(*) from t")


def test_what_statistics_do_not_know_is_scanned(tmp_path: Path) -> None:
    long = ["b" * 200, "a" * 200, "c" * 200]
    columns = {"f": [1.0, math.nan, 0.5], "s": long, "b": [True, False, True]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pystachio.connect(threads=1) as session:
        session.register("t", tmp_path / "t.parquet")
        for column in columns:
            sql = f"select max({column}) as most from t"
            (row,) = session.sql(sql).to_arrow().to_pylist()
            assert repr(row["most"]) == {"f": "nan", "s": repr("c" * 200), "b": "True"}[column]
        assert ANSWERED not in told_by(session, "select max(f) from t")
        assert ANSWERED not in told_by(session, "select count(*) from t where f > 0")


@pytest.mark.parametrize(
    ("function", "value", "low", "high", "nulls", "expected"),
    [
        ("gt", 4, 5, 9, 0, True),
        ("gt", 5, 5, 9, 0, False),
        ("gt", 4, 5, 9, 1, False),
        ("gt", 4, 5, 9, None, False),
        ("lte", 9, 5, 9, 0, True),
        ("lte", 8, 5, 9, 0, False),
        ("equal", 5, 5, 5, 0, True),
        ("equal", 5, 5, 6, 0, False),
        ("not_equal", 4, 5, 9, 0, True),
        ("not_equal", 7, 5, 9, 0, False),
        ("gt", 4, None, None, 0, False),
    ],
)
def test_certain_comparisons(
    function: str, value: int, low: int | None, high: int | None, nulls: int | None, expected: bool
) -> None:
    assert must_be_true(against(function, value), lambda _: ChunkStatistics(low, high, nulls), 10) is expected
