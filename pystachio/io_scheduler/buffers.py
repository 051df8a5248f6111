"""A pool of page-aligned host memory that reads land in.

A fresh anonymous page costs microseconds (4.6 us for 4 KiB where this was measured, several times as long as copying
it from the page cache), so slabs are kept, advised to be huge pages, and cut first-fit, with coalescing, in units of
one page. Memory returns to the pool when the last reference to it is gone, whoever holds it: pyarrow, numpy, torch and
memoryviews all keep the block's exporter alive, so a buffer cannot be reused under a reader or a device.

A pool that is closed leaves its slabs to the next one of the process, as the C library does with freed blocks.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pystachio.errors import ResourceExhausted

PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 << 20
SLAB_BYTES = 32 << 20
IDLE_BYTES = 512 << 20
SPARE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferStatistics:
    """`used_bytes` and `idle_bytes` add up to the slabs; `fresh_slabs` counts how often memory had to be mapped."""

    used_bytes: int
    idle_bytes: int
    slabs: int
    blocks: int
    acquired_blocks: int
    fresh_slabs: int


class Slab:
    """One mapping, and the runs of it that are free, by offset; neighbouring free runs are always joined."""

    def __init__(self, nbytes: int) -> None:
        # Huge pages need an aligned address, which the kernel does not promise.
        mapping = mmap.mmap(-1, nbytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            mapping.madvise(mmap.MADV_HUGEPAGE)
        whole: NDArray[np.uint8] = np.frombuffer(mapping, dtype=np.uint8)
        start = -whole.ctypes.data % HUGE_PAGE_BYTES
        self.memory = whole[start : start + nbytes]
        self.nbytes = nbytes
        self.free_bytes = nbytes
        self._offsets = [0]
        self._lengths = [nbytes]
        self._mapping = mapping

    def take(self, length: int) -> int | None:
        """Offset of a run of `length` bytes, the first that is long enough; None when there is none."""
        if length > self.free_bytes:
            return None
        for index, free in enumerate(self._lengths):
            if free < length:
                continue
            offset = self._offsets[index]
            if free == length:
                del self._offsets[index], self._lengths[index]
            else:
                self._offsets[index] += length
                self._lengths[index] -= length
            self.free_bytes -= length
            return offset
        return None

    def give_up(self) -> None:
        """Nobody needs the content: the system may take the pages back, and does not before it is short of memory."""
        if hasattr(mmap, "MADV_FREE"):
            with suppress(OSError):  # Not on a system without swap space, before Linux 4.12.
                self._mapping.madvise(mmap.MADV_FREE)

    def give(self, offset: int, length: int) -> None:
        self.free_bytes += length
        index = bisect_left(self._offsets, offset)
        if index < len(self._offsets) and offset + length == self._offsets[index]:
            length += self._lengths[index]
            del self._offsets[index], self._lengths[index]
        if index > 0 and self._offsets[index - 1] + self._lengths[index - 1] == offset:
            self._lengths[index - 1] += length
        else:
            self._offsets.insert(index, offset)
            self._lengths.insert(index, length)


class SpareSlabs:
    """Free slabs of pools that are closed, for those of the process that come after. Thread-safe.

    The system may take their pages back when it is short of memory.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._slabs: list[Slab] = []
        # Blocks die in the garbage collector, perhaps on the thread that holds the lock: what that sets free is only
        # noted, and entered by whoever holds the lock next.
        self._freed: deque[tuple[Slab, int]] = deque()
        self._closed_pools: list[BufferPool] = []

    @property
    def nbytes(self) -> int:
        self._collect()
        with self._lock:
            self._enter_freed()
            return sum(slab.nbytes for slab in self._slabs)

    def await_rest(self, pool: BufferPool) -> None:
        """A pool that was closed, some of whose blocks are still in use."""
        with self._lock:
            if pool not in self._closed_pools:
                self._closed_pools.append(pool)

    def keep(self, slab: Slab, most_bytes: int) -> None:
        """A slab that nothing refers to. It is dropped where there would be more than `most_bytes`, or too many.

        Never waits, whoever holds the lock.
        """
        self._freed.append((slab, min(most_bytes, self._most_bytes)))
        if self._lock.acquire(blocking=False):
            try:
                self._enter_freed()
            finally:
                self._lock.release()

    def take(self, nbytes: int) -> Slab | None:
        """A slab of that size, where there is one."""
        self._collect()
        with self._lock:
            self._enter_freed()
            for index, slab in enumerate(self._slabs):
                if slab.nbytes == nbytes:
                    return self._slabs.pop(index)
        return None

    def _enter_freed(self) -> None:
        while self._freed:
            slab, most_bytes = self._freed.popleft()
            if sum(kept.nbytes for kept in self._slabs) + slab.nbytes <= most_bytes:
                slab.give_up()
                self._slabs.append(slab)

    def _collect(self) -> None:
        """What became free since."""
        with self._lock:
            closed, self._closed_pools = self._closed_pools, []
        for pool in closed:
            pool.close()


class _Block(NamedTuple):
    """Memory that somebody has: what becomes free with it, and what it keeps from becoming so."""

    reference: weakref.ref[NDArray[np.uint8]]
    slab: Slab
    offset: int
    room: int
    parts: tuple[NDArray[np.uint8], ...]


