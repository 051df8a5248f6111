"""The asyncio shell around the core: takes submissions, drives devices, keeps the ledger.

Everything runs on one event loop, in callbacks. What clients ask during one turn of the loop reaches the core together,
and before the chunks that devices have ended meanwhile: an urgent transfer never misses a place that was just freed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import assert_never

from pystachio.errors import Cancelled, InternalError, PystachioError
from pystachio.io_scheduler.buffers import BufferPool, BufferStatistics
from pystachio.io_scheduler.client import TransferClient
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRead, OpenDevice, choose
from pystachio.io_scheduler.ledger import Ledger
from pystachio.io_scheduler.links import Links, Locate, OpenFiles, locate_disk
from pystachio.io_scheduler.request import Extent, Link, PathTaken, PriorityClass, Transfer
from pystachio.io_scheduler.scheduler import (
    Action,
    CancelTransfer,
    ChunkCompleted,
    ChunkFailed,
    CompleteTransfer,
    Event,
    FailTransfer,
    LinkOpened,
    PlanCancelled,
    PlanClosed,
    PlanOpened,
    PriorityChanged,
    Scheduler,
    SchedulerStatistics,
    StartChunk,
    TransfersCancelled,
    TransfersSubmitted,
)
from pystachio.io_scheduler.submission import FileRead, PendingChunk, PendingTransfer, Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class IoSchedulerStatistics:
    """`plans`, `transfers`, `chunks` (inside devices) and `open_files` are zero when nothing is under way."""

    plans: int
    transfers: int
    chunks: int
    open_files: int
    core: SchedulerStatistics
    buffers: BufferStatistics


class IoSchedulerService:
    """Owns the devices of a node; `open_device` makes the one for a link, `locate` names the link of a file.

    Apart from the constructor, everything is called on the loop that `start` ran on.
    """

    def __init__(
        self,
        *,
        open_device: OpenDevice | None = None,
        locate: Locate = locate_disk,
        buffers: BufferPool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ledger = Ledger()
        self.buffers = buffers if buffers is not None else BufferPool()
        self._links = Links(locate, open_device if open_device is not None else choose())
        self._files = OpenFiles(self._links)
        self._clock = clock
        self._core = Scheduler()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._priorities: dict[str, PriorityClass] = {}
        self._transfer_ids = count()
        self._pending: dict[int, PendingTransfer] = {}
        self._inside: dict[tuple[int, int], PendingChunk] = {}
        self._events: list[Event] = []
        self._submitted: list[Transfer] = []
        self._turn_is_due = False
        # Written by the devices' threads.
        self._ended: deque[tuple[int, int, ChunkEnd]] = deque()
        self._loop_is_woken = False
        self._drained: asyncio.Event = asyncio.Event()
        self._drained.set()
        self._failure: InternalError | None = None

    async def start(self) -> None:
        assert self._loop is None, "the service is started once"
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        """Cancel what is under way, wait until no device works any more, release threads and idle memory."""
        for plan_id in tuple(self._priorities):
            self.close_plan(plan_id)
        await self._drained.wait()
        self._turn()
        self._files.close()
        self._links.close()
        self._core = Scheduler()
        self._loop = None
        self.buffers.trim()

    def client(self, plan_id: str, priority: PriorityClass) -> TransferClient:
        """Open the plan; its clients work until `close_plan`."""
        if plan_id not in self._priorities:
            self._priorities[plan_id] = priority
            self._note(PlanOpened(plan_id, priority))
        return TransferClient(self, plan_id)

    def close_plan(self, plan_id: str) -> None:
        """The plan submits nothing more; what it still has under way is cancelled. The ledger remembers it."""
        if self._priorities.pop(plan_id, None) is not None:
            self._note(PlanClosed(plan_id))
            self.ledger.close_plan(plan_id)

    def cancel_plan(self, plan_id: str) -> None:
        """Every read of the plan, now and later, raises Cancelled."""
        if plan_id in self._priorities:
            self._note(PlanCancelled(plan_id))

    def set_priority(self, plan_id: str, priority: PriorityClass) -> None:
        """Applies to what waits; chunks inside devices stay there."""
        if plan_id in self._priorities:
            self._priorities[plan_id] = priority
            self._note(PriorityChanged(plan_id, priority))

    def statistics(self) -> IoSchedulerStatistics:
        return IoSchedulerStatistics(
            plans=len(self._priorities),
            transfers=len(self._pending),
            chunks=len(self._inside),
            open_files=len(self._files),
            core=self._core.statistics(),
            buffers=self.buffers.statistics(),
        )

    async def locate(self, path: str) -> Link:
        """The link of the file. Raises NotFound or Unauthorized the first time that the file is seen."""
        link = await self._links.locate(path)
        if link not in self._links:
            self._note(LinkOpened(link, self._links.open(link).limits))
        return link

    def alignment(self, link: Link) -> int:
        return self._links.device(link).limits.alignment

    def submit(
        self, plan_id: str, path: str, link: Link, reads: Sequence[FileRead], criticality: int = 0
    ) -> Submission:
        """Queue reads of one file; the submission's `ended` says when all of them have ended."""
        assert self._loop is not None, "the service is not running"
        submission = Submission(plan_id, path, link, self._loop.create_future(), remaining=len(reads))
        refusal = self._refusal(plan_id)
        if refusal is not None:
            submission.ended.set_exception(refusal)
        elif not reads:
            submission.ended.set_result(None)
        else:
            submission.transfer_ids = tuple(self._queue(submission, read, criticality) for read in reads)
            self._turn_soon()
        return submission

    def abandon(self, submission: Submission) -> None:
        """Whoever waited gave up: nothing more is started, and `ended` follows once the devices are done."""
        self._note(TransfersCancelled(submission.transfer_ids))

    def _refusal(self, plan_id: str) -> PystachioError | None:
        if self._failure is not None:
            return self._failure
        if plan_id not in self._priorities:
            return Cancelled("the plan is closed", plan_id=plan_id)
        return None

    def _queue(self, submission: Submission, read: FileRead, criticality: int) -> int:
        transfer_id = next(self._transfer_ids)
        transfer = Transfer(transfer_id, submission.plan_id, submission.link, read.extent, criticality)
        file = self._files.acquire(submission.link, submission.path)
        self._pending[transfer_id] = PendingTransfer(transfer, read, file, submission)
        self._submitted.append(transfer)
        self._drained.clear()
        return transfer_id

    def _note(self, event: Event) -> None:
        if self._failure is not None:
            return
        self._flush_submitted()
        self._events.append(event)
        self._turn_soon()

    def _flush_submitted(self) -> None:
        if self._submitted:
            self._events.append(TransfersSubmitted(tuple(self._submitted)))
            self._submitted.clear()

    def _turn_soon(self) -> None:
        if not self._turn_is_due and self._loop is not None:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _wake(self, transfer_id: int, offset: int, end: ChunkEnd) -> None:
        """Called by devices, on any thread; one wake-up of the loop serves all chunks that end until it runs."""
        self._ended.append((transfer_id, offset, end))
        if not self._loop_is_woken:
            self._loop_is_woken = True
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        try:
            self._flush_submitted()
            events, self._events = self._events, []
            for event in events:
                self._act(self._core.handle(event, self._clock()))
            # Cleared before the queue is emptied, so that a chunk which ends in between wakes the loop again.
            self._loop_is_woken = False
            while self._ended:
                self._end_chunk(*self._ended.popleft())
        except Exception as error:
            self._fail(error)
        if not self._pending and not self._inside:
            self._drained.set()

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartChunk(transfer_id, chunk, queue_seconds):
                    self._start_chunk(transfer_id, chunk, queue_seconds)
                case CompleteTransfer(transfer_id):
                    self._end_transfer(transfer_id, None)
                case FailTransfer(transfer_id, error):
                    self._end_transfer(transfer_id, error)
                case CancelTransfer(transfer_id, offsets):
                    for offset in offsets:
                        chunk_inside = self._inside[transfer_id, offset]
                        self._links.device(chunk_inside.pending.transfer.link).abandon(chunk_inside.read)
                case _:
                    assert_never(action)

    def _start_chunk(self, transfer_id: int, chunk: Extent, queue_seconds: float) -> None:
        pending = self._pending[transfer_id]
        transfer = pending.transfer
        start = chunk.offset - transfer.extent.offset
        read = ChunkRead(
            pending.file,
            chunk.offset,
            pending.read.destination[start : start + chunk.length],
            required=max(0, min(chunk.length, pending.read.required - start)),
        )
        priority = self._priorities.get(transfer.plan_id, PriorityClass.NORMAL)
        self._inside[transfer_id, chunk.offset] = PendingChunk(pending, read, priority, self._clock(), queue_seconds)
        ended = partial(self._wake, transfer_id, chunk.offset)
        try:
            self._links.device(transfer.link).start(read, ended)
        except Exception as error:
            failure = InternalError(f"a device did not take a chunk: {error!r}")
            failure.__cause__ = error
            ended(ChunkEnd(0, PathTaken.BUFFERED, failure))

    def _end_chunk(self, transfer_id: int, offset: int, end: ChunkEnd) -> None:
        chunk = self._inside.pop((transfer_id, offset))
        if self._failure is not None:
            return
        now = self._clock()
        transfer = chunk.pending.transfer
        self.ledger.account(transfer.plan_id, chunk.priority, transfer.link).record_chunk(
            transferred=end.transferred,
            path=end.path,
            failed=end.error is not None,
            queue_seconds=chunk.queue_seconds,
            service_seconds=now - chunk.started_at,
        )
        if end.error is None:
            self._act(self._core.handle(ChunkCompleted(transfer_id, offset), now))
        else:
            self._act(self._core.handle(ChunkFailed(transfer_id, offset, end.error), now))

    def _end_transfer(self, transfer_id: int, error: PystachioError | None) -> None:
        pending = self._pending.pop(transfer_id)
        submission = pending.submission
        self._files.release(submission.link, submission.path)
        if error is None:
            priority = self._priorities.get(submission.plan_id, PriorityClass.NORMAL)
            account = self.ledger.account(submission.plan_id, priority, submission.link)
            account.useful_bytes += pending.read.useful
        elif submission.error is None:
            error.plan_id = submission.plan_id
            submission.error = error
            if submission.remaining > 1:
                self.abandon(submission)
        submission.remaining -= 1
        if submission.remaining == 0:
            _resolve(submission)

    def _fail(self, error: Exception) -> None:
        """A defect in the scheduler: everybody who waits is told, nobody hangs, nothing more is begun."""
        self._failure = InternalError(f"the I/O scheduler failed: {error!r}")
        self._failure.__cause__ = error
        self._events.clear()
        self._submitted.clear()
        for pending in self._pending.values():
            pending.submission.error = self._failure
            _resolve(pending.submission)
        self._pending.clear()
        self._turn_soon()


def _resolve(submission: Submission) -> None:
    if submission.ended.done():
        return
    if submission.error is not None:
        submission.ended.set_exception(submission.error)
    else:
        submission.ended.set_result(None)
