"""A plan that runs again takes the programs of its scans from its earlier runs, and nothing else of those."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.operators.fusion import flow
from pystachio.operators.kernels import native

ROWS = 400_000

STATEMENTS = (
    "select g, sum(v) as s, count(*) as c, min(v) as m from t where v % 3 <> 1 group by g order by g",
    "select sum(v * d) as s, avg(x) as a from t where d between 3 and 9",
    "select w, count(*) as c from t where w like '%a%' group by w order by w",
    "select v, d + 1 as e from t where v < 40 order by v, e",
    "select count(*) as c from t where v > (select avg(v) from t where d = 2)",
)

pytestmark = pytest.mark.skipif(native.library() is None, reason="needs the compiled library")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    words = np.array(["alpha", "beta", "gamma", "delta", "nil"])
    rows = pa.table(
        {
            "g": rng.integers(0, 40, ROWS).astype(np.int32),
            "v": rng.integers(0, 100_000, ROWS),
            "d": rng.integers(0, 12, ROWS).astype(np.int16),
            "x": rng.random(ROWS),
            "w": words[rng.integers(0, len(words), ROWS)],
        }
    )
    path = tmp_path / "t.parquet"
    pq.write_table(rows, path, row_group_size=70_000)
    return path


def expected(table: Path, sql: str) -> list[dict[str, object]]:
    with duckdb.connect() as peer:
        peer.execute(f"create view t as from '{table}'")
        return peer.sql(sql).to_arrow_table().to_pylist()


def same(found: pa.Table, wanted: list[dict[str, object]]) -> bool:
    rows = found.to_pylist()
    return len(rows) == len(wanted) and all(
        value == pytest.approx(other[name], rel=1e-9) if isinstance(value, float) else value == other[name]
        for row, other in zip(rows, wanted, strict=True)
        for name, value in row.items()
    )


@pytest.mark.parametrize("sql", STATEMENTS)
def test_every_run_answers_rightly(table: Path, sql: str) -> None:
    wanted = expected(table, sql)
    with pystachio.connect(threads=2, chunk_cache_dir=str(table.parent / "chunks")) as session:
        session.register("t", table)
        for _ in range(4):
            assert same(session.sql(sql).to_arrow(), wanted)
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: session.sql(sql).to_arrow(), range(12)))
        assert all(same(each, wanted) for each in found), "runs at once do not share states"


def test_parameters_and_other_statements_have_their_own(table: Path) -> None:
    with pystachio.connect(threads=2, chunk_cache_dir=str(table.parent / "chunks")) as session:
        session.register("t", table)
        for least in (3, 500, 3, 99_000):
            wanted = expected(table, f"select count(*) as c, sum(v) as s from t where v >= {least}")
            sql = "select count(*) as c, sum(v) as s from t where v >= $1"
            assert same(session.sql(sql, parameters=[least]).to_arrow(), wanted)


@pytest.mark.parametrize(
    "sql", [STATEMENTS[1], STATEMENTS[4], "select sum(v) as s from t where d = (select max(d) from t where v < 90)"]
)
def test_a_program_is_written_once(table: Path, monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    written = []
    write = flow.write_segment
    monkeypatch.setattr(flow, "write_segment", lambda *given, **named: written.append(1) or write(*given, **named))
    with pystachio.connect(threads=1, chunk_cache_dir=str(table.parent / "chunks")) as session:
        session.register("t", table)
        for _ in range(3):
            session.sql(sql).to_arrow()
        before = len(written)
        assert before > 0
        for _ in range(3):
            session.sql(sql).to_arrow()
        assert len(written) == before, "the columns look as they did"
