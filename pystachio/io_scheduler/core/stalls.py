"""Chunks that a device holds far longer than it should take no room from others.

A disk that retries one sector for many seconds goes on to serve the rest. Chunks that have been inside for
`STALLED_SECONDS` no longer count in the window, as far as one further window goes: a device that has stopped altogether
must not be given the whole memory. They count again when they end, or are written off.
"""

from __future__ import annotations

from pystachio.io_scheduler.core.link_queue import LinkQueue
from pystachio.io_scheduler.core.progress import TransferProgress

STALLED_SECONDS = 1.0


class Stalls:
    """Which chunks are set aside, by transfer and offset."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: dict[tuple[int, int], tuple[LinkQueue, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __len__(self) -> int:
        return len(self._chunks)

    def set_aside(self, progress: TransferProgress, now: float) -> bool:
        """Set the transfer's chunks aside that are stuck; whether there were any."""
        queue, gate, before = progress.queue, progress.gate, len(self._chunks)
        for offset, (length, started_at) in progress.outstanding.items():
            key = (progress.transfer.transfer_id, offset)
            if now - started_at < STALLED_SECONDS or key in self._chunks:
                continue
            links = (queue,) if gate is None else (queue, gate)
            if all(link.stalled_bytes + length <= link.limits.window_bytes for link in links):
                self._chunks[key] = links
                for link in links:
                    link.set_aside(length, now)
        return len(self._chunks) > before

    def bring_back(self, transfer_id: int, offset: int, length: int) -> None:
        """Count the chunk again, if it was set aside."""
        for link in self._chunks.pop((transfer_id, offset), ()):
            link.bring_back(length)
