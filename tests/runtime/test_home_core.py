"""Where workers are: each on a core of its own, if each can have one, and never where somebody forbade it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pystachio.runtime.clock import SystemClock
from pystachio.runtime.home_core import HomeCore
from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.streams import CpuStream
from pystachio.runtime.worker_pool import WorkerPool


class Cores:
    """The cores of one thread, as the operating system knows them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: set[int]) -> None:
        self.now = allowed
        self.refused = False
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(self.now), raising=False)
        monkeypatch.setattr(os, "sched_setaffinity", self.set, raising=False)
        monkeypatch.setattr("pystachio.runtime.home_core._KNOWS_CORES", True)

    def set(self, thread: int, cores: set[int]) -> None:
        assert thread == 0, "its own"
        if self.refused:
            raise PermissionError("not in this container")
        self.now = set(cores)


def test_a_thread_waits_and_runs_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch, {2, 5, 7})
    for number, own in enumerate((2, 5, 7)):
        cores.now = {2, 5, 7}
        home = HomeCore(number, 3)
        for now in range(3):
            home.enter()
            assert cores.now == {own}
            home.leave(now)
            assert cores.now == {own}
            home.ran(now + 0.5, 0.5, 0.4)


def test_a_thread_whose_core_others_use_runs_anywhere_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch, {0, 1})
    home = HomeCore(0, 2)
    home.enter()
    home.leave(10.0)
    home.ran(10.02, 0.02, 0.009)  # it had less than half of it
    home.enter()
    assert cores.now == {0}, "it still waits there"
    for now in (10.03, 10.9):
        home.leave(now)
        assert cores.now == {0, 1}
        home.ran(now, 0.02, 0.02)
        home.enter()
        assert cores.now == {0}
    home.leave(11.1)
    assert cores.now == {0}, "and is back"


def test_waiting_for_the_interpreter_moves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch, {0, 1})
    home = HomeCore(0, 2)
    home.enter()
    home.leave(1.0)
    home.ran(1.004, 0.004, 0.0001)
    home.leave(1.004)
    assert cores.now == {0}


@pytest.mark.parametrize(
    ("number", "workers", "allowed"), [(0, 1, {3}), (0, 2, {0, 1, 2}), (1, 4, {0, 1}), (2, 2, {0, 1})]
)
def test_not_every_worker_has_a_core(
    monkeypatch: pytest.MonkeyPatch, number: int, workers: int, allowed: set[int]
) -> None:
    """One core, fewer or more workers than cores, and a thread beside the pool's own."""
    cores = Cores(monkeypatch, allowed)
    home = HomeCore(number, workers)
    home.enter()
    assert cores.now == allowed
    home.ran(1.0, 1.0, 0.0)
    home.leave(1.0)
    assert cores.now == allowed


def test_who_changes_the_cores_from_outside_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch, {0, 1})
    working, waiting = HomeCore(0, 2), HomeCore(1, 2)
    cores.now = {1}  # while the first one works
    working.enter()
    assert cores.now == {1}
    cores.now = {0, 1}
    waiting.enter()
    cores.now = {0}  # while the other one waits
    waiting.ran(1.0, 1.0, 0.0)
    waiting.leave(1.0)
    assert cores.now == {0}
    for home in (working, waiting):
        cores.now = {0, 1}
        home.enter()
        assert cores.now == {0, 1}, "for good"


def test_who_wakes_one_sees_that_he_is_on_its_core(monkeypatch: pytest.MonkeyPatch) -> None:
    Cores(monkeypatch, {0, 1})
    monkeypatch.setattr("pystachio.runtime.home_core._running_core", lambda: 1)
    assert [HomeCore(number, 2).is_here() for number in (0, 1)] == [False, True]
    assert not HomeCore(2, 2).is_here()
    monkeypatch.setattr("pystachio.runtime.home_core._running_core", None)
    assert not HomeCore(1, 2).is_here()


def test_a_system_that_refuses_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch, {0, 1})
    cores.refused = True
    home = HomeCore(0, 2)
    home.enter()
    cores.refused = False
    home.enter()
    home.leave(1.0)
    assert cores.now == {0, 1}


