"""Where kernels run: one interface over worker threads on a CPU and over CUDA streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

import torch

from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.worker_pool import Job, WorkerPool

P = ParamSpec("P")
R = TypeVar("R")


class Stream(Protocol):
    """An operator's place to compute."""

    @property
    def device(self) -> torch.device: ...

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `function` off the loop and return when its work on the device is done: its results may be read anywhere.

        When the caller is cancelled, a waiting job is withdrawn and a running one is awaited before the cancellation
        goes on: afterwards nothing reads or writes the job's buffers. Keep jobs short.
        """
        ...

    async def run_small(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `run`, for what takes about as long as the way to a worker and back (a few rows): where the host computes
        it is done at once, on the loop."""
        ...

    def upload(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], torch.cuda.Event | None]:
        """CPU tensors on the device, and the event after which other streams may read them; only inside a job.

        The job's own kernels may use the copies at once: they come behind them on the device. The sources may be
        dropped as soon as this returns.
        """
        ...


class StreamFactory(Protocol):
    """A node's streams: `open` one per operator, `close` after the last job."""

    def open(self, plan: PlanEntry, metrics: OperatorMetrics) -> Stream: ...

    async def close(self) -> None: ...


class CpuStreams:
    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    def open(self, plan: PlanEntry, metrics: OperatorMetrics) -> Stream:
        return CpuStream(self._pool, plan, metrics)

    async def close(self) -> None:
        """The pool belongs to the node."""


class CpuStream:
    """An operator's access to the shared worker pool, by its plan's rank."""

    device = torch.device("cpu")

    def __init__(self, pool: WorkerPool, plan: PlanEntry, metrics: OperatorMetrics) -> None:
        self._pool = pool
        self._plan = plan
        self._metrics = metrics

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        metrics = self._metrics
        return await run_job(self._pool, self._plan, measured(metrics, partial(function, *args, **kwargs)))

    async def run_small(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        metrics = self._metrics
        job = metrics.job_started(metrics.clock.now())
        try:
            return function(*args, **kwargs)
        finally:
            metrics.job_ended(job)

    def upload(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], torch.cuda.Event | None]:
        """They are there."""
        return list(tensors), None


def measured(metrics: OperatorMetrics, call: Callable[[], R]) -> Callable[[], R]:
    """`call` as a job that counts its wait for a worker from now, and its seconds."""
    submitted = metrics.clock.now()

    def run() -> R:
        job = metrics.job_started(submitted)
        try:
            return call()
        finally:
            metrics.job_ended(job)

    return run


async def run_job(pool: WorkerPool, plan: PlanEntry, call: Callable[[], R], *, withdrawable: bool = True) -> R:
    """Run `call` on a worker of `pool`; see `Stream.run` for cancellation.

    A job that is not `withdrawable` runs in any case: it waits for work that has started already.
    """
    future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
    job = Job(call, plan, future)
    del call
    plan.begin_external()
    try:
        pool.submit(job)
        return await future
    except asyncio.CancelledError:
        if not (job.is_ended or (withdrawable and pool.withdraw(job))):
            await _wait_ended(job)
        raise
    finally:
        plan.end_external()
        del job, future


async def _wait_ended(job: Job) -> None:
    """Further cancellations change nothing: the buffers are in use until the job ends."""
    while not job.is_ended:
        job.ended = asyncio.get_running_loop().create_future()
        try:
            await job.ended
        except asyncio.CancelledError:
            continue
