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
from pystachio.runtime.home_core import CORES_TO_STAY, WANDERING_SECONDS, Delays, HomeCore
from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.streams import CpuStream
from pystachio.runtime.worker_pool import WorkerPool


def delays_are_counted() -> bool:
    delays = Delays.of_this_thread()
    if delays is not None:
        delays.close()
    return delays is not None


class Cores:
    """The cores of one thread, and how long it has waited there, as the operating system knows them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: set[int]) -> None:
        self.now = allowed
        self.refused = False
        self.waited = 0.0
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(self.now), raising=False)
        monkeypatch.setattr(os, "sched_setaffinity", self.set, raising=False)
        monkeypatch.setattr("pystachio.runtime.home_core._KNOWS_CORES", True)
        monkeypatch.setattr(Delays, "of_this_thread", lambda: self)

    def set(self, thread: int, cores: set[int]) -> None:
        assert thread == 0, "its own"
        if self.refused:
            raise PermissionError("not in this container")
        self.now = set(cores)

    def since_last(self) -> float:
        waited, self.waited = self.waited, 0.0
        return waited

    def close(self) -> None:
        pass


def test_of_two_cores_a_thread_waits_and_runs_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch, {2, 5})
    for number, own in enumerate((2, 5)):
        cores.now = {2, 5}
        home = HomeCore(number, 2)
        for now in range(3):
            home.before_wait(now)
            assert cores.now == {own}
            home.before_job(now)
            assert cores.now == {own}
            cores.waited = 0.02  # a fifth
            home.after_job(now, 0.08)
        home.close()


def test_of_more_cores_a_thread_waits_on_its_own_and_runs_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch, {2, 5, 7})
    homes = [HomeCore(number, 3) for number in range(3)]
    waited = []
    for home in homes:
        home.before_wait(1.0)
        waited.append(set(cores.now))
        for _ in range(2):
            home.before_job(1.0)
            assert cores.now == {2, 5, 7}
            cores.waited = 1.0
            home.after_job(1.0, 1.0)
    assert waited == [{2}, {5}, {7}]


def test_a_thread_whose_core_others_use_is_anywhere_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch, {0, 1})
    home = HomeCore(0, 2)
    home.before_wait(10.0)
    for now in (10.0, 10.01):  # no job waits long, all together do
        home.before_job(now)
        assert cores.now == {0}
        cores.waited = 0.004
        home.after_job(now, 0.003)
    for now in (10.1, 10.9):
        home.before_job(now)
        assert cores.now == {0, 1}, "also the next of a row of jobs"
        home.after_job(now, 0.02)
        home.before_wait(now)
        assert cores.now == {0, 1}, "where others are it would wait for them to wake up"
    home.before_wait(11.1)
    home.before_job(11.1)
    assert cores.now == {0}, "and is back"


def test_short_waits_move_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch, {0, 1})
    home = HomeCore(0, 2)
    home.before_wait(1.0)
    for _ in range(5):
        home.before_job(1.0)
        assert cores.now == {0}
        cores.waited = 0.002
        home.after_job(1.0, 0.0001)


def test_who_cannot_know_whether_others_use_its_core_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch, {0, 1})
    monkeypatch.setattr(Delays, "of_this_thread", lambda: None)
    home = HomeCore(0, 2)
    for _ in range(2):
        home.before_wait(1.0)
        assert cores.now == {0}
        home.before_job(1.0)
        assert cores.now == {0, 1}
        home.after_job(1.0, 0.1)
    home.close()


@pytest.mark.parametrize(
    ("number", "workers", "allowed"), [(0, 1, {3}), (0, 2, {0, 1, 2}), (1, 4, {0, 1}), (2, 2, {0, 1})]
)
def test_not_every_worker_has_a_core(
    monkeypatch: pytest.MonkeyPatch, number: int, workers: int, allowed: set[int]
) -> None:
    """One core, fewer or more workers than cores, and a thread beside the pool's own."""
    cores = Cores(monkeypatch, allowed)
    home = HomeCore(number, workers)
    home.before_wait(1.0)
    assert cores.now == allowed
    home.before_job(1.0)
    home.after_job(1.0, 1.0)
    assert cores.now == allowed


@pytest.mark.parametrize("allowed", [{0, 1}, {0, 1, 2}])
def test_who_changes_the_cores_from_outside_has_the_last_word(
    monkeypatch: pytest.MonkeyPatch, allowed: set[int]
) -> None:
    cores = Cores(monkeypatch, allowed)
    working, waiting = HomeCore(0, len(allowed)), HomeCore(1, len(allowed))
    cores.now = {1}  # while the first one works
    working.before_wait(1.0)
    assert cores.now == {1}
    cores.now = allowed
    waiting.before_wait(1.0)
    cores.now = {0}  # while the other one waits
    waiting.before_job(1.0)
    assert cores.now == {0}
    for home in (working, waiting):
        assert not home.is_here()
        cores.now = allowed
        home.before_wait(1.0)
        assert cores.now == allowed, "for good"


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
    home.before_wait(1.0)
    cores.refused = False
    home.before_wait(1.0)
    home.before_job(1.0)
    assert cores.now == {0, 1}


