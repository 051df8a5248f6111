"""SQL against DuckDB on the same files, under several configurations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import pystachio
from pystachio.cli.oracle import disagreement
from tests.queries.tables import duckdb_over, register, statements, write_tables

CONFIGURATIONS = {
    "defaults": {"threads": 2},
    "odd batches": {"threads": 2, "batch_rows": 997},
    "tiny batches, one thread": {"threads": 1, "batch_rows": 7},
    "no dictionary codes": {"threads": 2, "dictionary_codes": False},
    "no join reordering": {"threads": 2, "join_reordering": False},
    "no direct addressing": {"threads": 2, "direct_addressing": False, "batch_rows": 500},
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    write_tables(path)
    return path


@pytest.fixture(scope="session")
def oracle(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb_over(folder) as connection:
        yield connection


@pytest.fixture(scope="session", params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def session(request: pytest.FixtureRequest, folder: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(**request.param) as session:
        register(session, folder)
        yield session


@pytest.mark.parametrize("sql", statements())
def test_equals_duckdb(session: pystachio.Session, oracle: duckdb.DuckDBPyConnection, sql: str) -> None:
    assert disagreement(session.sql(sql).to_arrow(), oracle.execute(sql).fetchall(), sql) is None


@pytest.mark.parametrize("session", [CONFIGURATIONS["defaults"]], ids=["again"], indirect=True)
@pytest.mark.parametrize("sql", statements())
def test_equals_duckdb_in_later_runs(session: pystachio.Session, oracle: duckdb.DuckDBPyConnection, sql: str) -> None:
    """With what the first two runs have kept: columns, programs, answers, build sides."""
    session.sql(sql).to_arrow()
    session.sql(sql).to_arrow()
    assert disagreement(session.sql(sql).to_arrow(), oracle.execute(sql).fetchall(), sql) is None
