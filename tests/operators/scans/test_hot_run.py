"""Scans that are in memory as a whole: found in one step, put out rightly, and found missing when something goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import pystachio
from pystachio.operators.batch import Batch
from pystachio.operators.hot_columns import HotColumns
from pystachio.operators.project import ProjectTransform
from pystachio.operators.scans.hot_rows import HotRows
from pystachio.operators.scans.hot_run import put_out
from pystachio.operators.scans.pace import Pace
from pystachio.operators.scans.rows import Piece, RowReader, ScanRows
from pystachio.operators.scans.units import ScanUnits, Unit
from pystachio.runtime.streams import CpuStream

ROWS = 200_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files: the second one has other values, wider integers, and texts that the first one lacks."""
    path = tmp_path_factory.mktemp("files")
    for number, reach in enumerate((100, 1_000_000)):
        random = np.random.default_rng(number)
        values = random.integers(0, reach, ROWS)
        table = pa.table(
            {
                "id": np.arange(ROWS) + number * ROWS,
                "v": pa.array(values, mask=random.random(ROWS) < 0.1 * number),
                "t": [f"{'word' if number else 'text'} {value % 50}" for value in values.tolist()],
                "e": [None if value % 7 == 0 else f"maybe {value % 60}" for value in values.tolist()],
            }
        )
        pq.write_table(table, path / f"{number}.parquet", row_group_size=30_000)
    return path