def test_a_system_without_such_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pystachio.runtime.home_core._KNOWS_CORES", False)
    home = HomeCore(0, 2)
    home.before_wait(1.0)
    home.before_job(1.0)
    home.after_job(1.0, 1.0)
    home.close()


@pytest.mark.skipif(not delays_are_counted(), reason="the system does not count them")
def test_delays_are_those_of_the_thread_behind_others() -> None:
    """Beside a thread that computes on the only core that both may use, and alone."""
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(flush=True)\nwhile True: pass"
    beside: list[float] = []
    alone: list[float] = []

    def compute() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        delays = Delays.of_this_thread()
        assert delays is not None
        time.sleep(0.05)
        alone.append(delays.since_last())
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            delays.since_last()
            until = time.thread_time() + 0.2
            while time.thread_time() < until:
                pass
            beside.append(delays.since_last())
            other.kill()
        delays.close()

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert beside[0] > 0.05
    assert alone[0] < beside[0]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not tell")
async def test_the_workers_of_a_pool_are_apart() -> None:
    everywhere = os.sched_getaffinity(0)
    pool = WorkerPool(len(everywhere), name="homely")
    stream = CpuStream(pool, PlanEntry("p", 1, 1), OperatorMetrics("operator", SystemClock()))
    stays = 1 < len(everywhere) <= CORES_TO_STAY and delays_are_counted()
    assert len(await stream.run(os.sched_getaffinity, 0)) == (1 if stays else len(everywhere))
    if len(everywhere) > 1:
        waiting = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("homely")]
        deadline = time.monotonic() + 10
        while sorted(map(sorted, map(cores_of, waiting))) != [[core] for core in sorted(everywhere)]:
            assert time.monotonic() < deadline
            await stream.run(a_short_job)  # one that others kept waiting comes back
            await a_moment()
    await pool.close()
    assert os.sched_getaffinity(0) == everywhere, "nobody else's"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not tell")
async def test_workers_that_only_wait_for_others_have_no_home() -> None:
    everywhere = os.sched_getaffinity(0)
    pool = WorkerPool(len(everywhere), name="homeless", homes=False)
    stream = CpuStream(pool, PlanEntry("p", 1, 1), OperatorMetrics("operator", SystemClock()))
    assert await stream.run(os.sched_getaffinity, 0) == everywhere
    assert all(thread.home.number == len(everywhere) for thread in pool._threads)
    await pool.close()


async def test_a_worker_that_others_keep_waiting_goes_elsewhere_in_a_row_of_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One worker has a home here, whatever the machine's cores, and is told that it has waited for half of its time."""

    class Kept(HomeCore):
        def __init__(self, number: int, workers: int) -> None:
            super().__init__(number, workers)
            self._home, self._everywhere, self._stays = {-1}, {-2}, True

    now = {-2}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(now))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: (now.clear(), now.update(cores)))
    monkeypatch.setattr("pystachio.runtime.worker_pool.HomeCore", Kept)
    monkeypatch.setattr(Delays, "of_this_thread", lambda: Waited(0.02))
    pool = WorkerPool(1)
    stream = CpuStream(pool, PlanEntry("p", 1, 1), OperatorMetrics("operator", SystemClock()))
    where = await asyncio.gather(*[stream.run(lambda: set(now)) for _ in range(3)])
    assert where == [{-1}, {-2}, {-2}]
    await asyncio.sleep(WANDERING_SECONDS)
    await stream.run(a_short_job)
    assert await stream.run(lambda: set(now)) == {-1}, "back"
    await pool.close()


class Waited:
    """So many seconds in the first job, and before it not counted."""

    def __init__(self, seconds: float) -> None:
        self._told = [seconds, 1.0]

    def since_last(self) -> float:
        return self._told.pop() if self._told else 0.0

    def close(self) -> None:
        pass


def a_short_job() -> None:
    pass


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
from contextlib import suppress
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
with pystachio.connect(threads=len(everywhere), device="cpu") as session:
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
        with suppress(ProcessLookupError):  # it has ended
            if os.sched_getaffinity(thread) != everywhere:
                print(names.get(thread, "one of a library"))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="the system does not tell")
def test_a_session_leaves_no_other_thread_of_the_process_on_one_core(tmp_path: Path) -> None:
    """A thread that a library starts on a worker would have the worker's core for good."""
    run = subprocess.run([sys.executable, "-c", _A_SESSION, tmp_path], capture_output=True, text=True, check=True)
    alone = {name.rsplit("-", 1)[0] for name in run.stdout.splitlines()}
    assert alone <= {"pystachio-worker"}
