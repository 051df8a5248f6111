"""Rows that nobody wants any more: whenever a consumer has enough, operators give back what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.operators import pipes

STATEMENTS = {
    "inner": "select a.id, b.weight from a join b on a.key = b.key where b.weight < 40",
    "residual": "select a.id, b.weight from a join b on a.key = b.key and a.id > b.weight",
    "build rows at the end": "select b.weight, a.id from b left join a on a.key = b.key and a.id < 5",
    "both sides": "select b.weight, a.id from b full join a on a.key + 7 = b.key",
    "without keys": "select a.id, b.key from (select id from a where id < 1000) a join b on a.id < b.weight",
    "semi": "select id from a where key in (select key from b where weight < 9)",
    "anti": "select weight from b where not exists (select 1 from a where a.key = b.key and a.id < 300)",
    "behind another": "select a.id, b.weight from a join b on a.key = b.key full join b c on c.key = a.id + 5",
    "twice the same": "select * from (select a.id from a join b on a.key = b.key union all"
    " select a.id from a join b on a.id = b.weight) x",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    rows, others = range(8000), range(1500)
    pq.write_table(pa.table({"id": rows, "key": [row % 1300 for row in rows]}), folder / "a.parquet")
    pq.write_table(pa.table({"key": others, "weight": [row % 50 for row in others]}), folder / "b.parquet")
    return folder


@pytest.fixture(scope="module", params=[True, False], ids=["programs", "operators"])
def session(request: pytest.FixtureRequest, folder: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(fusion=request.param, batch_rows=512) as session:
        for table in ("a", "b"):
            session.register(table, folder / f"{table}.parquet")
        yield session


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_limit_leaves_nothing_reserved(
    session: pystachio.Session, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Jobs end after each batch, so that the consumer has enough at any place of the work behind the last one."""
    monkeypatch.setattr(pipes, "_FIRST_JOB_SECONDS", 0.0)
    monkeypatch.setattr(pipes, "_JOB_SECONDS", 0.0)
    whole = session.sql(STATEMENTS[statement]).to_arrow().num_rows
    before = session.statistics().leaks
    for limit in (1, 5, 600, 1800, whole // 2, whole - 1):
        rows = session.sql(f"select * from ({STATEMENTS[statement]}) limit {limit}").to_arrow().num_rows
        assert rows == min(limit, whole)
    assert session.statistics().leaks == before
    assert session.statistics().reserved_bytes == 0
