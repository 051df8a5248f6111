"""All statements on clusters of several sizes, with exchanges of every kind, against DuckDB on the same files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pystachio.cli.oracle import disagreement
from pystachio.io_scheduler.devices.ucx_library import ucx_report
from pystachio.planner.distribution.distribution import Preference
from pystachio.session import Session
from tests.cluster.local_cluster import local_cluster, session_on
from tests.queries.tables import duckdb_over, register, statements, write_tables

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "one node": {"count": 1},
    "two nodes": {"count": 2},
    "three nodes that shuffle, over ucx": {"count": 3, "transport": "ucx", "preference": Preference.SHUFFLE},
    "four nodes that shuffle tiny batches": {"count": 4, "preference": Preference.SHUFFLE, "batch_rows": 61},
    "three nodes that broadcast, without codes": {
        "count": 3,
        "preference": Preference.BROADCAST,
        "dictionary_codes": False,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    write_tables(path)
    return path


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb_over(folder) as connection:
        yield connection


@pytest.fixture(scope="module", params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def session(request: pytest.FixtureRequest, folder: Path) -> Iterator[Session]:
    if request.param.get("transport") == "ucx" and ucx_report().version is None:
        pytest.skip("ucxx is not installed")
    with local_cluster(**request.param) as nodes:
        session = session_on(nodes[-1])
        register(session, folder)
        yield session
        for node in nodes:
            left = node.statistics()
            assert (left.running_plans, left.reserved_bytes, left.leaks) == (0, 0, 0), node.name


@pytest.mark.parametrize("sql", statements())
def test_equals_duckdb(session: Session, oracle: duckdb.DuckDBPyConnection, sql: str) -> None:
    assert disagreement(session.sql(sql).to_arrow(), oracle.execute(sql).fetchall(), sql) is None
