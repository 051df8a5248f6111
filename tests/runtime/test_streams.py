"""Jobs on worker threads: results, errors, urgency, and cancellation that waits for the buffers."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator
from itertools import count

import pytest
import torch

from pystachio.errors import InternalError
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.clock import SystemClock
from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.streams import CpuStream
from pystachio.runtime.tracing import WaitReason
from pystachio.runtime.worker_pool import WorkerPool


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    """One worker: the order of jobs is the order of results."""
    pool = WorkerPool(1)
    yield pool
    await pool.close()


def stream(pool: WorkerPool, plan: PlanEntry | None = None) -> CpuStream:
    return CpuStream(pool, plan or PlanEntry("p", 1, 1), OperatorMetrics("operator", SystemClock()))


class Gate:
    """A job that says when it runs and ends when it is let go."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._open = threading.Event()
        self.ended = False

    def __call__(self) -> str:
        self._loop.call_soon_threadsafe(self.running.set)
        assert self._open.wait(10)
        self.ended = True
        return "done"

    def open(self) -> None:
        self._open.set()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_job_runs_elsewhere_with_one_torch_thread(pool: WorkerPool) -> None:
    threads, name = await stream(pool).run(lambda: (torch.get_num_threads(), threading.current_thread().name))
    assert threads == 1
    assert name == "pystachio-worker-0"


async def test_arguments_and_result(pool: WorkerPool) -> None:
    result = await stream(pool).run(torch.full, (3,), fill_value=7)
    assert result.tolist() == [7, 7, 7]