class BufferPool:
    """Thread-safe. `idle_bytes` bounds the free memory that is kept, as far as slabs can be freed as a whole.

    Slabs come from `spare` where it has some, and go there when the pool is closed, as far as no more than
    `idle_bytes` are there then.
    """

    def __init__(
        self, *, idle_bytes: int = IDLE_BYTES, slab_bytes: int = SLAB_BYTES, spare: SpareSlabs | None = None
    ) -> None:
        self._spare = spare
        self._closed = False
        self._idle_bytes = idle_bytes
        self._spare_bytes = idle_bytes
        self._slab_bytes = slab_bytes
        self._lock = threading.Lock()
        self._slabs: list[Slab] = []
        self._blocks: dict[int, _Block] = {}
        # Blocks die on any thread, even inside this class when the garbage collector runs there: their ends are only
        # noted, and entered into the books by whoever holds the lock.
        self._dead: deque[weakref.ref[NDArray[np.uint8]]] = deque()
        self._acquired_blocks = 0
        self._fresh_slabs = 0

    def acquire(self, length: int) -> memoryview:
        """`length` writable bytes, page-aligned; they return to the pool when nothing refers to them any more.

        The content is arbitrary. Raises ResourceExhausted when the system has no memory to map.
        """
        room = max(PAGE_BYTES, -(-length // PAGE_BYTES) * PAGE_BYTES)
        with self._lock:
            self._bury()
            slab, offset = self._place(room)
            return self._block(slab, offset, length, room).data

    def acquire_adjacent(self, lengths: Sequence[int]) -> tuple[memoryview, list[memoryview]]:
        """Memory as by `acquire` for each of the lengths, multiples of a page, and all of it at once: one follows upon
        the other. Each returns to the pool on its own, once nothing refers to it or to the whole any more."""
        assert all(length > 0 and length % PAGE_BYTES == 0 for length in lengths), "whole pages"
        total = sum(lengths)
        with self._lock:
            self._bury()
            slab, start = self._place(total)
            offsets = accumulate(lengths, initial=start)
            parts = [self._block(slab, at, length, length) for at, length in zip(offsets, lengths, strict=False)]
            whole = self._block(slab, start, total, 0, tuple(parts))
            return whole.data, [part.data for part in parts]

    def close(self) -> None:
        """Nobody acquires any more: what is free goes now, what is in use when nothing refers to it."""
        with self._lock:
            self._closed = True
            self._idle_bytes = 0
            self._bury()
            self._unmap_above(0)
            in_use = bool(self._slabs)
        if in_use and self._spare is not None:
            self._spare.await_rest(self)

    def statistics(self) -> BufferStatistics:
        with self._lock:
            self._bury()
            idle = self._count_idle()
            return BufferStatistics(
                used_bytes=sum(slab.nbytes for slab in self._slabs) - idle,
                idle_bytes=idle,
                slabs=len(self._slabs),
                blocks=len(self._blocks),
                acquired_blocks=self._acquired_blocks,
                fresh_slabs=self._fresh_slabs,
            )

    def _block(
        self, slab: Slab, offset: int, length: int, room: int, parts: tuple[NDArray[np.uint8], ...] = ()
    ) -> NDArray[np.uint8]:
        """Memory that returns `room` bytes when nothing refers to it, and refers to its `parts`."""
        memory = slab.memory[offset : offset + length]
        reference = weakref.ref(memory, self._note_dead)
        self._blocks[id(reference)] = _Block(reference, slab, offset, room, parts)
        self._acquired_blocks += 1
        return memory

    def _place(self, room: int) -> tuple[Slab, int]:
        # Oldest slab first, so that use gathers there and younger slabs fall free as a whole.
        for slab in self._slabs:
            offset = slab.take(room)
            if offset is not None:
                return slab, offset
        slab = self._more(max(self._slab_bytes, -(-room // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES))
        self._slabs.append(slab)
        offset = slab.take(room)
        assert offset is not None
        return slab, offset

    def _more(self, nbytes: int) -> Slab:
        # A closed pool is perhaps asked by the spare slabs for what became free, so it does not ask them.
        slab = None if self._spare is None or self._closed else self._spare.take(nbytes)
        if slab is not None:
            return slab
        try:
            slab = Slab(nbytes)
        except (OSError, ValueError, OverflowError) as error:
            raise ResourceExhausted(
                f"the system has no memory for a read buffer of {nbytes:,} bytes", setting="memory", needed=nbytes
            ) from error
        self._fresh_slabs += 1
        return slab

    def _note_dead(self, block: weakref.ref[NDArray[np.uint8]]) -> None:
        self._dead.append(block)
        # Whoever holds the lock buries on its way in; a block that dies while it works waits for the next one.
        if self._lock.acquire(blocking=False):
            try:
                self._bury()
                self._unmap_above(self._idle_bytes)
            finally:
                self._lock.release()

    def _bury(self) -> None:
        while self._dead:
            block = self._blocks.pop(id(self._dead.popleft()))
            if block.room:
                block.slab.give(block.offset, block.room)
            # Its parts may die with it: they are noted, and next.
            del block

    def _count_idle(self) -> int:
        return sum(slab.free_bytes for slab in self._slabs)

    def _unmap_above(self, idle_bytes: int) -> None:
        idle = self._count_idle()
        for index in reversed(range(len(self._slabs))):
            if idle <= idle_bytes:
                return
            if self._slabs[index].free_bytes == self._slabs[index].nbytes:
                slab = self._slabs.pop(index)
                idle -= slab.nbytes
                if self._closed and self._spare is not None:
                    self._spare.keep(slab, self._spare_bytes)
