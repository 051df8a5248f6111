"""A plan's access to the I/O scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from pystachio.errors import (
    Cancelled,
    DataError,
    InternalError,
    InvalidRequest,
    NotFound,
    PystachioError,
    ResourceExhausted,
    Unauthorized,
)
from pystachio.io_scheduler.buffers import PAGE_BYTES, BufferPool
from pystachio.io_scheduler.coalescing import coalesce
from pystachio.io_scheduler.core.request import Direction, Extent, Link
from pystachio.io_scheduler.devices import Buffer, FileSeries
from pystachio.io_scheduler.history import History
from pystachio.io_scheduler.prefetch import Prefetch
from pystachio.io_scheduler.submission import Request, Submission

_EMPTY = memoryview(bytearray())

_OF_ONE_FILE = (NotFound, Unauthorized, DataError, ResourceExhausted, InvalidRequest)
"""What one of several files may be to blame for. Anything else is the disk's."""

_SERIES_FILES = 16
"""Each is opened: an urgent chunk waits for all of them."""
_SERIES_BYTES = 2 << 20
"""Of files that are read together: a chunk of a quick disk, so that two of them are inside it at once."""


class HostBuffer:
    """The bytes of one extent, in memory that returns to its pool when the last reference is gone.

    Arrow, NumPy and torch may keep zero-copy views after `release`: the memory is not reused under them.
    """

    __slots__ = ("_view",)

    def __init__(self, view: memoryview) -> None:
        self._view: memoryview | None = view

    @property
    def view(self) -> memoryview:
        """Exactly the extent's bytes: contiguous, writable, format `B`."""
        if self._view is None:
            raise InternalError("a read buffer was used after its release")
        return self._view

    @property
    def nbytes(self) -> int:
        return 0 if self._view is None else self._view.nbytes

    def release(self) -> None:
        """Idempotent; dropping the buffer does the same."""
        self._view = None

    def __enter__(self) -> HostBuffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class TransferService(Protocol):
    """What a client needs of `service.IoSchedulerService`, which says more."""

    @property
    def history(self) -> History: ...

    @property
    def buffers(self) -> BufferPool: ...

    def now(self) -> float: ...

    def known_link(self, path: str) -> Link | None: ...

    async def locate(self, path: str, direction: Direction = Direction.READ) -> Link: ...

    def alignment(self, link: Link) -> int: ...

    def reads_series(self, link: Link) -> bool: ...

    def submit(
        self,
        plan_id: str,
        path: str | FileSeries,
        link: Link,
        requests: Sequence[Request],
        criticality: int = 0,
        operator: str = "",
    ) -> Submission: ...

    def abandon(self, submission: Submission) -> None: ...

    def boost(self, submission: Submission, plan_id: str, criticality: int = 0) -> None: ...