@pytest.mark.parametrize("error", [ValueError("bad"), MemoryError(), SystemExit(3)])
async def test_an_error_reaches_the_caller_and_the_worker_lives_on(pool: WorkerPool, error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await stream(pool).run(fail)
    assert caught.value is error
    assert await stream(pool).run(int) == 0


async def test_stop_iteration_does_not_end_the_awaiting_coroutine(pool: WorkerPool) -> None:
    with pytest.raises(InternalError) as caught:
        await stream(pool).run(next, iter(()))
    assert isinstance(caught.value.__cause__, StopIteration)


async def test_cancellation_waits_for_the_running_job_however_often_it_is_repeated(pool: WorkerPool) -> None:
    gate = Gate()
    plan = PlanEntry("p", 1, 1)
    task = asyncio.create_task(stream(pool, plan).run(gate))
    await gate.running.wait()
    for _ in range(3):
        task.cancel()
        await settle()
        assert not task.done()
    assert plan.external == 1
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.ended
    assert plan.external == 0


async def test_the_error_of_a_cancelled_job_is_dropped(pool: WorkerPool) -> None:
    gate = Gate()

    def fail() -> None:
        gate()
        raise ValueError("nobody listens")

    task = asyncio.create_task(stream(pool).run(fail))
    await gate.running.wait()
    task.cancel()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_job_that_still_waits_never_runs(pool: WorkerPool) -> None:
    gate = Gate()
    blocking = asyncio.create_task(stream(pool).run(gate))
    await gate.running.wait()
    ran: list[int] = []
    waiting = asyncio.create_task(stream(pool).run(ran.append, 1))
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pool.statistics().queued == 0
    gate.open()
    assert await blocking == "done"
    await stream(pool).run(int)
    assert ran == []


async def test_an_urgent_job_does_not_wait_for_a_less_urgent_one_that_runs(pool: WorkerPool) -> None:
    gate = Gate()
    batch, interactive = PlanEntry("batch", 2, 1), PlanEntry("interactive", 0, 2)
    blocking = asyncio.create_task(stream(pool, batch).run(gate))
    await gate.running.wait()
    waiting = asyncio.create_task(stream(pool, batch).run(int))
    assert await stream(pool, interactive).run(abs, -1) == 1
    assert not waiting.done()
    assert pool.statistics().running == 1
    gate.open()
    await asyncio.gather(blocking, waiting)


async def test_a_young_interactive_plan_has_the_workers_to_itself(pool: WorkerPool) -> None:
    """Between two of its jobs nothing else starts. Its end lets the others go, without any other event."""
    now = time.monotonic()
    batch, interactive = PlanEntry("batch", 2, 1), PlanEntry("interactive", 0, 2, opened_at=now)
    pool.plan_opened(batch)
    pool.plan_opened(interactive)
    waiting = asyncio.create_task(stream(pool, batch).run(int))
    await stream(pool, interactive).run(int)
    await settle()
    assert pool.jobs(batch) == (1, 0)
    pool.plan_closed(interactive)
    assert await waiting == 0


async def test_time_lets_the_others_go_too(pool: WorkerPool) -> None:
    batch, interactive = PlanEntry("batch", 2, 1), PlanEntry("interactive", 0, 2, opened_at=time.monotonic())
    pool.plan_opened(interactive)
    async with asyncio.timeout(10):
        assert await stream(pool, batch).run(int) == 0


async def test_a_plan_that_is_expected_and_does_not_come_holds_nobody_up_for_long(pool: WorkerPool) -> None:
    pool.expect_urgent()
    async with asyncio.timeout(10):
        assert await stream(pool, PlanEntry("batch", 2, 1)).run(int) == 0


async def test_threads_do_not_pile_up_as_urgent_jobs_start_beside_others() -> None:
    pool = WorkerPool(2)
    before = threading.active_count()
    for number in range(20):
        gate = Gate()
        plans = [PlanEntry(f"{number} {priority}", priority, 1) for priority in (2, 2, 1, 1, 0, 0)]
        jobs = [asyncio.create_task(stream(pool, plan).run(gate)) for plan in plans]
        while pool.statistics().running < len(jobs):
            await settle()
        gate.open()
        await asyncio.gather(*jobs)
    assert pool.statistics().running == 0
    await pool.close()
    assert threading.active_count() == before - 2


async def test_a_new_priority_counts_for_jobs_that_wait_already(pool: WorkerPool) -> None:
    gate = Gate()
    blocking = asyncio.create_task(stream(pool).run(gate))
    await gate.running.wait()
    order: list[str] = []
    first, second = PlanEntry("first", 1, 1), PlanEntry("second", 1, 2)
    jobs = [asyncio.create_task(stream(pool, plan).run(order.append, plan.plan_id)) for plan in (first, second)]
    await settle()
    second.priority = 0
    gate.open()
    await asyncio.gather(blocking, *jobs)
    assert order == ["second", "first"]


async def test_an_idle_worker_keeps_no_buffer_alive(pool: WorkerPool) -> None:
    class Buffer:
        pass

    buffer = Buffer()
    alive = weakref.ref(buffer)
    result = await stream(pool).run(lambda held: [held], buffer)
    del buffer, result
    await settle()  # the loop itself holds what it has just delivered
    assert alive() is None


async def test_busy_time_belongs_to_whoever_reports_it_and_the_rest_to_the_starter(pool: WorkerPool) -> None:
    starter = OperatorMetrics("starter", SystemClock())
    plan = PlanEntry("p", 1, 1)

    def job() -> None:
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass

    await CpuStream(pool, plan, starter).run(job)
    seen = starter.snapshot()
    assert 0.02 <= seen.busy_seconds < 5
    assert seen.wait_seconds[WaitReason.STREAM] > 0


async def test_closing_waits_for_the_running_job_and_refuses_new_ones() -> None:
    pool = WorkerPool(2)
    gate = Gate()
    task = asyncio.create_task(stream(pool).run(gate))
    await gate.running.wait()
    closing = asyncio.create_task(pool.close())
    await settle()
    assert not closing.done()
    gate.open()
    await closing
    assert await task == "done"
    with pytest.raises(InternalError, match="closed"):
        await stream(pool).run(int)


async def test_many_jobs_at_once_all_end() -> None:
    pool = WorkerPool(3)
    streams = [stream(pool, PlanEntry(f"p{index}", index % 3, index)) for index in range(5)]
    results = await asyncio.gather(*(streams[number % 5].run(abs, -number) for number in range(500)))
    assert results == list(range(500))
    assert pool.statistics().finished == 500
    await pool.close()


async def test_what_is_small_is_done_at_once_and_counted_as_a_job(pool: WorkerPool) -> None:
    metrics = OperatorMetrics("operator", SystemClock())
    here = CpuStream(pool, PlanEntry("p", 1, 1), metrics)

    def work(seconds: float) -> int:
        time.sleep(seconds)
        return threading.get_ident()

    assert await here.run_small(work, 0.02) == threading.get_ident()
    assert metrics.snapshot().busy_seconds >= 0.02
    assert pool.statistics().finished == 0
    with pytest.raises(ValueError, match="no"):
        await here.run_small(int, "no")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_closed_pool_leaves_no_file_open() -> None:
    before = open_files()
    pool = WorkerPool(3)
    assert open_files() > before
    await asyncio.gather(*(stream(pool).run(int) for _ in range(20)))
    await pool.close()
    assert open_files() <= before


async def test_a_pool_that_cannot_be_opened_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    pipes, real = count(), os.pipe

    def pipe() -> tuple[int, int]:
        if next(pipes) == 2:
            raise OSError(errno.EMFILE, "too many open files")
        return real()

    before, threads = open_files(), threading.active_count()
    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(OSError, match="too many"):
        WorkerPool(4)
    async with asyncio.timeout(10):
        while open_files() > before or threading.active_count() > threads:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("refused", [(threading.Thread, "start", RuntimeError), (os, "pipe", OSError)])
async def test_jobs_wait_where_there_can_be_no_further_thread(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, refused: tuple[object, str, type[Exception]]
) -> None:
    asked: list[object] = []

    def refuse(*_: object) -> None:
        asked.append(refused)
        raise refused[2]("no more")

    gate = Gate()
    slow = asyncio.create_task(stream(pool, PlanEntry("slow", PriorityClass.BATCH, 1)).run(gate))
    await gate.running.wait()
    before = open_files()
    monkeypatch.setattr(*refused[:2], refuse)
    urgent = asyncio.create_task(stream(pool, PlanEntry("urgent", PriorityClass.INTERACTIVE, 2)).run(int))
    await settle()
    assert asked
    assert not urgent.done()
    assert open_files() <= before
    gate.open()
    assert await urgent == 0
    assert await slow == "done"
