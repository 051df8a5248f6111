"""The same answers whichever kernels are chosen: with and without the compiled library, direct addressing, fusion and
columns that are stored on disk, and with batches of a few rows. `test_statements` has the other settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

import pystachio
from pystachio.cli import tpch
from pystachio.cli.oracle import Row, disagreement
from pystachio.compiled import CompiledLibrary
from pystachio.operators.kernels import native
from tests.queries.tables import TABLES, duckdb_over, register, statements, write_tables

SCALE = 0.01


@dataclass(frozen=True)
class Choice:
    """`stored`: the columns come decoded from disk, where an earlier session put them. `batch_rows`: of TPC-H, of the
    smaller tables."""

    compiled: bool = True
    direct: bool = True
    fusion: bool = True
    stored: bool = False
    batch_rows: tuple[int, int] = (262_144, 262_144)


TINY = (1000, 31)
CHOICES = {
    "no compiled library": Choice(compiled=False),
    "no direct addressing": Choice(direct=False),
    "no fusion": Choice(fusion=False),
    "stored columns": Choice(stored=True),
    "tiny batches": Choice(batch_rows=TINY),
    "no fusion, tiny batches": Choice(fusion=False, batch_rows=TINY),
    "nothing but tiny batches": Choice(compiled=False, direct=False, fusion=False, batch_rows=TINY),
    "no library, stored columns": Choice(compiled=False, stored=True),
}


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tpch")
    tpch.generate(SCALE, folder)
    return folder


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    return folder


@pytest.fixture(scope="module")
def right_answers(orders: Path, edges: Path) -> dict[str, list[Row]]:
    """DuckDB's, by statement."""
    with duckdb_over(edges) as oracle:
        answers = {str(each.values[0]): oracle.execute(str(each.values[0])).fetchall() for each in statements()}
    with duckdb.connect() as oracle:
        for file in tpch.table_files(orders):
            oracle.execute(f"create view {file.stem} as from '{file}'")
        return answers | {sql: oracle.execute(sql).fetchall() for sql in tpch.statements().values()}


@pytest.fixture(scope="module", params=CHOICES.values(), ids=CHOICES.keys())
def choice(request: pytest.FixtureRequest) -> Iterator[Choice]:
    """In force for the whole process."""
    chosen: Choice = request.param
    with pytest.MonkeyPatch.context() as patch:
        if not chosen.compiled:
            patch.setattr(native, "load", lambda: CompiledLibrary(None, "left out by a test"))
            assert native.library() is None
        yield chosen


@pytest.fixture(scope="module")
def sessions(
    choice: Choice, orders: Path, edges: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[pystachio.Session, pystachio.Session]]:
    """Over TPC-H's tables and over the smaller ones."""
    cache = tmp_path_factory.mktemp("chunks")
    if choice.stored:
        with _connected(choice, 0, cache) as over_orders, _connected(choice, 1, cache) as over_edges:
            _register(over_orders, over_edges, orders, edges)
            stored = [over_orders.warm(file.stem).to_arrow() for file in tpch.table_files(orders)]
            stored += [over_edges.warm(name).to_arrow() for name in TABLES]
            assert sum(sum(table["bytes"].to_pylist()) for table in stored) > 0
    with _connected(choice, 0, cache) as over_orders, _connected(choice, 1, cache) as over_edges:
        _register(over_orders, over_edges, orders, edges)
        yield over_orders, over_edges
        chunks = over_orders.statistics().chunks
        assert (chunks is not None) == choice.stored


def _connected(choice: Choice, which: int, cache: Path) -> pystachio.Session:
    return pystachio.connect(
        threads=2,
        direct_addressing=choice.direct,
        fusion=choice.fusion,
        batch_rows=choice.batch_rows[which],
        chunk_cache_dir=cache,
        chunk_cache_bytes="256MiB" if choice.stored else 0,
    )


def _register(over_orders: pystachio.Session, over_edges: pystachio.Session, orders: Path, edges: Path) -> None:
    for file in tpch.table_files(orders):
        over_orders.register(file.stem, str(file))
    register(over_edges, edges)


@pytest.mark.slow
@pytest.mark.parametrize("sql", tpch.statements().values(), ids=tpch.statements().keys())
def test_tpch_equals_duckdb(
    sessions: tuple[pystachio.Session, pystachio.Session], right_answers: dict[str, list[Row]], sql: str
) -> None:
    assert disagreement(sessions[0].sql(sql).to_arrow(), right_answers[sql], sql) is None


@pytest.mark.slow
@pytest.mark.parametrize("sql", statements())
def test_edges_equal_duckdb(
    sessions: tuple[pystachio.Session, pystachio.Session], right_answers: dict[str, list[Row]], sql: str
) -> None:
    assert disagreement(sessions[1].sql(sql).to_arrow(), right_answers[sql], sql) is None
