"""A plan's access to the I/O scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from pystachio.errors import InternalError
from pystachio.io_scheduler.buffers import BufferPool
from pystachio.io_scheduler.coalescing import coalesce
from pystachio.io_scheduler.devices import Destination
from pystachio.io_scheduler.request import Extent, Link
from pystachio.io_scheduler.submission import FileRead, Submission

_EMPTY = memoryview(bytearray())


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
    def buffers(self) -> BufferPool: ...

    async def locate(self, path: str) -> Link: ...

    def alignment(self, link: Link) -> int: ...

    def submit(
        self, plan_id: str, path: str, link: Link, reads: Sequence[FileRead], criticality: int = 0
    ) -> Submission: ...

    def abandon(self, submission: Submission) -> None: ...


class TransferClient:
    """One plan's reads; made by `IoSchedulerService.client` and used on the service's loop.

    Every method raises the typed error of the file (NotFound, Unauthorized, DataError when it ends early), or Cancelled
    once the plan was cancelled. A task that is cancelled while it waits ends when no device writes for it any more.
    """

    def __init__(self, service: TransferService, plan_id: str) -> None:
        self._service = service
        self.plan_id = plan_id

    async def read(self, path: str, extents: Sequence[Extent], *, criticality: int = 0) -> list[HostBuffer]:
        """One buffer per extent, in order. Neighbouring extents are read together and share their memory.

        Of the plan's reads, those with higher `criticality` go first.
        """
        link = await self._service.locate(path)
        runs = coalesce(extents, alignment=self._service.alignment(link))
        blocks = [self._service.buffers.acquire(run.extent.length) for run in runs]
        reads = [
            FileRead(run.extent, block, required=run.required, useful=run.useful)
            for run, block in zip(runs, blocks, strict=True)
        ]
        try:
            await self._finish(self._service.submit(self.plan_id, path, link, reads, criticality))
        except BaseException:
            # The error may be kept for long, and its traceback keeps this frame.
            blocks.clear()
            reads.clear()
            raise
        buffers = [_EMPTY] * len(extents)
        for run, block in zip(runs, blocks, strict=True):
            for position in run.members:
                start = extents[position].offset - run.extent.offset
                buffers[position] = block[start : start + extents[position].length]
        return [HostBuffer(buffer) for buffer in buffers]

    async def read_into(self, path: str, offset: int, destination: Destination, *, criticality: int = 0) -> None:
        """Fill `destination` with the file's bytes from `offset`.

        `destination` is contiguous: a writable memoryview, a CPU tensor, or a CUDA tensor where kvikio serves the link.
        """
        view = _as_bytes(destination)
        link = await self._service.locate(path)
        length = len(view)
        read = FileRead(Extent(offset, length), view, required=length, useful=length)
        await self._finish(self._service.submit(self.plan_id, path, link, [read], criticality))

    async def _finish(self, submission: Submission) -> None:
        ended = submission.ended
        try:
            await asyncio.wait((ended,))
        except asyncio.CancelledError:
            self._service.abandon(submission)
            while not ended.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((ended,))
            # Whoever asked has left; the outcome counts as seen.
            ended.exception()
            raise
        ended.result()


def _as_bytes(destination: Destination) -> Destination:
    """`destination` as one dimension of bytes; host tensors as memoryviews."""
    if isinstance(destination, memoryview):
        return destination.cast("B") if destination.format != "B" or destination.ndim != 1 else destination
    if not destination.is_contiguous():
        raise InternalError("a read needs a contiguous destination")
    import torch

    flat = destination.detach().reshape(-1).view(torch.uint8)
    return flat.numpy().data if flat.device.type == "cpu" else flat
