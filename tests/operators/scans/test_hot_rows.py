"""Rows in memory, taken by several workers and put through programs many units at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import pystachio
from pystachio.operators.fusion import segment
from pystachio.operators.scans.hot_rows import HotRows
from pystachio.operators.scans.pace import MOST_ROWS, Pace
from pystachio.operators.scans.rows import Piece, RowReader, ScanRows

ROWS = 300_000
READER = RowReader(predicate=None, filters=(), output=(), dictionaries={}, bounds=(), batch_rows=1000)


def hot(lengths: list[int], workers: int, pace: Pace | None = None) -> HotRows:
    rows = HotRows(workers, pace or Pace())
    for number, length in enumerate(lengths):
        rows.add(ScanRows(READER, {number: torch.empty(0)}, Piece(7, 7 + length, None), is_tested=False))  # type: ignore[dict-item]
    return rows


def ranges(taken: list[ScanRows]) -> list[tuple[int, int, int]]:
    return [(next(iter(rows.columns)), rows.piece.start, rows.piece.stop) for rows in taken]


@pytest.mark.parametrize("seconds", [1e-4, 2e-3, 10.0])
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(
    "lengths", [[], [1], [0, 3, 0], [40_000] * 30, [5_000_000], [10] * 5000, [3_000_000, 5, 70_000]]
)
def test_every_row_is_taken_once_and_in_order(lengths: list[int], workers: int, seconds: float) -> None:
    pace = Pace()
    pace.note(1 << 20, seconds)
    rows, found, sizes = hot(lengths, workers, pace), [], []
    while taken := rows.take():
        found += ranges(taken)
        sizes.append(sum(each.length for each in taken))
    assert rows.is_empty
    assert rows.length == 0
    joined: list[list[int]] = []
    for number, start, stop in found:
        if joined and joined[-1][0] == number and joined[-1][2] == start:
            joined[-1][2] = stop
        else:
            joined.append([number, start, stop])
    assert joined == [[number, 7, 7 + length] for number, length in enumerate(lengths)]
    assert max(sizes, default=0) <= pace.most_rows + pace.least_rows
    assert all(later <= earlier + pace.least_rows for earlier, later in pairwise(sizes))


def test_several_threads_take_every_row_once() -> None:
    rows = hot([100_000] * 200, 4)

    def work() -> list[tuple[int, int, int]]:
        found = []
        while taken := rows.take():
            found += ranges(taken)
        return found

    with ThreadPoolExecutor(4) as threads:
        found = [part for done in [threads.submit(work) for _ in range(4)] for part in done.result()]
    assert sum(stop - start for _, start, stop in found) == 20_000_000
    assert len(set(found)) == len(found)


def test_few_rows_are_worth_one_job() -> None:
    pace = Pace()
    least = pace.least_rows
    assert [pace.jobs_for(rows) for rows in (0, 1, least, least + 1, 4 * least)] == [1, 1, 1, 2, 4]
    assert [hot([rows], 2, pace).jobs for rows in (0, least + 1)] == [1, 2]


def test_quick_rows_are_taken_in_larger_turns() -> None:
    """The least turn takes about half a millisecond, within bounds; what is known of one run holds for the next."""
    slow, quick, known = Pace(), Pace(), Pace()
    unknown = known.least_rows
    slow.note(1 << 20, 1.0)
    quick.note(1 << 20, 1e-6)
    known.note(1 << 20, (1 << 20) * 5e-9)
    assert slow.least_rows == unknown
    assert quick.least_rows == 4 * unknown
    assert known.least_rows == pytest.approx(100_000, rel=0.01)
    known.note(3, 10.0)
    assert known.least_rows == pytest.approx(100_000, rel=0.01), "a few rows tell nothing"
    known.note(1 << 20, (1 << 20) * 3e-9)
    assert known.least_rows == pytest.approx(125_000, rel=0.01), "the last ones count as much as all before"
    rows = hot([1_000_000], 2, quick)
    rows.took(rows.take(), 1.0)
    assert quick.least_rows == unknown


def test_turns_of_quick_rows_are_bounded_by_time() -> None:
    unknown, slow, quick, very_quick = Pace(), Pace(), Pace(), Pace()
    slow.note(1 << 20, 1.0)
    quick.note(1 << 20, (1 << 20) * 1e-9)
    very_quick.note(1 << 20, 1e-6)
    assert [pace.most_rows for pace in (unknown, slow, very_quick)] == [MOST_ROWS, MOST_ROWS, 4 * MOST_ROWS]
    assert quick.most_rows == pytest.approx(3_000_000, rel=0.01)
    assert quick.turn(100_000_000, 2) == quick.most_rows


def test_what_is_known_to_be_brief_is_not_worth_a_worker() -> None:
    unknown, brief, long = Pace(), Pace(), Pace()
    brief.note(1 << 20, 1e-4)
    long.note(1 << 20, 1e-2)
    assert [hot([1_000_000], 2, pace).is_small for pace in (unknown, brief, long)] == [False, True, False]
    assert not hot([10_000_000], 2, brief).is_small


def test_workers_take_halves_of_what_is_left() -> None:
    rows, sizes = hot([1_000_000], 2), []
    while taken := rows.take():
        sizes.append(sum(each.length for each in taken))
    assert sizes == [500_000, 250_000, 125_000, 125_000]
    assert Pace().turn(900_000, 2, narrows=True) == 300_000, "less where each turn tells what the next one needs"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Row groups that look different: some without NULLs, some only of them, texts of all lengths."""
    folder = tmp_path_factory.mktemp("hot")
    path = folder / "t.parquet"
    numbers = range(ROWS)
    columns = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "maybe": pa.array([None if 20_000 <= i < 60_000 and i % 3 else i % 1000 for i in numbers], pa.int32()),
            "never": pa.array([None if 100_000 <= i < 110_000 else i / 4 for i in numbers], pa.float64()),
            "text": pa.array([None if i % 11 == 0 else "x" * (i % 13) + str(i) for i in numbers]),
            "word": pa.array([f"word {i * 7 % 90}" for i in numbers]),
            "price": pa.array([i % 777 for i in numbers], pa.int32()).cast(pa.decimal128(12, 0)),
        }
    )
    pq.write_table(columns, path, row_group_size=10_000)
    return path


