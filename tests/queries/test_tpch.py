"""TPC-H's 22 statements against DuckDB, on files of two writers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

import pystachio
from pystachio.cli.oracle import DuckDB, difference, ordered_columns

QUERIES = sorted((Path(pystachio.__file__).parent / "cli" / "tpch").glob("q*.sql"))
SCALE = "0.02"


@dataclass(frozen=True)
class Loaded:
    session: pystachio.Session
    oracle: DuckDB


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tpch")
    generator = Path(sys.executable).with_name("tpchgen-cli")
    subprocess.run([generator, "parquet", "-s", SCALE, "-o", folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def rewritten(generated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tpch-nullable")
    for source in generated.glob("*.parquet"):
        duckdb.sql(f"copy (from '{source}') to '{folder / source.name}' (format parquet, row_group_size 10000)")
    return folder


@pytest.fixture(scope="session", params=["generated", "rewritten"])
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    files = sorted(request.getfixturevalue(request.param).glob("*.parquet"))
    oracle = DuckDB(files)
    with pystachio.connect(threads=2, batch_rows=10_000) as session:
        for file in files:
            session.register(file.stem, str(file))
        yield Loaded(session, oracle)
    oracle.close()


@pytest.mark.parametrize("path", QUERIES, ids=lambda path: path.stem)
def test_equals_duckdb(loaded: Loaded, path: Path) -> None:
    sql = path.read_text()
    answer = loaded.session.sql(sql).to_arrow()
    rows = list(zip(*(column.to_pylist() for column in answer.columns), strict=True))
    assert difference(rows, loaded.oracle.rows(sql), ordered_columns(sql, answer.column_names)) is None
