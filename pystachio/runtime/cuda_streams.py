"""Streams on a CUDA device: launched from worker threads, awaited through events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec, TypeVar

import torch

from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.streams import Stream, measured, run_job
from pystachio.runtime.worker_pool import WorkerPool

P = ParamSpec("P")
R = TypeVar("R")

INTERACTIVE_STREAM_PRIORITY = -1
"""CUDA prefers blocks of streams with the lower number; 0 is the default and the lowest."""


class CudaStreams:
    """Each launching thread has a stream per urgency, so that jobs of different threads overlap on the device.

    A launch is over long before its work. Threads of their own block on the events (without spinning and without the
    GIL), so that neither the loop nor the launching threads wait for the device.
    """

    def __init__(self, device: torch.device, launchers: WorkerPool, *, threads: int) -> None:
        self._device = device
        self._launchers = launchers
        self._event_waiters = WorkerPool(threads, name="pystachio-cuda-event")
        self._streams = _ThreadStreams()

    def open(self, plan: PlanEntry, metrics: OperatorMetrics) -> Stream:
        return CudaStream(self._device, self._launchers, self._event_waiters, self._streams, plan, metrics)

    async def close(self) -> None:
        await self._event_waiters.close()


class _ThreadStreams(threading.local):
    def __init__(self) -> None:
        self._by_urgency: dict[bool, torch.cuda.Stream] = {}

    def get(self, device: torch.device, *, urgent: bool) -> torch.cuda.Stream:
        found = self._by_urgency.get(urgent)
        if found is None:
            priority = INTERACTIVE_STREAM_PRIORITY if urgent else 0
            found = self._by_urgency[urgent] = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
        return found


class CudaStream:
    """One operator's access to the device.

    `run` returns when the device has done what the job launched, so whatever the job used may be freed or written
    afterwards, by any stream. Work that the job launches elsewhere than on the current stream is its own affair.
    """

    def __init__(
        self,
        device: torch.device,
        launchers: WorkerPool,
        event_waiters: WorkerPool,
        streams: _ThreadStreams,
        plan: PlanEntry,
        metrics: OperatorMetrics,
    ) -> None:
        self.device = device
        self._launchers = launchers
        self._event_waiters = event_waiters
        self._streams = streams
        self._plan = plan
        self._metrics = metrics

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        launch = _Launch(partial(function, *args, **kwargs), self.device, self._streams, self._plan)
        try:
            return await run_job(self._launchers, self._plan, measured(self._metrics, launch))
        finally:
            # Also after a failure and after a cancellation: what was launched goes on until its event.
            if launch.launched is not None:
                await run_job(self._event_waiters, self._plan, launch.launched.synchronize, withdrawable=False)


class _Launch(Generic[R]):
    """The job of a launching thread. `launched` is the event behind all that it put on its stream."""

    def __init__(self, call: Callable[[], R], device: torch.device, streams: _ThreadStreams, plan: PlanEntry) -> None:
        self._call = call
        self._device = device
        self._streams = streams
        self._plan = plan
        self.launched: torch.cuda.Event | None = None

    def __call__(self) -> R:
        stream = self._streams.get(self._device, urgent=self._plan.priority == 0)
        with torch.cuda.stream(stream):
            try:
                return self._call()
            finally:
                event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                event.record(stream)
                self.launched = event
