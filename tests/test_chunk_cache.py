"""Columns that are kept between queries: not read again, never stale, and given back when memory is needed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.errors import DataError
from pystachio.operators.chunks.cache import ChunkCache
from pystachio.operators.table import ParquetFile

ROWS = 20_000
QUERY = "select word, count(*), sum(id), max(text) from t where id % 3 = 0 group by word order by word"


def rows(first: int = 0) -> pa.Table:
    """Numbers, codes, texts and NULLs."""
    numbers = range(first, first + ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "word": pa.array([None if i % 13 == 0 else f"word {i % 7}" for i in numbers]),
            "text": pa.array([f"{i * 7919 % 100_003:06} is a text" for i in numbers]),
        }
    )


def write(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, row_group_size=3000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "t.parquet", rows())
    return tmp_path


@pytest.fixture
def session(folder: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(threads=2) as session:
        session.register("t", folder / "t.parquet")
        yield session


def answer(session: pystachio.Session, sql: str = QUERY) -> tuple[list[dict[str, object]], int]:
    """The rows, and the bytes that were read for them."""
    result = session.sql(sql)
    table = result.to_arrow()
    return table.to_pylist(), result.metrics().bytes_read


def test_the_second_query_reads_nothing(session: pystachio.Session) -> None:
    first, read = answer(session)
    again, read_again = answer(session)
    assert again == first
    assert read > 0
    assert read_again == 0
    analyzed = session.sql(QUERY).explain(analyze=True)
    assert "bytes from memory" in analyzed


def test_only_columns_that_are_new_are_read(session: pystachio.Session, folder: Path) -> None:
    answer(session, "select sum(id) from t")
    _, read = answer(session, "select sum(id), max(text) from t")
    with pystachio.connect(threads=2, chunk_cache=False) as other:
        other.register("t", folder / "t.parquet")
        assert read == answer(other, "select sum(length(text)) from t")[1] > 0


def test_it_can_be_switched_off(folder: Path) -> None:
    with pystachio.connect(threads=2, chunk_cache=False) as session:
        session.register("t", folder / "t.parquet")
        assert answer(session)[1] == answer(session)[1] > 0


def test_a_file_that_is_replaced_is_read_anew(session: pystachio.Session, folder: Path) -> None:
    first, _ = answer(session)
    write(folder / "new.parquet", rows(first=1))
    os.replace(folder / "new.parquet", folder / "t.parquet")
    second, read = answer(session)
    assert read > 0
    with pystachio.connect(threads=1, chunk_cache=False) as other:
        other.register("t", folder / "t.parquet")
        assert second == answer(other)[0]
    assert second != first


def test_a_file_of_two_tables_is_right_in_both(session: pystachio.Session, folder: Path) -> None:
    """The other table's values need wider numbers and have other words."""
    alone, _ = answer(session)
    write(folder / "u.parquet", rows(first=1 << 40))
    session.register("both", [folder / "t.parquet", folder / "u.parquet"])
    both = QUERY.replace("from t", "from both")
    seen = [answer(session, both)[0], answer(session, both)[0]]
    assert answer(session)[0] == alone
    with pystachio.connect(threads=1, chunk_cache=False) as other:
        other.register("both", [folder / "t.parquet", folder / "u.parquet"])
        expected, _ = answer(other, both)
    assert seen == [expected, expected]


def test_codes_stay_right_when_the_dictionary_grows(folder: Path) -> None:
    """The first query sees some row groups' words only; the second adds those of others."""
    words = [f"w{i // 3000}" for i in range(ROWS)]
    write(folder / "w.parquet", pa.table({"id": range(ROWS), "word": words}))
    with pystachio.connect(threads=2) as session:
        session.register("w", folder / "w.parquet")
        for most in (2000, 9000, ROWS, 2000):
            found, _ = answer(
                session, f"select word, count(*) as n from w where id < {most} group by word order by word"
            )
            expected = {f"w{group}": min(3000, most - 3000 * group) for group in range(-(-most // 3000))}
            assert {row["word"]: row["n"] for row in found} == expected


def test_memory_that_plans_need_is_given_back(folder: Path) -> None:
    with pystachio.connect(threads=2, memory="16MiB") as session:
        session.register("t", folder / "t.parquet")
        answer(session)
        wide = "select count(*) from t a join t b on a.text = b.text"
        assert answer(session, wide)[0][0] == {"count(*)": ROWS}


def test_many_at_once(session: pystachio.Session) -> None:
    expected, _ = answer(session)
    results = [session.sql(QUERY) for _ in range(12)]
    assert [result.to_arrow().to_pylist() for result in results] == [expected] * 12


def test_a_file_that_is_written_in_place_while_it_is_read_is_an_error(folder: Path) -> None:
    """Its rows would be some of the old ones and some of the new."""
    path, other = folder / "n.parquet", folder / "other.parquet"
    for value, name in ((1.0, path), (2.0, other)):
        table = pa.table({"x": pa.array([value] * 1_000_000)})
        pq.write_table(table, name, row_group_size=50_000, compression="none", use_dictionary=False)
    with pystachio.connect(threads=1, emulated=[{"path": str(folder), "rate": "10MB/s"}]) as session:
        session.register("n", path)
        result = session.sql("select sum(x) from n")
        while not result.metrics().bytes_read:
            time.sleep(0.01)
        with path.open("r+b") as file:
            file.write(other.read_bytes())
        with pytest.raises(DataError, match="changed while"):
            result.to_arrow()


def test_what_is_stored_of_many_small_files_is_found_out_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    look = ChunkCache.look

    def counted(cache: ChunkCache, files: Iterable[ParquetFile]) -> None:
        files = tuple(files)
        looked.append(len(files))
        look(cache, files)

    monkeypatch.setattr(ChunkCache, "look", counted)
    for number in range(150):
        pq.write_table(pa.table({"id": [number, number]}), tmp_path / f"{number}.parquet")
    with pystachio.connect(threads=2, chunk_cache_dir=tmp_path / "chunks", chunk_cache_bytes="auto") as session:
        session.register("t", tmp_path / "*.parquet")
        assert answer(session, "select sum(id), count(*) from t")[0][0]["count(*)"] == 300
    # Beside them a few are looked at as soon as they are registered, one by one.
    together = [count for count in looked if count > 1]
    assert len(together) <= 3
    assert sum(together) >= 80