@pytest.fixture
def session(folder: Path, tmp_path: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(threads=2, chunk_cache_dir=str(tmp_path)) as opened:
        opened.register("t", str(folder / "*.parquet"))
        yield opened


LONG = ["a" * 600_000, "b" * 600_001, "c" * 600_002]

STATEMENTS = (
    "select count(*) c, sum(v) s, min(id) i from t where v > 50",
    "select t, count(*) c, sum(v) s from t group by t order by t",
    "select id, v, t from t where v between 40 and 42 order by id limit 20",
    "select id, t from t order by t desc, id limit 7",
    "select t, id from t where t <> 'word 49' and id % 3 = 0 order by t desc, id desc limit 9 offset 2",
    "select e, id from t order by e nulls first, id desc limit 11",
    "select e, id from t order by e desc nulls last, id desc limit 11",
    "select id, t from t where nullif(t, 'text 9') <> 'text 8' and t < 'u' order by t desc, id desc limit 11",
    "select id, t from t where nullif(t, 'word 9') <> 'a' order by t desc, id desc limit 11",
    "select a.t, count(*) c from t a join t b on a.id = b.v where b.id < 1000 group by a.t order by a.t",
)


def expected(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as peer:
        peer.execute(f"create view t as from '{folder}/*.parquet'")
        return peer.execute(sql).fetchall()


def rows_of(found: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in found.to_pylist()]


@pytest.mark.parametrize("sql", STATEMENTS)
def test_the_third_run_looks_for_nothing_unit_by_unit(
    session: pystachio.Session, folder: Path, sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = expected(folder, sql)
    for _ in range(3):
        assert rows_of(session.sql(sql).to_arrow()) == wanted
    looked_for: list[Unit] = []
    one_by_one = HotColumns.find

    def find(self: HotColumns, unit: Unit, positions: tuple[int, ...]) -> Any:
        looked_for.append(unit)
        return one_by_one(self, unit, positions)

    monkeypatch.setattr(HotColumns, "find", find)
    assert rows_of(session.sql(sql).to_arrow()) == wanted
    late = len({unit.groups for unit in looked_for}) < 14
    assert not looked_for or ("limit" in sql and late), "only the few units of a top-N's last step"


@pytest.mark.parametrize("sql", STATEMENTS)
def test_what_is_dropped_is_read_again(
    session: pystachio.Session, folder: Path, sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any step, and between finding all and using it."""
    wanted, dropped = expected(folder, sql), []
    find_all = HotColumns.find_all

    def find(self: HotColumns, planned: ScanUnits, positions: tuple[int, ...]) -> Any:
        found = find_all(self, planned, positions)
        dropped.append(found is not None)
        self.cache.shrink_to(self.cache.nbytes // 2)
        return found

    monkeypatch.setattr(HotColumns, "find_all", find)
    for _ in range(4):
        assert rows_of(session.sql(sql).to_arrow()) == wanted
    assert not all(dropped)


def test_a_dictionary_that_has_grown_is_the_one_of_all_units(folder: Path, tmp_path: Path) -> None:
    with pystachio.connect(threads=2, chunk_cache_dir=str(tmp_path)) as session:
        session.register("t", str(folder / "*.parquet"))
        narrow = "select t, count(*) c from t where id < 90000 group by t order by t"
        whole = "select t, count(*) c from t group by t order by t"
        for _ in range(3):  # the first file's texts, then all
            assert rows_of(session.sql(narrow).to_arrow()) == expected(folder, narrow)
        for _ in range(3):
            for sql in (whole, narrow):
                assert rows_of(session.sql(sql).to_arrow()) == expected(folder, sql)


def test_texts_of_a_dictionary_that_overflowed_are_others(
    session: pystachio.Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same units of the same plan, from then on without codes."""
    sql = "select t, count(*) c from t where id > 5 group by t order by t"
    wanted, seen = expected(folder, sql), []
    find_all = HotColumns.find_all

    def find(self: HotColumns, planned: ScanUnits, positions: tuple[int, ...]) -> Any:
        seen.append(self.dictionaries)
        return find_all(self, planned, positions)

    monkeypatch.setattr(HotColumns, "find_all", find)
    for _ in range(3):
        assert rows_of(session.sql(sql).to_arrow()) == wanted
    for dictionary in seen[-1].values():
        dictionary.overflowed = True
    for _ in range(3):
        assert rows_of(session.sql(sql).to_arrow()) == wanted
    assert seen[0]
    assert not seen[-1]


def test_the_best_units_go_first(folder: Path, tmp_path: Path) -> None:
    with pystachio.connect(threads=1, chunk_cache_dir=str(tmp_path)) as session:  # two would take both files at once
        session.register("t", str(folder / "*.parquet"))
        for _ in range(4):
            result = session.sql("select id, t from t order by id desc limit 3")
            assert result.to_arrow().column("id").to_pylist() == [2 * ROWS - 1, 2 * ROWS - 2, 2 * ROWS - 3]
            (scan,) = (each for each in result.operators() if each.kind == "ScanTopN")
            assert scan.counts["row groups skipped by threshold"] == 7, "those of the first file"


class Recorded:
    """`operator.Output` that takes rows on the spot, or only when it is told."""

    def __init__(self, ctx: Any, waits: int) -> None:
        self.ctx = ctx
        self.waits = asyncio.Barrier(waits)
        self.small: list[bool] = []
        self.rows: list[int] = []
        self.last: list[bool] = []

    async def emit(self, produce: Any, *, last: Any = False, small: bool = False) -> None:
        self.small.append(small)
        await self.waits.wait()
        for rows in produce():
            while taken := rows.take():
                self.rows.append(sum(each.length for each in taken))
        self.last.append(last())


@pytest.mark.parametrize(
    ("length", "seconds", "workers", "jobs", "small"),
    [
        (10_000, None, 4, 1, False),
        (1_000_000, None, 4, 4, False),
        (1_000_000, None, 1, 1, False),
        (100_000, None, 4, 2, False),
        (1_000_000, 1e-4, 4, 1, True),
    ],
)
def test_as_many_jobs_as_rows_are_worth(
    harness: Any, length: int, seconds: float | None, workers: int, jobs: int, small: bool
) -> None:
    pace = Pace()
    if seconds is not None:
        pace.note(1 << 20, seconds)
    reader = RowReader(None, (), (), {}, (), 1000, pace=pace)
    rows = HotRows(workers, pace)
    for start in range(0, length, 5000):
        rows.add(ScanRows(reader, {0: torch.empty(9000)}, Piece(start, start + 5000, None), is_tested=False))  # type: ignore[dict-item]

    async def run() -> Recorded:
        ctx = harness.context(workers=workers)
        out = Recorded(ctx, jobs)
        async with asyncio.timeout(10):
            await put_out(ctx, out, rows)  # type: ignore[arg-type]
        return out

    out = asyncio.run(run())
    assert out.small == [small] * jobs
    assert sum(out.rows) == length
    assert sorted(out.last) == [False] * (jobs - 1) + [True], "told once"


@pytest.mark.parametrize(
    ("keys", "condition", "works_on_the_loop"),
    [
        ([3, 7, 8], "join d on t.v = d.k", True),
        ([3, 7, 8], "left join d on t.v = d.k", True),
        ([3, 7, 7], "join d on t.v = d.k", False),
        ([3, 7, 7], "where v in (select k from d)", True),
        ([3, 7, 8], "full join d on t.v = d.k", False),
        ([3, 7, 8], "join d on t.v < d.k", False),
        ([3, 7, 8], "join d on t.v = d.k where length(d.w) > t.id", False),
        (
            [3, 7, 8],
            "join (select k, x from d) d on t.v = d.k and cast(d.x + t.v as varchar) not like '2_'",
            False,
        ),
        ([3, 7, 8], "join (select k, x from d) d on t.v = d.k and d.x < t.v", True),
    ],
)
def test_brief_scans_through_joins_that_put_out_no_more_need_no_worker(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: list[int],
    condition: str,
    works_on_the_loop: bool,
) -> None:
    monkeypatch.setattr(Pace, "is_brief", lambda self, rows: True)
    monkeypatch.setattr("pystachio.operators.pipes.BRIEF_SECONDS", 60.0)  # on a machine that others use, too
    ran: list[str] = []
    run = CpuStream.run

    async def recorded(self: CpuStream, function: Any, *given: Any, **named: Any) -> Any:
        ran.append(function.__name__)
        return await run(self, function, *given, **named)

    pq.write_table(pa.table({"k": pa.array(keys, pa.int64()), "x": range(3), "w": LONG}), tmp_path / "d.parquet")
    statement = f"select count(*) n, sum(v) s from t {condition}"
    with pystachio.connect(threads=2, chunk_cache_dir=str(tmp_path)) as session, duckdb.connect() as database:
        for name, path in (("t", folder / "0.parquet"), ("d", tmp_path / "d.parquet")):
            session.register(name, path)
            database.register(name, pq.read_table(path))
        expected = database.sql(statement).fetchall()
        for _ in range(4):
            found = [tuple(row.values()) for row in session.sql(statement).to_arrow().to_pylist()]
            assert [(n, int(total)) for n, total in found] == [(n, int(total)) for n, total in expected]
        monkeypatch.setattr(CpuStream, "run", recorded)
        session.sql(statement).to_arrow()
    assert ("_pull" not in ran) is works_on_the_loop


def test_waiting_is_not_taken_for_work(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast rows are gone through says how many are worth a worker: what a thread waits for its turn does not."""
    noted: list[float] = []
    naps: list[float] = []
    process = ProjectTransform.process

    def sleepy(self: ProjectTransform, batch: Batch) -> Iterator[Batch]:
        began = time.monotonic()
        time.sleep(0.02)
        naps.append(time.monotonic() - began)
        yield from process(self, batch)

    monkeypatch.setattr(HotRows, "took", lambda _self, _taken, seconds: noted.append(seconds))
    monkeypatch.setattr(ProjectTransform, "process", sleepy)
    with pystachio.connect(threads=2, chunk_cache_dir=str(tmp_path), fusion=False) as session:
        session.register("t", folder / "0.parquet")
        for _ in range(3):
            naps.clear()
            assert session.sql("select id + 1 as n, t from t").to_arrow().num_rows == ROWS
    assert noted
    assert sum(noted) < 0.5 * sum(naps)
