"""Texts that are in memory, as they are kept there: against DuckDB, the first time, again, and in the next process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.errors import ResourceExhausted
from pystachio.operators.column import BlockOffsets
from pystachio.operators.kernels import block_offsets, native

ROWS = 60_000
STATEMENTS = {
    "like": "select count(*) as n, min(id) as i from words where note like '%ab%e%'",
    "not like, with nulls": "select count(*) as n from words where maybe not like '%a%'",
    "equal": "select id from words where note = (select max(note) from words)",
    "few": "select id, note, maybe, long from words where id in (0, 63, 64, 4095, 29999, 30000, 59999)",
    "none": "select note from words where id < 0",
    "first ones": "select id, note, long from words order by code, id limit 20",
    "first texts": "select note, id from words order by note desc, id limit 20",
    "all of them": "select id, note, maybe from words where code < 500",
    "groups": "select note, count(*) as n, sum(id) as s from words group by note having count(*) > 1",
    "joined": "select a.id, b.maybe from words a join words b on a.note = b.note and a.id < b.id where a.code < 20",
    "built": "select count(*) as n, sum(length(b.note)) as s from words a join words b on a.code = b.id",
    "outer": "select a.id, b.note from words a left join words b on a.id = b.code where a.id < 300",
    "lengths": "select sum(length(note)) as n, sum(length(maybe)) as m, max(length(long)) as l from words",
    "parts": "select substring(note, 2, 3) as p, count(*) as n from words group by substring(note, 2, 3)",
    "distinct": "select count(distinct note) as n, count(distinct maybe) as m from words",
    "union": "select note from words where code < 50 union all select maybe from words where code > 950",
    "window of rows": "select id, long from words order by id limit 40 offset 29980",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    draw = np.random.default_rng(5)
    letters = np.array(list("abcdeé "))
    notes = ["".join(letters[draw.integers(0, 7, length)]) for length in draw.integers(0, 40, ROWS)]
    words = pa.table(
        {
            "id": np.arange(ROWS),
            "code": draw.integers(0, 1000, ROWS),
            "note": notes,
            "maybe": pa.array(notes[::-1], mask=draw.random(ROWS) < 0.3),
            "long": [note * (4000 if number % 9999 == 0 else 1) for number, note in enumerate(notes)],
        }
    )
    pq.write_table(words, folder / "words.parquet", row_group_size=30_000)
    return folder


@pytest.fixture(scope="module")
def packed() -> Iterator[list[bool]]:
    """Whether each column that was offered to memory has offsets of two bytes there."""
    seen: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        pack = block_offsets.packed

        def watched(column, memory):  # type: ignore[no-untyped-def]
            found = pack(column, memory)
            seen.append(isinstance(getattr(found, "places", None), BlockOffsets))
            return found

        patch.setattr("pystachio.operators.hot_columns.packed", watched)
        yield seen


@pytest.fixture(scope="module")
def sessions(folder: Path, packed: list[bool]) -> Iterator[list[pystachio.Session]]:
    """One that has just begun, and one that finds what it has stored."""
    chunks = str(folder / "chunks")
    with pystachio.connect(threads=2, chunk_cache_dir=chunks) as first:
        first.register("words", folder / "words.parquet")
        for sql in STATEMENTS.values():
            first.sql(sql).to_arrow()
        with pystachio.connect(threads=2, chunk_cache_dir=chunks) as second:
            second.register("words", folder / "words.parquet")
            yield [first, second]


@pytest.mark.parametrize("name", STATEMENTS)
def test_as_duckdb(folder: Path, sessions: list[pystachio.Session], name: str) -> None:
    sql = STATEMENTS[name]
    with duckdb.connect() as database:
        database.execute(f"create view words as select * from '{folder / 'words.parquet'}'")
        expected = database.execute(sql).fetchall()
    for session in sessions:
        for _ in range(2):
            found = [tuple(row.values()) for row in session.sql(sql).to_arrow().to_pylist()]
            assert found == expected if "order by" in sql else sorted(found, key=str) == sorted(expected, key=str)


@pytest.mark.skipif(native.library() is None, reason="columns are kept as they are without the C library")
def test_that_they_are_kept_so(sessions: list[pystachio.Session], packed: list[bool]) -> None:
    assert sessions[1].sql(STATEMENTS["like"]).to_arrow().num_rows == 1
    assert any(packed)


def test_that_there_is_no_memory_to_keep_them_fails_no_query(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(column: object, memory: object) -> None:
        raise ResourceExhausted("the system has no memory for a read buffer", setting="memory")

    monkeypatch.setattr("pystachio.operators.hot_columns.packed", refuse)
    with pystachio.connect(threads=2, chunk_cache_dir=str(folder / "others")) as session:
        session.register("words", folder / "words.parquet")
        for _ in range(2):
            assert session.sql(STATEMENTS["like"]).to_arrow().num_rows == 1
