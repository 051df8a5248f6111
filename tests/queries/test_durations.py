"""Spans between two timestamps beside intervals: against DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.errors import Unsupported

CONDITIONS = (
    "b - a > interval '30' minute",
    "interval '30' minute <= b - a",
    "b - a = interval '600' second",
    "b - a <> interval '600' second",
    "b - a between interval '5' minute and interval '1' day",
    "b - a not in (interval '600' second, interval '2' hour)",
    "b - a < interval '1' day + interval '1' minute",
    "b - a is distinct from interval '600' second",
    "not (b - a > interval '-90' second)",
    "a - b > b - a",
    "coalesce(b - a, interval '1' hour) > interval '59' minute",
    "case when b - a > interval '1' hour then i % 2 = 0 else i % 3 = 0 end",
    "b - a > interval '0' second and b - a < interval '86400' second",
    "greatest(b - a, interval '1' day) = interval '1' day",
)


@pytest.fixture(scope="module", params=["s", "ms", "us"])
def path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    start = datetime(2024, 2, 28, 23)
    firsts = [None if i % 11 == 0 else start + timedelta(seconds=97 * i) for i in range(500)]
    steps = [600, 7200, -60, 86_400, 0, 86_460, 1799, 1801, 3600]
    seconds = [None if i % 13 == 0 else start + timedelta(seconds=97 * i + steps[i % 9]) for i in range(500)]
    type_ = pa.timestamp(request.param)
    table = pa.table({"i": range(500), "a": pa.array(firsts, type_), "b": pa.array(seconds, type_)})
    path = tmp_path_factory.mktemp("durations") / "trips.parquet"
    pq.write_table(table, path)
    return path


@pytest.fixture(scope="module")
def session(path: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(threads=1, chunk_cache=False) as session:
        session.register("trips", path)
        yield session


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_are_those_of_duckdb(path: Path, session: pystachio.Session, condition: str) -> None:
    sql = f"select i from trips where {condition} order by i"
    expected = [i for (i,) in duckdb.sql(sql.replace("trips", f"'{path}'")).fetchall()]
    assert session.sql(sql).to_arrow().column(0).to_pylist() == expected


def test_finer_than_the_columns(session: pystachio.Session) -> None:
    sql = "select count(*) from trips where b - a > interval '600.0000001' second"
    coarse = "select count(*) from trips where b - a > interval '600' second"
    assert session.sql(sql).to_arrow().column(0).to_pylist() == session.sql(coarse).to_arrow().column(0).to_pylist()


def test_months_have_no_length(session: pystachio.Session) -> None:
    with pytest.raises(Unsupported, match="months"):
        session.sql("select i from trips where b - a > interval '1' month")
