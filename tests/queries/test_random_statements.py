"""Random statements under random settings against DuckDB. What fails names its seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import pystachio
from pystachio.cli.oracle import Row, difference
from pystachio.errors import Unsupported
from tests.queries.random_sql import statement
from tests.queries.tables import duckdb_over, register, write_tables

BLOCKS = 6
STATEMENTS_PER_BLOCK = 40
MOST_ROWS = 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random")
    write_tables(path)
    return path


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb_over(folder) as connection:
        connection.execute("set default_null_order = 'nulls_last_on_asc_first_on_desc'")
        yield connection


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_statements(folder: Path, oracle: duckdb.DuckDBPyConnection, block: int) -> None:
    rng = random.Random(block)
    settings: dict[str, Any] = {
        "batch_rows": rng.choice([97, 997, 262_144]),
        "threads": rng.choice([1, 2]),
        "dictionary_codes": rng.random() < 0.5,
        "direct_addressing": rng.random() < 0.5,
        "join_reordering": rng.random() < 0.7,
    }
    compared = 0
    with pystachio.connect(**settings) as session:
        register(session, folder)
        for seed in range(block * STATEMENTS_PER_BLOCK, (block + 1) * STATEMENTS_PER_BLOCK):
            sql = statement(seed)
            try:
                expected = oracle.execute(sql).fetchmany(MOST_ROWS + 1)
            except duckdb.OutOfRangeException:
                continue
            if len(expected) > MOST_ROWS:
                continue
            try:
                answer = session.sql(sql).to_arrow()
            except Unsupported:
                continue
            rows = list(zip(*(column.to_pylist() for column in answer.columns), strict=True))
            assert wrong(rows, expected) is None, f"seed {seed}, {settings}: {sql}"
            compared += 1
        statistics = session.statistics()
        assert (statistics.leaks, statistics.reserved_bytes) == (0, 0)
    assert compared > STATEMENTS_PER_BLOCK // 2


def wrong(rows: list[Row], expected: list[Row]) -> str | None:
    return None if Counter(rows) == Counter(expected) else difference(rows, expected)
