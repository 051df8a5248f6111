"""What a service has under way: transfers from their submission to their end, and the chunks of them inside devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count

from pystachio.errors import DataError, InternalError, PystachioError
from pystachio.io_scheduler.buffers import BufferPool
from pystachio.io_scheduler.core.request import Extent, Link, PathTaken, PriorityClass, Transfer
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest
from pystachio.io_scheduler.history import History
from pystachio.io_scheduler.ledger import Ledger
from pystachio.io_scheduler.links import OpenFiles
from pystachio.io_scheduler.submission import PendingChunk, PendingTransfer, Request, Submission


class UnderWay:
    """Does what the core orders, and keeps account of it.

    `transfers` by id have not ended; `chunks` by transfer and offset are inside devices, as are those `written_off`,
    for which nobody waits any more.
    """

    def __init__(
        self,
        *,
        files: OpenFiles,
        ledger: Ledger,
        history: History,
        buffers: BufferPool,
        priorities: Mapping[str, PriorityClass],
        ended: Callable[[int, int, ChunkEnd], None],
    ) -> None:
        """`priorities` are those of the plans. Devices call `ended` on any thread, perhaps inside `start_chunk`."""
        self.transfers: dict[int, PendingTransfer] = {}
        self.chunks: dict[tuple[int, int], PendingChunk] = {}
        self.written_off: dict[tuple[int, int], PendingChunk] = {}
        self._files = files
        self._ledger = ledger
        self._history = history
        self._buffers = buffers
        self._priorities = priorities
        self._ended = ended
        self._ids = count()

    @property
    def is_over(self) -> bool:
        """Nobody waits for anything."""
        return not self.transfers and not self.chunks

    def stuck_links(self) -> set[Link]:
        """Where devices hold on to chunks that were written off."""
        return {chunk.pending.transfer.link for chunk in self.written_off.values()}

    def add(self, submission: Submission, requests: Sequence[Request], criticality: int, now: float) -> list[Transfer]:
        """A transfer for each of the requests."""
        plan_id, link = submission.plan_id, submission.link
        file = self._files.acquire(link, submission.path, len(requests))
        priority = self._priorities[plan_id]
        account = self._ledger.account(plan_id, priority, link)
        transfers = []
        for position, request in enumerate(requests):
            transfer_id = next(self._ids)
            transfer = Transfer(
                transfer_id,
                plan_id,
                link,
                request.extent,
                criticality,
                request.credit,
                request.by_chunk,
                request.through,
                request.peer,
                request.rank,
                request.write_back,
            )
            origin = self._history.origin(transfer_id, plan_id, submission.operator, priority, link, now)
            self.transfers[transfer_id] = PendingTransfer(
                transfer, request, position, request.buffer, file, submission, now, priority, account, origin
            )
            transfers.append(transfer)
        submission.transfer_ids = tuple(transfer[0] for transfer in transfers)
        return transfers

    def start_chunk(self, transfer_id: int, chunk: Extent, queue_seconds: float, now: float) -> None:
        pending = self.transfers[transfer_id]
        transfer = pending.transfer
        offset, length = chunk
        start = offset - transfer.extent.offset
        ended = partial(self._ended, transfer_id, offset)
        if pending.buffer is None:
            try:
                pending.buffer = self._memory_for(pending)
            except PystachioError as error:
                request = ChunkRequest(pending.file, offset, memoryview(b""), 0)
                self.chunks[transfer_id, offset] = self._chunk(pending, request, queue_seconds, now)
                ended(ChunkEnd(0, PathTaken.BUFFERED, error))
                return
        required = pending.request.required - start
        request = ChunkRequest(
            pending.file,
            offset,
            pending.buffer[start : start + length],
            length if required >= length else max(0, required),
        )
        if pending.started_at is None:
            pending.started_at = now
        self.chunks[transfer_id, offset] = self._chunk(pending, request, queue_seconds, now)
        try:
            pending.submission.device.start(request, ended)
        except PystachioError as error:
            ended(ChunkEnd(0, PathTaken.BUFFERED, error))
        except Exception as error:
            failure = InternalError(f"a device did not take a chunk: {error!r}")
            failure.__cause__ = error
            ended(ChunkEnd(0, PathTaken.BUFFERED, failure))

    def deliver(self, transfer_id: int, chunk: Extent) -> None:
        """Tell whoever asked for the transfer chunk by chunk."""
        on_chunk = self.transfers[transfer_id].request.on_chunk
        if on_chunk is not None:
            on_chunk(chunk)

    def cancel_chunks(self, transfer_id: int, offsets: Sequence[int]) -> None:
        """Devices that can may end them early."""
        for offset in offsets:
            chunk = self.chunks[transfer_id, offset]
            chunk.pending.submission.device.abandon(chunk.request)

    def write_off(self, transfer_id: int, offsets: Sequence[int]) -> None:
        """The chunks' memory and file stay referenced until the device lets go of them, if ever."""
        for offset in offsets:
            chunk = self.chunks.pop((transfer_id, offset))
            self.written_off[transfer_id, offset] = chunk
            submission = chunk.pending.submission
            self._files.acquire(submission.link, submission.path, 1)

    def end_chunk(self, transfer_id: int, offset: int, end: ChunkEnd, now: float) -> tuple[bool, PystachioError | None]:
        """Whether that is news, and what went wrong: the second end of a chunk is not listened to."""
        key = (transfer_id, offset)
        chunk = self.chunks.pop(key, None)
        if chunk is None:
            return self._let_go(key), None
        transferred, path, error = end.transferred, end.path, end.error
        pending, started_at = chunk.pending, chunk.started_at
        if error is None and transferred < chunk.request.required:
            error = DataError(f"a device moved too few bytes: {pending.submission.path}")
        failed = error is not None
        pending.account.record_chunk(transferred, path, failed, chunk.queue_seconds, now - started_at)
        if self._history.enabled:
            self._history.chunk(chunk.origin, offset, transferred, started_at, now, path, failed)
        return True, error

    def end_transfer(self, transfer_id: int, error: PystachioError | None, now: float) -> Submission | None:
        """The submission whose other transfers are to be given up, if there are any."""
        pending = self.transfers.pop(transfer_id)
        submission = pending.submission
        self._files.release(submission.link, submission.path)
        others = None
        if error is None:
            pending.account.useful_bytes += pending.request.useful
        elif submission.error is None:
            error.plan_id = submission.plan_id
            submission.error = error
            others = submission if submission.remaining > 1 else None
        if self._history.enabled:
            transfer, code = pending.transfer, None if error is None else error.code
            self._history.transfer(
                pending.origin,
                str(submission.path),
                transfer.extent[1],
                pending.started_at,
                now,
                code,
                transfer.credit,
                transfer.peer,
            )
        submission.remaining -= 1
        if submission.remaining == 0:
            _resolve(submission)
        return others

    def fail(self, failure: InternalError) -> None:
        """Tell everybody who waits."""
        for pending in self.transfers.values():
            pending.submission.error = failure
            pending.submission.remaining = 0
            _resolve(pending.submission)
        self.transfers.clear()

    def _memory_for(self, pending: PendingTransfer) -> memoryview:
        buffers, parts = pending.submission.buffers, pending.request.parts
        if parts:
            whole, adjacent = self._buffers.acquire_adjacent(parts)
            buffers.update(enumerate(adjacent))
            return whole
        whole = buffers[pending.position] = self._buffers.acquire(pending.transfer.extent.length)
        return whole

    def _chunk(self, pending: PendingTransfer, request: ChunkRequest, queue_seconds: float, now: float) -> PendingChunk:
        transfer = pending.transfer
        plan_id = transfer.plan_id
        priority = self._priorities.get(plan_id, pending.priority)
        if priority is not pending.priority:
            pending.priority = priority
            pending.account = self._ledger.account(plan_id, priority, transfer.link)
            operator, submitted_at = pending.submission.operator, pending.submitted_at
            pending.origin = self._history.origin(
                transfer.transfer_id, plan_id, operator, priority, transfer.link, submitted_at
            )
        return PendingChunk(pending, request, pending.origin, now, queue_seconds)

    def _let_go(self, key: tuple[int, int]) -> bool:
        """The device has ended a chunk that was written off, if that is so."""
        chunk = self.written_off.pop(key, None)
        if chunk is None:
            return False
        submission = chunk.pending.submission
        self._files.release(submission.link, submission.path)
        return True


def _resolve(submission: Submission) -> None:
    if submission.ended.done():
        return
    if submission.error is not None:
        # The error may be kept for long, and its traceback keeps whoever waited.
        submission.buffers.clear()
        submission.ended.set_exception(submission.error)
    else:
        submission.ended.set_result(None)