def test_a_system_without_such_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pystachio.runtime.home_core._KNOWS_CORES", False)
    home = HomeCore(0, 2)
    home.enter()
    home.leave(1.0)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not tell")
async def test_the_workers_of_a_pool_are_apart() -> None:
    everywhere = os.sched_getaffinity(0)
    pool = WorkerPool(len(everywhere), name="homely")
    stream = CpuStream(pool, PlanEntry("p", 1, 1), OperatorMetrics("operator", SystemClock()))
    assert len(await stream.run(os.sched_getaffinity, 0)) == 1
    if len(everywhere) > 1:
        waiting = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("homely")]
        deadline = time.monotonic() + 10
        while sorted(map(sorted, map(cores_of, waiting))) != [[core] for core in sorted(everywhere)]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)
    await pool.close()
    assert os.sched_getaffinity(0) == everywhere, "nobody else's"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not tell")
async def test_a_thread_that_ends_leaves_its_core_to_the_next() -> None:
    """Threads that were started beside others, for urgent jobs, end with whoever has nothing to do."""
    workers = len(os.sched_getaffinity(0))
    pool = WorkerPool(workers)
    for _ in range(5):
        gate = threading.Event()
        plans = [PlanEntry(f"{priority}", priority, 1) for priority in (2, 0) for _ in range(workers)]
        streams = [CpuStream(pool, plan, OperatorMetrics("operator", SystemClock())) for plan in plans]
        jobs = [asyncio.create_task(stream.run(gate.wait)) for stream in streams]
        while pool.statistics().running < len(jobs):
            await a_moment()
        gate.set()
        await asyncio.gather(*jobs)
        while len(pool._threads) > workers:
            await a_moment()
        numbers = [thread.home.number for thread in pool._threads]
        assert sorted({*numbers, *pool._free_homes} - {workers}) == list(range(workers)), (
            "none is lost, none taken twice"
        )
    await pool.close()


async def a_moment() -> None:
    await asyncio.sleep(0.001)


def cores_of(thread: int | None) -> set[int]:
    assert thread is not None
    return os.sched_getaffinity(thread)


_A_SESSION = """
import os, sys, threading
import pyarrow as pa, pyarrow.parquet as pq
import pystachio

rows = 300_000
table = pa.table({
    "number": range(rows),
    "text": [f"text {n * 7919 % rows} of some length" for n in range(rows)],
    "few": [f"{n % 7}" for n in range(rows)],
})
path = os.path.join(sys.argv[1], "table.parquet")
encodings = {"text": "DELTA_BYTE_ARRAY", "number": "DELTA_BINARY_PACKED"}
pq.write_table(table, path, use_dictionary=["few"], column_encoding=encodings, row_group_size=50_000)
everywhere = os.sched_getaffinity(0)
with pystachio.connect(threads=len(everywhere)) as session:
    session.register("t", path)
    for statement in (
        "select few, count(distinct text), avg(number) from t group by few order by few",
        "select upper(substring(text, 1, 8)) as head, count(*) from t where text like '%9%some%' group by 1",
        "select count(*) from t where regexp_like(text, '1.*2.*3') and text in ('a', 'b', 'text 7 of some length')",
        "select a.text from t a join t b on a.number = b.number where split_part(b.text, ' ', 2) like '99%' order by 1",
        "select cast(few as int) + 1 as more, max(text || few), min(upper(text)) from t group by 1 order by 1",
    ):
        session.sql(statement).to_arrow()
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    for thread in map(int, os.listdir("/proc/self/task")):
        if os.sched_getaffinity(thread) != everywhere:
            print(names.get(thread, "one of a library"))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="the system does not tell")
def test_no_other_thread_of_the_process_stays_on_one_core(tmp_path: Path) -> None:
    """A thread that a library starts on a worker would have the worker's core for good."""
    run = subprocess.run([sys.executable, "-c", _A_SESSION, tmp_path], capture_output=True, text=True, check=True)
    alone = {name.rsplit("-", 1)[0] for name in run.stdout.splitlines()}
    assert alone == ({"pystachio-worker"} if len(os.sched_getaffinity(0)) > 1 else set())
