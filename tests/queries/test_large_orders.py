"""Orders of more rows than one batch, and their beginnings: against DuckDB, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.operators.kernels import native, radix_sort
from pystachio.operators.kernels.radix_sort import SplitRows

ROWS = 400_000
STATEMENTS = (
    "select i from rows order by f, i",
    "select i, f from rows order by f desc nulls last, i limit 150000",
    "select i, t from rows order by t nulls first, f nulls first, i desc limit 120000 offset 70000",
    "select i from rows order by i desc limit 200000",
    "select i from rows order by d, i limit 399999 offset 3",
    "select i from rows order by d desc, n nulls first, i limit 500000",
    "select i from rows order by n nulls last, d, i limit 150000 offset 390000",
    "select i + 1 as j from (select i from rows order by w, i limit 150000) x order by j",
    "select count(*), sum(i) from (select i from rows order by w desc, i limit 130000) x",
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(5)
    floats = np.round(draw.normal(0, 50, ROWS), 1)
    floats[:4] = -0.0, 0.0, np.inf, -np.inf
    table = pa.table(
        {
            "i": np.arange(ROWS),
            "f": pa.array(floats, mask=draw.random(ROWS) < 0.1),
            "t": pa.array([None if n % 9 == 0 else f"text {n}" for n in draw.integers(0, 500, ROWS).tolist()]),
            "d": pa.array(draw.integers(-500, 500, ROWS)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(12, 0)),
            "n": pa.array(draw.integers(0, 3, ROWS).astype(np.int8), mask=draw.random(ROWS) < 0.5),
            "w": draw.integers(-(2**63), 2**63 - 1, ROWS),
        }
    )
    path = tmp_path_factory.mktemp("orders") / "rows.parquet"
    pq.write_table(table, path, row_group_size=60_000)
    return path


@pytest.fixture(scope="module", params=["1GiB", "8GiB"])
def session(path: Path, request: pytest.FixtureRequest) -> Iterator[pystachio.Session]:
    """With little memory an order is made in several jobs."""
    with pystachio.connect(threads=2, memory=request.param, chunk_cache=False) as session:
        session.register("rows", path)
        yield session


@pytest.mark.parametrize("statement", STATEMENTS)
def test_orders_are_those_of_duckdb(path: Path, session: pystachio.Session, statement: str) -> None:
    with duckdb.connect() as peer:
        peer.execute(f"create view rows as from '{path}'")
        peer.execute("set default_null_order = 'nulls_last_on_asc_first_on_desc'")
        expected = peer.sql(statement).fetchall()
    found = session.sql(statement).to_arrow()
    assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected


def test_a_sort_knows_what_is_wanted(session: pystachio.Session) -> None:
    plan = session.sql("select i from rows order by f, i limit 120000 offset 30000").explain()
    assert "Sort first 150,000 by f, i" in plan


def test_a_date_far_from_all_others_leaves_work_for_every_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[int] = []

    class Watched(SplitRows):
        def sort(self, share: range) -> None:
            shares.append(self.rows_of(share))
            super().sort(share)

    monkeypatch.setattr(radix_sort, "SplitRows", Watched)
    days = np.random.default_rng(6).integers(0, 10_000, ROWS)
    days[7] = 2**40
    pq.write_table(pa.table({"i": np.arange(ROWS), "day": days}), tmp_path / "rows.parquet")
    with pystachio.connect(threads=2, memory="1GiB", chunk_cache=False) as session:
        session.register("rows", tmp_path / "rows.parquet")
        found = session.sql("select i from rows order by day, i").to_arrow()
    assert found.column("i").to_numpy().tolist() == np.argsort(days, kind="stable").tolist()
    if native.library() is not None:
        assert sum(shares) == ROWS
        assert max(shares) <= ROWS // 2
