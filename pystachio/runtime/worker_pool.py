"""Worker threads that run jobs in the order of `job_queue`, the most urgent plan's first.

A running job is never interrupted. An urgent job starts at once beside less urgent ones that run, on a thread more: the
cores are shared until those end, and an urgent plan does not depend on how long others' jobs are. (Giving less urgent
threads a lower rank of the operating system was tried: a thread that is preempted while it holds the interpreter's lock
keeps everybody waiting, up to 80 ms with a rank of 5 % of a core.)
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from pystachio.errors import InternalError
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.clock import Clock, SystemClock
from pystachio.runtime.home_core import HomeCore
from pystachio.runtime.job_queue import HOLD_SECONDS, JobQueue
from pystachio.runtime.plan_entry import PlanEntry

EXPECTED_SECONDS = 0.05
"""How long an announced interactive plan may take to plan before the workers are given to others again."""


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
    """`running` may exceed `workers` while urgent jobs run beside others. `seconds` of CPU are those of ended jobs."""

    workers: int
    queued: int
    running: int
    finished: int
    seconds: float = 0.0


_write = ctypes.PyDLL(None, use_errno=True).write
"""Keeps the interpreter meanwhile. `os.write` lets go of it, and the worker that was woken takes it: the loop waited
for 0.28 ms, each time, before it could wake the next one, 60 ms in a round of TPC-H.
"""


class Inbox:
    """Jobs for one thread, which waits for them at a pipe.

    Linux takes who writes to a pipe for somebody who is about to wait: where no core is idle, the reader comes behind
    him on his. A thread that waits for a lock comes back to the core where it ran last, perhaps behind another worker
    that was just woken there, and stays there when the loop's core becomes idle: 1 to 2 ms each time, a fiftieth of the
    time of TPC-H on two cores.
    """

    def __init__(self) -> None:
        """Raises OSError when the process may open no more files."""
        self._jobs: deque[Job | None] = deque()
        self._reading, self._writing = os.pipe()

    def put(self, job: Job | None) -> None:
        """From any thread; None ends the worker."""
        self._jobs.append(job)
        if _write(self._writing, b"1", 1) != 1:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def get(self) -> Job | None:
        """Waits for the next one."""
        os.read(self._reading, 1)
        return self._jobs.popleft()

    def close(self) -> None:
        """After the last `get`, or without any."""
        os.close(self._reading)
        os.close(self._writing)


class WorkerThread(threading.Thread):
    """A thread of a worker pool: whoever runs on it must not wait for the pool to close."""

    def __init__(self, name: str, work: Callable[[WorkerThread], None], inbox: Inbox, home: HomeCore) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self.inbox = inbox
        self.home = home

    def run(self) -> None:
        self._work(self)


class WorkerPool:
    """Runs `workers` jobs at a time (`JobQueue` says which, and when more), each with one torch thread: parallelism
    comes from jobs, intra-op threads only contend.
    """

    def __init__(
        self, workers: int, *, name: str = "pystachio-worker", clock: Clock | None = None, homes: bool = True
    ) -> None:
        """Inside the running loop that will await the jobs. `clock` is what plans' times are given in; with `homes`,
        workers that compute may have cores of their own.

        Raises RuntimeError or OSError where the process may have no more threads or files.
        """
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._workers = workers
        self._name = name
        self._clock = clock if clock is not None else SystemClock()
        self._queue: JobQueue[Job] = JobQueue(workers)
        self._live: set[PlanEntry] = set()
        self._expected_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._threads: set[WorkerThread] = set()
        self._made = 0
        self._free_homes = list(reversed(range(workers))) if homes else []
        self._idle: list[WorkerThread] = []
        self._completed: deque[Job] = deque()
        self._delivery_scheduled = False
        self._closed = False
        self._finished = 0
        self._seconds = 0.0
        self._all_ended = asyncio.Event()
        try:
            for _ in range(workers):
                self._idle.append(self._new_thread())
        except (RuntimeError, OSError):
            self._end_idle()
            raise

    def submit(self, job: Job) -> None:
        """On the loop."""
        with self._lock:
            if self._closed:
                raise InternalError("a job was submitted to a worker pool that is closed")
            self._queue.push(job)
            self._start_jobs()

    def withdraw(self, job: Job) -> bool:
        """Take a waiting job back; False when it runs or has ended."""
        with self._lock:
            return self._queue.withdraw(job)

    def expect_urgent(self) -> None:
        """From any thread: an interactive plan is being planned."""
        with self._lock:
            self._expected_until = self._clock.now() + EXPECTED_SECONDS
            self._hold()

    def plan_opened(self, plan: PlanEntry) -> None:
        """On the loop: the plan will have jobs."""
        with self._lock:
            self._live.add(plan)
            if plan.priority == PriorityClass.INTERACTIVE:
                self._expected_until = 0.0
            self._hold()

    def plan_closed(self, plan: PlanEntry) -> None:
        """On the loop: what was held back for the plan may start."""
        with self._lock:
            self._live.discard(plan)
            self._hold()
            self._start_jobs()

    def rank_changed(self) -> None:
        """A plan's class or deadline is another: on the loop."""
        with self._lock:
            self._hold()
            self._start_jobs()

    def jobs(self, plan: PlanEntry) -> tuple[int, int]:
        """The plan's jobs that wait for a worker and that are on one."""
        with self._lock:
            return self._queue.jobs(plan)

    def statistics(self) -> WorkerStatistics:
        with self._lock:
            return WorkerStatistics(
                self._workers, self._queue.waiting, self._queue.running, self._finished, self._seconds
            )

    async def close(self) -> None:
        """Wait for the running jobs and end the threads. Jobs that still wait never run."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            if self._timer is not None:
                self._timer.cancel()
            self._end_idle()
            threads = tuple(self._threads)
        await self._all_ended.wait()
        for thread in threads:
            thread.join()

    def _end_idle(self) -> None:
        while self._idle:
            self._idle.pop().inbox.put(None)

    def _new_thread(self) -> WorkerThread:
        home = HomeCore(self._free_homes[-1] if self._free_homes else self._workers, self._workers)
        thread = WorkerThread(f"{self._name}-{self._made}", self._work, Inbox(), home)
        try:
            thread.start()
        except RuntimeError:
            thread.inbox.close()
            raise
        self._made += 1
        del self._free_homes[-1:]
        self._threads.add(thread)
        return thread

    def _hold(self) -> None:
        """Keep less urgent jobs back for the interactive plans that live."""
        urgent = (plan.opened_at for plan in self._live if plan.priority == PriorityClass.INTERACTIVE)
        newest = max(urgent, default=-HOLD_SECONDS)
        self._queue.hold.set(max(newest + HOLD_SECONDS, self._expected_until), self._clock.now())

    def _start_jobs(self) -> None:
        """With the lock, on the loop's thread."""
        now = self._clock.now()
        while (job := self._queue.next(now)) is not None:
            worker = self._idle_worker()
            if worker is None:
                return
            self._queue.started(job)
            worker.inbox.put(job)
        if self._queue.waiting and self._timer is None and self._queue.hold.is_on(now):
            self._timer = self._loop.call_later(self._queue.hold.until - now, self._hold_ended)

    def _hold_ended(self) -> None:
        with self._lock:
            self._timer = None
            self._start_jobs()

    def _idle_worker(self) -> WorkerThread | None:
        if self._idle:
            return self._idle.pop(-2 if len(self._idle) > 1 and self._idle[-1].home.is_here() else -1)
        try:
            return self._new_thread()
        except (RuntimeError, OSError):
            return None  # no more threads or files for this process: the next worker that becomes idle does it

    def _work(self, worker: WorkerThread) -> None:
        torch.set_num_threads(1)
        home = worker.home
        home.before_wait(time.monotonic())
        while (job := worker.inbox.get()) is not None:
            following: Job | None = job
            while following is not None:
                home.before_job(time.monotonic())
                started = time.thread_time()
                following.execute()
                seconds = time.thread_time() - started
                home.after_job(time.monotonic(), seconds)
                following = self._complete(worker, following, seconds)
            del job
            home.before_wait(time.monotonic())
        worker.inbox.close()
        home.close()
        # Told to the loop, not joined by an executor's thread: at the interpreter's exit executors are closed already.
        with suppress(RuntimeError):  # the loop is closed: the pool did not come to be
            self._loop.call_soon_threadsafe(self._worker_ended, worker)

    def _worker_ended(self, worker: WorkerThread) -> None:
        self._threads.discard(worker)
        if worker.home.number < self._workers:
            self._free_homes.append(worker.home.number)
        if self._closed and not self._threads:
            self._all_ended.set()

    def _complete(self, worker: WorkerThread, job: Job, seconds: float) -> Job | None:
        """On the worker; returns the job that it does next."""
        with self._lock:
            self._queue.ended(job, seconds)
            self._finished += 1
            self._seconds += seconds
            self._completed.append(job)
            following = None if self._closed else self._queue.next(self._clock.now())
            if following is not None:
                self._queue.started(following)
            elif self._closed or len(self._idle) >= self._workers:
                worker.inbox.put(None)
            else:
                self._idle.append(worker)
            if self._delivery_scheduled:
                return following
            self._delivery_scheduled = True
        self._loop.call_soon_threadsafe(self._deliver)
        return following

    def _deliver(self) -> None:
        """On the loop: everything that ended since the last wake-up, for one wake-up."""
        with self._lock:
            self._delivery_scheduled = False
            completed = tuple(self._completed)
            self._completed.clear()
            if self._queue.waiting:
                self._start_jobs()
        for job in completed:
            job.deliver()
