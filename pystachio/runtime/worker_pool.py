"""Worker threads that run short jobs, the most urgent plan's first."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pystachio.errors import InternalError
from pystachio.runtime.plan_entry import PlanEntry


class Job:
    """A call that waits for a worker, runs on it, and ends with a result or an error.

    Its coroutine awaits `future`. When that is cancelled in mid-run it awaits `ended` next, because the job still uses
    its buffers. Result and error travel through the future only: nothing is kept here.
    """

    __slots__ = ("_call", "_error", "_future", "_result", "ended", "is_ended", "plan")

    def __init__(self, call: Callable[[], Any], plan: PlanEntry, future: asyncio.Future[Any]) -> None:
        self._call: Callable[[], Any] | None = call
        self.plan = plan
        self._future: asyncio.Future[Any] | None = future
        self.ended: asyncio.Future[None] | None = None
        self.is_ended = False
        self._result: Any = None
        self._error: BaseException | None = None

    def execute(self) -> None:
        """On a worker. The call is forgotten before the result is delivered: its buffers must not outlive it."""
        call, self._call = self._call, None
        assert call is not None, "a job runs once"
        try:
            self._result = call()
        except StopIteration as error:
            # A future refuses StopIteration: it would end the awaiting coroutine instead of failing it.
            self._error = InternalError("a job raised StopIteration")
            self._error.__cause__ = error
        except BaseException as error:
            self._error = error

    def deliver(self) -> None:
        """On the loop. The worker may hold the job for a moment longer, so it lets go of everything."""
        future, result, error = self._future, self._result, self._error
        self._future = self._result = self._error = None
        self.is_ended = True
        if future is not None and not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    workers: int
    queued: int
    running: int
    finished: int


class _PlanQueue:
    """A plan's waiting jobs, oldest first. `turn` is when the plan was last served."""

    __slots__ = ("jobs", "turn")

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.turn = 0


class WorkerThread(threading.Thread):
    """A thread of a worker pool: whoever runs on it must not wait for the pool to close."""


class WorkerPool:
    """`workers` daemon threads, each with one torch thread: parallelism comes from jobs, intra-op threads only contend.

    Order: the most urgent priority, plans of one priority in turns, first in first out inside a plan. A running job is
    never interrupted, so jobs are kept short.
    """

    def __init__(self, workers: int, *, name: str = "pystachio-worker") -> None:
        """Inside the running loop that will await the jobs."""
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._plans: dict[PlanEntry, _PlanQueue] = {}
        # A token per submitted job. SimpleQueue waits in C without the GIL; the order is decided when a token is taken.
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._completed: deque[Job] = deque()
        self._delivery_scheduled = False
        self._closed = False
        self._turn = 0
        self._queued = 0
        self._running = 0
        self._finished = 0
        self._working = workers
        self._all_ended = asyncio.Event()
        self._threads = [
            WorkerThread(target=self._work, name=f"{name}-{index}", daemon=True) for index in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        with self._lock:
            if self._closed:
                raise InternalError("a job was submitted to a worker pool that is closed")
            plan_queue = self._plans.get(job.plan)
            if plan_queue is None:
                plan_queue = self._plans[job.plan] = _PlanQueue()
                # No credit for the time before: a plan that comes back is served after those that wait already.
                plan_queue.turn = self._turn
            plan_queue.jobs.append(job)
            self._queued += 1
        self._tokens.put(None)

    def withdraw(self, job: Job) -> bool:
        """Take a waiting job back; False when it runs or has ended."""
        with self._lock:
            plan_queue = self._plans.get(job.plan)
            if plan_queue is None or job not in plan_queue.jobs:
                return False
            plan_queue.jobs.remove(job)
            self._forget_if_empty(job.plan, plan_queue)
            self._queued -= 1
            return True

    def statistics(self) -> WorkerStatistics:
        with self._lock:
            return WorkerStatistics(len(self._threads), self._queued, self._running, self._finished)

    async def close(self) -> None:
        """Wait for the running jobs and end the threads. Jobs that still wait never run."""
        with self._lock:
            self._closed = True
            self._plans.clear()
            self._queued = 0
        for _ in self._threads:
            self._tokens.put(None)
        await self._all_ended.wait()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        torch.set_num_threads(1)
        self._run_jobs()
        # Told to the loop, not joined by an executor's thread: at the interpreter's exit executors are closed already.
        self._loop.call_soon_threadsafe(self._worker_ended)

    def _worker_ended(self) -> None:
        self._working -= 1
        if self._working == 0:
            self._all_ended.set()

    def _run_jobs(self) -> None:
        while True:
            self._tokens.get()
            job = self._take()
            if job is not None:
                job.execute()
                self._complete(job)
                del job
            elif self._closed:
                return

    def _take(self) -> Job | None:
        with self._lock:
            if not self._plans:
                return None
            plan, plan_queue = min(self._plans.items(), key=lambda entry: (entry[0].priority, entry[1].turn))
            self._turn += 1
            plan_queue.turn = self._turn
            job = plan_queue.jobs.popleft()
            self._forget_if_empty(plan, plan_queue)
            self._queued -= 1
            self._running += 1
            return job

    def _forget_if_empty(self, plan: PlanEntry, plan_queue: _PlanQueue) -> None:
        if not plan_queue.jobs:
            del self._plans[plan]

    def _complete(self, job: Job) -> None:
        with self._lock:
            self._running -= 1
            self._finished += 1
            self._completed.append(job)
            if self._delivery_scheduled:
                return
            self._delivery_scheduled = True
        self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        """On the loop: everything that ended since the last wake-up, for one wake-up."""
        with self._lock:
            self._delivery_scheduled = False
            completed = tuple(self._completed)
            self._completed.clear()
        for job in completed:
            job.deliver()
