"""SQL against DuckDB on the same files, under several configurations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import pystachio
from pystachio.cli.oracle import difference, ordered_columns
from tests.queries.tables import write_tables

STATEMENTS = Path(__file__).parent / "statements"
CONFIGURATIONS = {
    "defaults": {"threads": 2},
    "odd batches": {"threads": 2, "batch_rows": 997},
    "tiny batches, one thread": {"threads": 1, "batch_rows": 7},
    "no dictionary codes": {"threads": 2, "dictionary_codes": False},
    "no join reordering": {"threads": 2, "join_reordering": False},
    "no direct addressing": {"threads": 2, "direct_addressing": False, "batch_rows": 500},
}
TABLES = ("facts", "dimension", "other", "nothing", "single", "many")


def statements() -> Iterator[pytest.ParameterSet]:
    for path in sorted(STATEMENTS.glob("*.sql")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if line.strip():
                yield pytest.param(line.rstrip().removesuffix(";"), id=f"{path.stem}-{number}")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    write_tables(path)
    return path


@pytest.fixture(scope="session")
def oracle(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        for table in TABLES:
            path = folder / f"{table}.parquet"
            source = path if path.exists() else folder / table / "*.parquet"
            connection.execute(f"create view {table} as from '{source}'")
        yield connection


@pytest.fixture(scope="session", params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def session(request: pytest.FixtureRequest, folder: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(**request.param) as session:
        for table in TABLES:
            path = folder / f"{table}.parquet"
            session.register(table, str(path if path.exists() else folder / table))
        yield session


@pytest.mark.parametrize("sql", list(statements()))
def test_equals_duckdb(session: pystachio.Session, oracle: duckdb.DuckDBPyConnection, sql: str) -> None:
    answer = session.sql(sql).to_arrow()
    rows = list(zip(*(column.to_pylist() for column in answer.columns), strict=True))
    expected = oracle.execute(sql).fetchall()
    assert difference(rows, expected, ordered_columns(sql, answer.column_names)) is None