class TransferClient:
    """One plan's transfers, or those of one operator of it; made by `IoSchedulerService.client`, used on its loop.

    Every method raises the typed error of the file (NotFound, Unauthorized, DataError when it ends early; `read_files`
    only that of `beside`), or Cancelled once the plan was cancelled. A task that is cancelled while it waits ends when
    no device works for it any more.
    """

    def __init__(self, service: TransferService, plan_id: str, operator: str = "") -> None:
        self._service = service
        self.plan_id = plan_id
        self.operator = operator

    def of_operator(self, operator: str) -> TransferClient:
        """The same plan's client, whose transfers are recorded as the operator's."""
        return TransferClient(self._service, self.plan_id, operator)

    def link(self, path: str) -> Link | None:
        """Where the file is read from; None as long as nobody has read it."""
        return self._service.known_link(path)

    def memory(self, lengths: Sequence[int]) -> list[memoryview]:
        """Memory like that which reads land in, so many bytes each, at least one. Thread-safe. Raises
        ResourceExhausted."""
        return [self._service.buffers.acquire(length) for length in lengths]

    def prefetch(self) -> Prefetch:
        """For reads that nobody waits for yet."""
        return Prefetch(self._service)

    async def read(
        self, path: str, extents: Sequence[Extent], *, criticality: int = 0, prefetch: Prefetch | None = None
    ) -> list[HostBuffer]:
        """One buffer per extent, in order. Neighbouring extents are read together and share their memory.

        Of the plan's transfers, those with higher `criticality` go first; with `prefetch`, that is up to it. The memory
        is taken when the bytes are about to move.
        """
        service = self._service
        link = service.known_link(path) or await service.locate(path)
        runs = coalesce(extents, alignment=service.alignment(link))
        requests = [Request(run.extent, None, run.required, run.useful) for run in runs]
        submission = self._submit(path, link, requests, criticality, prefetch)
        await self._finish(submission)
        views = [_EMPTY] * len(extents)
        for index, run in enumerate(runs):
            block = submission.buffers[index]
            for position in run.members:
                start = extents[position].offset - run.extent.offset
                views[position] = block[start : start + extents[position].length]
        return [HostBuffer(view) for view in views]

    async def read_files(
        self, files: Sequence[tuple[str, int]], *, beside: str, prefetch: Prefetch | None = None
    ) -> list[HostBuffer | PystachioError]:
        """The first so many bytes of each file, all under way at once, for a part of what as many `read` cost: where
        the link reads series, neighbours of whole pages share a transfer.

        In the place of a file that cannot be read is its error. `beside` is a file or folder on the same disk as all of
        them: to locate it once is enough. Raises its error, and nothing is read, where that fails."""
        service = self._service
        link = service.known_link(beside) or await service.locate(beside)
        alone = [(position,) for position in range(len(files))]
        runs = _runs(files, service.alignment(link)) if service.reads_series(link) else alone
        found = await self._read_runs(files, runs, link, prefetch)
        missing = [run for run in alone if run[0] not in found]
        if missing:  # one of those that were read together was to blame
            found |= await self._read_runs(files, missing, link, prefetch)
        return [found[position] for position in range(len(files))]

    async def _read_runs(
        self,
        files: Sequence[tuple[str, int]],
        runs: Sequence[Sequence[int]],
        link: Link,
        prefetch: Prefetch | None,
    ) -> dict[int, HostBuffer | PystachioError]:
        """The files by position, those of a run together: where one of several is to blame, none of them."""
        submissions = [self._submit_run([files[position] for position in run], link, prefetch) for run in runs]
        found: dict[int, HostBuffer | PystachioError] = {}
        done = 0
        try:
            for run, submission in zip(runs, submissions, strict=True):
                outcome = await self._outcome(submission)
                done += 1
                if outcome is None:
                    assert isinstance(submission, Submission)
                    for index, position in enumerate(run):
                        nbytes = files[position][1]
                        found[position] = HostBuffer(submission.buffers[index][:nbytes] if nbytes else _EMPTY)
                elif len(run) == 1 or not isinstance(outcome, _OF_ONE_FILE):
                    found |= dict.fromkeys(run, outcome)
        except BaseException:
            await self._give_up([left for left in submissions[done:] if isinstance(left, Submission)])
            raise
        return found

    def _submit_run(
        self, files: Sequence[tuple[str, int]], link: Link, prefetch: Prefetch | None
    ) -> Submission | PystachioError:
        service = self._service
        path, nbytes = files[0]
        lengths = tuple(nbytes for _, nbytes in files)
        if len(files) == 1 and not (service.reads_series(link) and _is_part(nbytes, service.alignment(link))):
            alignment = service.alignment(link)
            extent = Extent(0, -(-nbytes // alignment) * alignment)
            requests = [Request(extent, None, nbytes, nbytes)] if nbytes else []
            name: str | FileSeries = path
        else:
            total = sum(lengths)
            requests = [Request(Extent(0, total), None, total, total, parts=lengths)]
            name = FileSeries(tuple(files))
        try:
            return self._submit(name, link, requests, 0, prefetch)
        except PystachioError as error:  # there is no descriptor, or no memory, for it
            # Its traceback would keep this call, and so the memory of the other files.
            return error.with_traceback(None)

    async def _outcome(self, submission: Submission | PystachioError) -> PystachioError | None:
        """What went wrong, if anything. Whoever is cancelled meanwhile gives the submission up."""
        if isinstance(submission, PystachioError):
            return submission
        try:
            await submission.ended
        except Cancelled:
            raise
        except PystachioError as error:
            return error.with_traceback(None)
        self._note_consumed(submission)
        return None

    async def read_into(self, path: str, offset: int, destination: Buffer, *, criticality: int = 0) -> None:
        """Fill `destination` with the file's bytes from `offset`.

        `destination` is contiguous: a writable memoryview, a CPU tensor, or a CUDA tensor where kvikio serves the link.
        """
        view = as_bytes(destination)
        link = self._service.known_link(path) or await self._service.locate(path)
        await self._move(path, link, Request(Extent(offset, len(view)), view, len(view), len(view)), criticality)

    async def write(self, path: str, offset: int, source: Buffer, *, criticality: int = 0, spill: bool = False) -> None:
        """Put `source` into the file from `offset`; the file is made, readable by its owner only, if it is not there.

        Returns when the bytes are in the file, not when they are durable. `spill` says that this frees memory: such
        writes have a lane of their own. Raises ResourceExhausted when the disk is full.
        """
        view = as_bytes(source)
        link = await self._service.locate(path, Direction.WRITE)
        request = Request(Extent(offset, len(view)), view, len(view), len(view), write_back=spill)
        await self._move(path, link, request, criticality)

    async def _move(self, path: str, link: Link, request: Request, criticality: int) -> None:
        await self._finish(self._submit(path, link, [request], criticality))

    def _submit(
        self,
        name: str | FileSeries,
        link: Link,
        requests: Sequence[Request],
        criticality: int,
        prefetch: Prefetch | None = None,
    ) -> Submission:
        if prefetch is None:
            return self._service.submit(self.plan_id, name, link, requests, criticality, self.operator)
        submission = self._service.submit(self.plan_id, name, link, requests, prefetch.criticality, self.operator)
        prefetch.note(submission)
        return submission

    async def _finish(self, submission: Submission) -> None:
        try:
            # Cancelling the task cancels this future, and nothing else.
            await submission.ended
        except asyncio.CancelledError:
            await self._give_up([submission])
            raise
        self._note_consumed(submission)

    def _note_consumed(self, submission: Submission) -> None:
        if self._service.history.enabled:
            now = self._service.now()
            for transfer_id in submission.transfer_ids:
                self._service.history.consumed(transfer_id, now)

    async def _give_up(self, submissions: Sequence[Submission]) -> None:
        """Nobody wants the bytes any more, but the buffers are in use until the devices have let go of them."""
        left = []
        for submission in submissions:
            if submission.remaining:
                submission.ended = asyncio.get_running_loop().create_future()
                self._service.abandon(submission)
                left.append(submission.ended)
            elif not submission.ended.cancelled():
                # Both at once: the outcome counts as seen.
                submission.ended.exception()
        while not all(ended.done() for ended in left):
            with suppress(asyncio.CancelledError):
                await asyncio.wait(left)
        for ended in left:
            # Whoever asked has left; the outcome counts as seen.
            ended.exception()


def _runs(files: Sequence[tuple[str, int]], alignment: int) -> list[list[int]]:
    """Positions of neighbours that are whole pages, and few enough bytes to be read together."""
    runs: list[list[int]] = []
    room = 0
    for position, (_, nbytes) in enumerate(files):
        fits = _is_part(nbytes, alignment)
        if fits and nbytes <= room and len(runs[-1]) < _SERIES_FILES:
            runs[-1].append(position)
            room -= nbytes
        else:
            runs.append([position])
            room = _SERIES_BYTES - nbytes if fits else 0
    return runs


def _is_part(nbytes: int, alignment: int) -> bool:
    """Whether a file of so many bytes can be one of a series."""
    return nbytes > 0 and nbytes % alignment == 0 and nbytes % PAGE_BYTES == 0


def as_bytes(destination: Buffer) -> Buffer:
    """`destination` as one dimension of bytes; host tensors as memoryviews."""
    if isinstance(destination, memoryview):
        return destination.cast("B") if destination.format != "B" or destination.ndim != 1 else destination
    if not destination.is_contiguous():
        raise InternalError("a read needs a contiguous destination")
    import torch

    flat = destination.detach().reshape(-1).view(torch.uint8)
    return flat.numpy().data if flat.device.type == "cpu" else flat
