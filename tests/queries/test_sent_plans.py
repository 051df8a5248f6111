"""Statements whose plans went through bytes, and whose batches go through blocks between all tasks, against DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import pystachio
from pystachio.cli.oracle import disagreement
from pystachio.operators import pipeline
from pystachio.operators.batch import Batch, Schema
from pystachio.operators.exchanges.reader import BlockReader
from pystachio.operators.exchanges.writer import BlockWriter
from pystachio.operators.operator import Operator
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.plan_codec.codec import TableReference, decode_plan, encode_plan
from tests.queries.tables import duckdb_over, register, statements, write_tables


class BlockChannel:
    """A channel whose batches are sent as blocks."""

    def __init__(self, channel: Any, schema: Schema) -> None:
        self._channel = channel
        self._schema = schema
        self._writer = BlockWriter()
        self._reader = BlockReader()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def send(self, batch: Batch) -> None:
        nbytes = self._writer.size(batch)
        block = self._writer.write(batch)
        assert block.nbytes == nbytes
        await self._channel.send(self._reader.read(block, self._schema))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    write_tables(path)
    return path


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb_over(folder) as connection:
        yield connection


@pytest.fixture(scope="module", params=[{"batch_rows": 997}, {"dictionary_codes": False}], ids=["codes", "texts"])
def session(request: pytest.FixtureRequest, folder: Path) -> Iterator[pystachio.Session]:
    place = pipeline._Builder._place

    def place_with_blocks(self: Any, operator: Operator, pipe: Any) -> None:
        if pipe.stage is None and not isinstance(pipe.channel, BlockChannel):
            pipe.channel = BlockChannel(pipe.channel, operator.schema)
        place(self, operator, pipe)

    with pytest.MonkeyPatch.context() as patch, pystachio.connect(threads=2, **request.param) as session:
        register(session, folder)
        planned = session._plan

        def plan_sent(statement: str | bytes, parameters: Any) -> PhysicalPlan:
            tables = {TableReference.of(table): table for table in session._catalog.tables().values()}
            return decode_plan(encode_plan(planned(statement, parameters)), tables)

        patch.setattr(pipeline._Builder, "_place", place_with_blocks)
        patch.setattr(session, "_plan", plan_sent)
        yield session


@pytest.mark.parametrize("sql", statements())
def test_equals_duckdb(session: pystachio.Session, oracle: duckdb.DuckDBPyConnection, sql: str) -> None:
    assert disagreement(session.sql(sql).to_arrow(), oracle.execute(sql).fetchall(), sql) is None
