"""TPC-H's 22 statements against DuckDB, on files of two writers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

import pystachio
from pystachio.cli import tpch
from pystachio.cli.oracle import DuckDB, disagreement

SCALE = 0.02


@dataclass(frozen=True)
class Loaded:
    session: pystachio.Session
    oracle: DuckDB


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tpch")
    tpch.generate(SCALE, folder)
    return folder


@pytest.fixture(scope="session")
def rewritten(generated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tpch-nullable")
    for source in tpch.table_files(generated):
        duckdb.sql(f"copy (from '{source}') to '{folder / source.name}' (format parquet, row_group_size 10000)")
    return folder


@pytest.fixture(scope="session", params=["generated", "rewritten"])
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    files = tpch.table_files(request.getfixturevalue(request.param))
    oracle = DuckDB(files)
    with pystachio.connect(threads=2, batch_rows=10_000) as session:
        for file in files:
            session.register(file.stem, str(file))
        yield Loaded(session, oracle)
    oracle.close()


@pytest.mark.parametrize("sql", tpch.statements().values(), ids=tpch.statements().keys())
def test_equals_duckdb(loaded: Loaded, sql: str) -> None:
    assert disagreement(loaded.session.sql(sql).to_arrow(), loaded.oracle.rows(sql), sql) is None
