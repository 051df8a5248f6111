"""Quotients, remainders and units of time by constants: programs against DuckDB."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.operators.fusion import flow

ROWS = 6000
CONSTANTS = (1, -1, 2, -2, 3, 7, -10, 1000, 2**31, 2**53 + 1, -(2**62), 2**63 - 1)
UNITS = ("day", "hour", "minute", "second")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = random.Random(7)
    path = tmp_path_factory.mktemp("division") / "t.parquet"
    ends = [0, 1, -1, 2**63 - 1, -(2**63) + 1, 2**52, -(2**52), 2**53, -(2**53) - 1, 999, -1000]
    wide = [*ends, *(chance.randint(-(2**63) + 1, 2**63 - 1) for _ in range(ROWS - len(ends)))]
    small = [chance.randint(-50, 50) for _ in range(ROWS)]
    start = datetime(1969, 12, 31)
    times = [start + timedelta(microseconds=chance.randint(0, 3 * 86_400_000_000)) for _ in range(ROWS)]
    columns = pa.table(
        {
            "wide": pa.array([None if i % 13 == 5 else each for i, each in enumerate(wide)], pa.int64()),
            "small": pa.array(small, pa.int32()),
            "micro": pa.array([None if i % 17 == 3 else each for i, each in enumerate(times)], pa.timestamp("us")),
            "second": pa.array([each.replace(microsecond=0) for each in times], pa.timestamp("s")),
            "nano": pa.array(times, pa.timestamp("ns")),
        }
    )
    pq.write_table(columns, path, row_group_size=1500)
    return path


def statements() -> list[str]:
    found = [f"select wide % {by}, small % {by} from t" for by in CONSTANTS]
    found += [f"select sum(small // {by}) from t" for by in CONSTANTS]
    found += [f"select count(*) from t where wide % {by} = 1 or small % {by} = -1" for by in CONSTANTS]
    for column in ("micro", "second", "nano"):
        found += [f"select date_trunc('{unit}', {column}) from t" for unit in UNITS]
        found += [f"select date_trunc('{unit}', {column}) as k, count(*) from t group by k" for unit in UNITS]
        found += [f"select extract({unit} from {column}) as k, sum(small) from t group by k" for unit in UNITS]
    found.append("select date_trunc('hour', micro) as k, date_trunc('day', second) as l, count(*) from t group by k, l")
    return found


@pytest.mark.parametrize("fusion", [True, False])
def test_against_duckdb(table: Path, monkeypatch: pytest.MonkeyPatch, fusion: bool) -> None:
    monkeypatch.setattr(flow, "_FEWEST_ROWS", 0)
    oracle = duckdb.connect()
    oracle.execute(f"create view t as select * from '{table}'")
    with pystachio.connect(threads=2, fusion=fusion) as session:
        session.register("t", table)
        for sql in statements():
            ours = session.sql(sql.replace("//", "/")).to_arrow()
            found = Counter(
                zip(*(column.cast(_plain(column.type)).to_pylist() for column in ours.columns), strict=True)
            )
            wanted = Counter(oracle.execute(sql).fetchall())
            assert found == wanted, sql


def _plain(type_: pa.DataType) -> pa.DataType:
    """What DuckDB's answers are in Python."""
    return pa.timestamp("us") if pa.types.is_timestamp(type_) else type_


def test_groups_by_time_are_a_program(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups of the hours of a few days are addressed: nothing is left to the operators."""
    monkeypatch.setattr(flow, "_FEWEST_ROWS", 0)
    written = []
    write = flow.write_segment

    def noted(*arguments: object, **named: object) -> object:
        segment = write(*arguments, **named)  # type: ignore[arg-type]
        written.append(segment)
        return segment

    monkeypatch.setattr(flow, "write_segment", noted)
    with pystachio.connect(threads=1) as session:
        session.register("t", table)
        session.sql("select date_trunc('hour', micro) as k, count(*) from t where small % 7 = 3 group by k").to_arrow()
    assert written
    assert all(segment is not None and segment.folded is not None for segment in written)
