"""Where workers wait: each on a core of its own, if each can have one, and never where somebody forbade it."""

from __future__ import annotations

import asyncio
import os
import threading
import time

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


def test_a_thread_waits_at_home_and_runs_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch, {2, 5, 7})
    homes = [HomeCore(number, 3) for number in range(3)]
    waited = []
    for home in homes:
        home.enter()
        waited.append(set(cores.now))
        home.leave()
        assert cores.now == {2, 5, 7}
    assert waited == [{2}, {5}, {7}]


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
    home.leave()
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
    waiting.leave()
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
    home.leave()
    assert cores.now == {0, 1}


def test_a_system_without_such_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pystachio.runtime.home_core._KNOWS_CORES", False)
    home = HomeCore(0, 2)
    home.enter()
    home.leave()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not tell")
async def test_the_workers_of_a_pool_wait_apart_and_run_anywhere() -> None:
    everywhere = os.sched_getaffinity(0)
    pool = WorkerPool(len(everywhere), name="homely")
    stream = CpuStream(pool, PlanEntry("p", 1, 1), OperatorMetrics("operator", SystemClock()))
    assert await stream.run(os.sched_getaffinity, 0) == everywhere
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
