"""Computing on a CUDA device: launched from worker threads, awaited through events.

All kernels of a plan run on one stream, whichever thread launches them. One order for everything is what makes the
rest safe without bookkeeping: the allocator hands freed memory out again in that order, and threads may drop tensors
that others made. Plans that are interactive when they start share a stream of high priority, the others the default
one: the device takes the urgent kernels' blocks first, whatever batch plans have queued. Tensors that outlive a plan
are kept for each stream separately (`device_place`). A class that changes later orders launches, which are short and
come by the plans' rank; the stream stays. Batches are large enough that kernels gain little from running beside each
other. Copies to the device have a stream of their own and overlap with kernels, and with the filling of the next pinned
buffer (`pinned_staging`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, ParamSpec, TypeVar

import torch

from pystachio.errors import ResourceExhausted
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.metrics import OperatorMetrics, job_metrics
from pystachio.runtime.pinned_staging import BUFFER_BYTES, StagingBuffers, copy_staged
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.streams import Stream, measured, run_job
from pystachio.runtime.worker_pool import WorkerPool

P = ParamSpec("P")
R = TypeVar("R")

_HIGH_PRIORITY = -1


class CudaStreams:
    """A launch is over long before its work. Threads of their own block on the events (without spinning and without the
    GIL), so that neither the loop nor the launching threads wait for the device.
    """

    def __init__(self, device: torch.device, launchers: WorkerPool, *, threads: int) -> None:
        self._device = device
        self._launchers = launchers
        self._event_waiters = WorkerPool(threads, name="pystachio-cuda-event", homes=False)
        self._staging = StagingBuffers(count=2 * max(1, threads), nbytes=BUFFER_BYTES, allocate=_pinned_bytes)
        self._uploads: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._urgent: torch.cuda.Stream = torch.cuda.Stream(device, priority=_HIGH_PRIORITY)  # type: ignore[no-untyped-call]

    def open(self, plan: PlanEntry, metrics: OperatorMetrics) -> Stream:
        """All of a plan's operators are opened at its start, before its class can change."""
        is_urgent = plan.priority == PriorityClass.INTERACTIVE
        kernels = self._urgent if is_urgent else torch.cuda.default_stream(self._device)
        uploads = Uploads(self._uploads, self._staging)
        return CudaStream(self._device, self._launchers, self._event_waiters, kernels, uploads, plan, metrics)

    async def close(self) -> None:
        await self._event_waiters.close()


@dataclass(frozen=True, slots=True)
class Uploads:
    """The stream of the copies to a device, and the pinned memory that they read."""

    stream: torch.cuda.Stream
    buffers: StagingBuffers

    def record(self) -> torch.cuda.Event:
        """An event behind the copies so far. Whoever must wait for it on the host sleeps."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return event


class CudaStream:
    """One operator's access to the device.

    `run` returns when the device has done what the job launched (and what was launched before it), so whatever the job
    made may be read by any stream and by the host. Work that the job launches elsewhere than on the current stream is
    its own affair.
    """

    def __init__(
        self,
        device: torch.device,
        launchers: WorkerPool,
        event_waiters: WorkerPool,
        kernels: torch.cuda.Stream,
        uploads: Uploads,
        plan: PlanEntry,
        metrics: OperatorMetrics,
    ) -> None:
        self.device = device
        self._launchers = launchers
        self._event_waiters = event_waiters
        self._kernels = kernels
        self._uploads = uploads
        self._plan = plan
        self._metrics = metrics

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        launch = _Launch(partial(function, *args, **kwargs), self._kernels, self._metrics)
        try:
            return await run_job(self._launchers, self._plan, measured(self._metrics, launch))
        finally:
            # Also after a failure and after a cancellation: what was launched goes on until its event.
            if launch.launched is not None:
                await run_job(self._event_waiters, self._plan, launch.launched.synchronize, withdrawable=False)
                self._metrics.device_ended(str(self.device), launch.launched_at)

    async def run_small(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.run(function, *args, **kwargs)

    def upload(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], torch.cuda.Event]:
        """Through pinned memory, which is filled by this thread. On the device the kernels that come wait for the
        copies; those that are under way run beside them."""
        kernels, uploads = torch.cuda.current_stream(self.device), self._uploads
        with torch.cuda.stream(uploads.stream):
            copies = copy_staged(tensors, self.device, uploads.buffers, uploads.record)
            ready = uploads.record()
        kernels.wait_event(ready)
        for copy in copies:
            # Allocated for the stream of the copies: freed, it must not be written again before the kernels are done.
            copy.record_stream(kernels)
        return copies, ready


def _pinned_bytes(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes]. Raises ResourceExhausted where the system pins no more."""
    try:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        raise ResourceExhausted(
            "the system has no pinned memory for copies to the device", setting="threads", needed=nbytes
        ) from error


class _Launch(Generic[R]):
    """The job of a launching thread. `launched` is the event behind all that it put on its stream."""

    def __init__(self, call: Callable[[], R], kernels: torch.cuda.Stream, metrics: OperatorMetrics) -> None:
        self._call = call
        self._kernels = kernels
        self._metrics = metrics
        self.launched: torch.cuda.Event | None = None
        self.launched_at = 0.0

    def __call__(self) -> R:
        self.launched_at = self._metrics.clock.now()
        with torch.cuda.stream(self._kernels), job_metrics(self._metrics):
            try:
                return self._call()
            finally:
                event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                event.record(self._kernels)
                self.launched = event
