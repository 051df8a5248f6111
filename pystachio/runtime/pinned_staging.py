"""Pinned host memory that batches pass through on their way to a device.

The copy engine reads only pinned memory at full speed and beside kernels. Batches are decoded into ordinary memory, so
a launching thread moves them into pinned buffers of one size: while the engine empties one buffer, the thread fills the
next. A buffer is filled again when the event behind its last copy has passed; the thread waits for that only when all
buffers are under way, and then for the oldest. The buffers are all the pinned memory there is, however large batches
are, and no page is pinned twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from pystachio.runtime.metrics import count_in_job

BUFFER_BYTES: Final = 4 << 20
"""A power of two, which torch's pinned allocator does not round up. Some 80 us of a PCIe 5 bus, far above what issuing
a copy costs."""

WAITED: Final = "waits for pinned memory"

_ALIGNMENT: Final = 64


class CopyEvent(Protocol):
    """As torch.cuda.Event: `query` is whether it has passed, `synchronize` waits for it."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


@dataclass(slots=True, eq=False)
class StagingBuffer:
    """`memory` is uint8 [bytes]; `emptied` passes when the last copy out of it is over (None: there was none)."""

    memory: torch.Tensor
    emptied: CopyEvent | None = None


class StagingBuffers:
    """At most `count` buffers, made when they are needed; any thread may take and give back.

    With at least two buffers for each thread that fills one, every thread fills one while another is emptied.
    """

    def __init__(self, *, count: int, nbytes: int, allocate: Callable[[int], torch.Tensor]) -> None:
        """`allocate` gives pinned memory: uint8 [bytes]. It is called by the threads that take."""
        self.nbytes = nbytes
        self._count = count
        self._allocate = allocate
        self._made = 0
        self._under_way: deque[StagingBuffer] = deque()
        self._returned = threading.Condition()

    def take(self) -> StagingBuffer:
        """A buffer that no copy reads any more. Waits for the oldest copy, or another thread, where all are in use."""
        with self._returned:
            while not self._under_way and self._made == self._count:
                self._returned.wait()
            if self._under_way and (self._made == self._count or _is_emptied(self._under_way[0])):
                buffer = self._under_way.popleft()
            else:
                self._made += 1
                buffer = None
        if buffer is None:
            return self._make()
        if not _is_emptied(buffer):
            assert buffer.emptied is not None
            count_in_job(WAITED, 1)
            buffer.emptied.synchronize()
        return buffer

    def give_back(self, buffer: StagingBuffer, emptied: CopyEvent | None) -> None:
        """It may be filled again when `emptied` has passed; None: at once."""
        buffer.emptied = emptied
        with self._returned:
            self._under_way.append(buffer)
            self._returned.notify()

    def _make(self) -> StagingBuffer:
        try:
            return StagingBuffer(self._allocate(self.nbytes))
        except BaseException:
            with self._returned:
                self._made -= 1
                self._returned.notify()
            raise

    @property
    def allocated_bytes(self) -> int:
        """Pinned memory that is held."""
        with self._returned:
            return self._made * self.nbytes


def copy_staged(
    tensors: Sequence[torch.Tensor],
    device: torch.device,
    buffers: StagingBuffers,
    record: Callable[[], CopyEvent],
) -> list[torch.Tensor]:
    """CPU tensors on `device`, by copies on the current stream; the sources may be dropped when this returns.

    `record` gives an event behind everything on that stream. The copies are contiguous. Tensors share buffers, and a
    tensor that is larger than one goes in parts.
    """
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for tensor in tensors]
    filling = _Filling(buffers, record)
    try:
        for tensor, copy in zip(tensors, copies, strict=True):
            if tensor.numel():
                filling.copy(_as_bytes(tensor), _as_bytes(copy))
    finally:
        filling.end()
    return copies


class _Filling:
    """The buffer that a thread fills, and how far it has come."""

    def __init__(self, buffers: StagingBuffers, record: Callable[[], CopyEvent]) -> None:
        self._buffers = buffers
        self._record = record
        self._buffer: StagingBuffer | None = None
        self._used = 0

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """uint8 to uint8, of the same length."""
        begin = 0
        while begin < source.shape[0]:
            if self._buffer is not None and self._used >= self._buffers.nbytes:
                self.end()
            if self._buffer is None:
                self._buffer, self._used = self._buffers.take(), 0
            end = min(source.shape[0], begin + self._buffers.nbytes - self._used)
            staged = self._buffer.memory[self._used : self._used + end - begin]
            staged.copy_(source[begin:end])
            target[begin:end].copy_(staged, non_blocking=True)
            self._used += -(-(end - begin) // _ALIGNMENT) * _ALIGNMENT
            begin = end

    def end(self) -> None:
        if self._buffer is not None:
            buffer, self._buffer = self._buffer, None
            try:
                emptied: CopyEvent | None = self._record()
            except BaseException:
                self._buffers.give_back(buffer, None)
                raise
            self._buffers.give_back(buffer, emptied)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _is_emptied(buffer: StagingBuffer) -> bool:
    return buffer.emptied is None or buffer.emptied.query()