STATEMENTS = [
    "select id, text, maybe from t where id % 1000 = 3",
    "select * from t where maybe is null and id % 7 = 0",
    "select word, count(*), sum(price), min(never), max(text) from t group by word",
    "select maybe, count(*) from t group by maybe",
    "select sum(price), count(maybe), count(never) from t where text like '%9'",
    "select a.text, b.id from t a join t b on a.id = b.maybe where b.id < 30000 and a.word = 'word 7'",
    "select id, text from t where id >= 0",
    "select count(distinct text) from t",
]


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("fusion", [True, False])
def test_answers_from_memory_are_those_of_the_first_run(
    table: Path, tmp_path: Path, threads: int, fusion: bool
) -> None:
    oracle = duckdb.connect()
    oracle.execute(f"create view t as select * from '{table}'")
    with pystachio.connect(threads=threads, fusion=fusion, chunk_cache_dir=str(tmp_path)) as session:
        session.register("t", table)
        for sql in STATEMENTS:
            wanted = sorted(map(str, oracle.execute(sql).fetchall()))
            for _ in range(4):
                found = session.sql(sql).to_arrow()
                assert sorted(map(str, zip(*(column.to_pylist() for column in found.columns)))) == wanted, sql


def test_rows_that_are_put_out_in_several_runs(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that go through as they are stay beside those that are computed."""
    monkeypatch.setattr(segment, "_MOST_PUT_OUT", 2048)
    oracle = duckdb.connect()
    oracle.execute(f"create view t as select * from '{table}'")
    with pystachio.connect(threads=2, chunk_cache_dir=str(tmp_path)) as session:
        session.register("t", table)
        for sql in ("select id + 1, text, word, maybe, price * 2 from t", "select text, id from t where id % 3 = 1"):
            wanted = sorted(map(str, oracle.execute(sql).fetchall()))
            for _ in range(2):
                found = session.sql(sql).to_arrow()
                rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
                assert sorted(map(str, rows)) == wanted, sql


@pytest.mark.parametrize("threads", [1, 2])
def test_a_limit_ends_a_scan_of_memory(table: Path, tmp_path: Path, threads: int) -> None:
    with pystachio.connect(threads=threads, chunk_cache_dir=str(tmp_path)) as session:
        session.register("t", table)
        for _ in range(3):
            assert session.sql("select id, text from t limit 5 offset 3").to_arrow().num_rows == 5
            assert (
                session.sql("select * from (select id from t limit 3) a, (select word from t limit 4) b")
                .to_arrow()
                .num_rows
                == 12
            )
