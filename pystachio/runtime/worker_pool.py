"""Worker threads that run jobs, the most urgent plan's first.

A running job is never interrupted by us, but by the operating system: while more urgent plans live, jobs of less urgent
ones run on threads of a lower rank ("nice"), and an urgent job starts at once beside them. The kernel gives it the core
within a fraction of a millisecond, and leaves the others about what their class is reserved. So an urgent plan does
not depend on how long others' jobs are, and no core idles for it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from pystachio.errors import InternalError
from pystachio.io_scheduler.request import PriorityClass
from pystachio.runtime.job_queue import JobQueue
from pystachio.runtime.plan_entry import PlanEntry

NICENESS: Final = (0, 10, 13)
"""By class, beside more urgent plans. Linux weighs 0, 10 and 13 as 1024 : 110 : 56, which are the reservations of
`job_queue` within one part in a hundred."""

_URGENT_SECONDS = 1.0
"""So long after its end a plan still counts as one that lives: short plans that follow each other change no ranks."""


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


class WorkerThread(threading.Thread):
    """A thread of a worker pool: whoever runs on it must not wait for the pool to close.

    `niceness` is beyond that of the process. It may be raised at any time and never lowered again.
    """

    def __init__(self, name: str, work: Callable[[WorkerThread], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        # SimpleQueue waits in C without the GIL. None ends the thread.
        self.inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.niceness = 0
        self.job: Job | None = None

    def run(self) -> None:
        self._work(self)

    def lower_rank(self, niceness: int) -> None:
        """From any thread. Without effect where the system has no ranks for threads."""
        self.niceness = niceness
        if hasattr(os, "setpriority") and self.native_id is not None:
            try:
                os.setpriority(os.PRIO_PROCESS, self.native_id, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
            except OSError:
                return  # the kernel then shares the cores evenly


class WorkerPool:
    """Runs `workers` jobs at a time (`JobQueue` says which, and when more), each with one torch thread: parallelism
    comes from jobs, intra-op threads only contend.
    """

    def __init__(self, workers: int, *, name: str = "pystachio-worker") -> None:
        """Inside the running loop that will await the jobs."""
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._workers = workers
        self._name = name
        self._queue: JobQueue[Job] = JobQueue(workers)
        self._live: set[PlanEntry] = set()
        self._urgent_until = [0.0 for _ in PriorityClass]
        self._threads: set[WorkerThread] = set()
        self._made = 0
        self._idle: dict[int, list[WorkerThread]] = {niceness: [] for niceness in NICENESS}
        self._completed: deque[Job] = deque()
        self._delivery_scheduled = False
        self._closed = False
        self._finished = 0
        self._seconds = 0.0
        self._all_ended = asyncio.Event()
        for _ in range(workers):
            self._idle[0].append(self._new_thread())

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

    def plan_opened(self, plan: PlanEntry) -> None:
        """On the loop: the plan will have jobs. Those of less urgent plans make room from now on."""
        with self._lock:
            self._live.add(plan)
            self._lower_ranks()

    def plan_closed(self, plan: PlanEntry) -> None:
        with self._lock:
            self._live.discard(plan)
            self._urgent_until[plan.priority] = time.monotonic() + _URGENT_SECONDS

    def rank_changed(self) -> None:
        """A plan's class or deadline is another: on the loop."""
        with self._lock:
            self._lower_ranks()
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
            for idle in self._idle.values():
                while idle:
                    idle.pop().inbox.put(None)
            threads = tuple(self._threads)
        await self._all_ended.wait()
        for thread in threads:
            thread.join()

    def _new_thread(self) -> WorkerThread:
        """On the loop's thread: a thread starts with the rank of the one that makes it."""
        thread = WorkerThread(f"{self._name}-{self._made}", self._work)
        thread.start()
        self._made += 1
        self._threads.add(thread)
        return thread

    def _start_jobs(self) -> None:
        """With the lock, on the loop's thread."""
        while (job := self._queue.next()) is not None:
            worker = self._worker_for(job)
            if worker is None:
                return
            self._queue.started(job)
            worker.job = job
            worker.inbox.put(job)

    def _worker_for(self, job: Job) -> WorkerThread | None:
        niceness = self._niceness(job.plan)
        idle = self._idle[niceness]
        if idle:
            return idle.pop()
        if niceness and self._idle[0]:
            worker = self._idle[0].pop()
        else:
            try:
                worker = self._new_thread()
            except RuntimeError:
                # No more threads for this process: whoever is idle does it, or the next that becomes so.
                others = [idle for idle in self._idle.values() if idle]
                return others[0].pop() if others else None
        worker.lower_rank(niceness)
        return worker

    def _niceness(self, plan: PlanEntry) -> int:
        now = time.monotonic()
        more_urgent = range(plan.priority)
        is_urged = any(other.priority < plan.priority for other in self._live)
        if is_urged or any(self._urgent_until[priority] > now for priority in more_urgent):
            return NICENESS[plan.priority]
        return 0

    def _lower_ranks(self) -> None:
        for worker in self._threads:
            if worker.job is not None and (niceness := self._niceness(worker.job.plan)) > worker.niceness:
                worker.lower_rank(niceness)

    def _work(self, worker: WorkerThread) -> None:
        torch.set_num_threads(1)
        while (job := worker.inbox.get()) is not None:
            following: Job | None = job
            while following is not None:
                started = time.thread_time()
                following.execute()
                following = self._complete(worker, following, time.thread_time() - started)
            del job
        # Told to the loop, not joined by an executor's thread: at the interpreter's exit executors are closed already.
        self._loop.call_soon_threadsafe(self._worker_ended, worker)

    def _worker_ended(self, worker: WorkerThread) -> None:
        self._threads.discard(worker)
        if self._closed and not self._threads:
            self._all_ended.set()

    def _complete(self, worker: WorkerThread, job: Job, seconds: float) -> Job | None:
        """On the worker; returns the job that it does next."""
        with self._lock:
            self._queue.ended(job, seconds)
            self._finished += 1
            self._seconds += seconds
            self._completed.append(job)
            worker.job = None if self._closed else self._take(worker)
            following = worker.job
            if following is None:
                self._retire_or_rest(worker)
            if self._delivery_scheduled:
                return following
            self._delivery_scheduled = True
        self._loop.call_soon_threadsafe(self._deliver)
        return following

    def _take(self, worker: WorkerThread) -> Job | None:
        """The next job, if it is one for this thread's rank; `_deliver` finds threads for others."""
        job = self._queue.next()
        if job is None or self._niceness(job.plan) != worker.niceness:
            return None
        self._queue.started(job)
        return job

    def _retire_or_rest(self, worker: WorkerThread) -> None:
        idle = self._idle[worker.niceness]
        if self._closed or len(idle) >= self._workers:
            worker.inbox.put(None)
        else:
            idle.append(worker)

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
