"""Chunks that failed and are tried again, and chunks that devices do not end in time."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from pystachio.errors import PystachioError, ResourceExhausted
from pystachio.io_scheduler.core.link_queue import LinkQueue
from pystachio.io_scheduler.core.progress import TransferProgress
from pystachio.io_scheduler.core.request import Extent
from pystachio.io_scheduler.core.resources import CreditBudget
from pystachio.io_scheduler.core.stalls import Stalls

CHECK_SECONDS = 1.0
"""How often the chunks inside devices are checked for time-outs."""
BACK_OFF_SECONDS = 0.01
"""Before the second attempt of a chunk; four times as long before each further one."""


class WrittenOff(NamedTuple):
    """A chunk that the device has not let go of; `length` bytes of credit are still taken."""

    queue: LinkQueue
    budget: CreditBudget | None
    plan_id: str
    length: int


class LateChunks:
    """Of one scheduler. `stalls` are chunks that have been inside for so long that others need not wait for them."""

    __slots__ = ("_retries", "_sequence", "_written_off", "stalls")

    def __init__(self) -> None:
        self._retries: list[tuple[float, int, TransferProgress, Extent]] = []
        self._sequence = 0
        self.stalls = Stalls()
        self._written_off: dict[tuple[int, int], WrittenOff] = {}

    def next_retry(self) -> float | None:
        """When the first chunk is to be tried again."""
        retries = self._retries
        while retries and retries[0][2].error is not None:
            heappop(retries)
        return retries[0][0] if retries else None

    def try_again(self, progress: TransferProgress, chunk: Extent, error: PystachioError, now: float) -> bool:
        """Whether the chunk that failed is worth another attempt, which is then due after a pause."""
        attempts = progress.attempts = progress.attempts or {}
        tried = attempts[chunk.offset] = attempts.get(chunk.offset, 0) + 1
        if not error.retryable or tried >= progress.queue.limits.attempts:
            return False
        progress.backing_off += 1
        self._sequence += 1
        heappush(self._retries, (now + BACK_OFF_SECONDS * 4.0 ** (tried - 1), self._sequence, progress, chunk))
        return True

    def retry(self, now: float) -> list[LinkQueue]:
        """Queue the chunks whose pause is over; says where."""
        queues = []
        while self._retries and self._retries[0][0] <= now:
            _, _, progress, chunk = heappop(self._retries)
            if progress.error is None:
                progress.backing_off -= 1
                progress.queue.add_redo(progress, chunk, now)
                queues.append(progress.queue)
        return queues

    def write_off(self, progress: TransferProgress) -> tuple[int, ...]:
        """Take the transfer's chunks out of the books, except for their credit; says at which offsets."""
        queue, peer = progress.queue, None if progress.line is None else progress.line.peer
        chunks, progress.outstanding = progress.outstanding, {}
        for offset, (length, _) in chunks.items():
            self.stalls.bring_back(progress.transfer.transfer_id, offset, length)
            lost = WrittenOff(queue, progress.budget, progress.plan.plan_id, length)
            self._written_off[progress.transfer.transfer_id, offset] = lost
            if progress.budget is not None:
                progress.credited -= length
                progress.budget.lost += length
            queue.written_off_bytes += length
            queue.outstanding_bytes -= length
            if progress.gate is not None:
                progress.gate.outstanding_bytes -= length
            if peer is not None:
                peer.give(length)
        return tuple(chunks)

    def end(self, transfer_id: int, offset: int) -> WrittenOff:
        """The device has let go of the chunk after all."""
        lost = self._written_off.pop((transfer_id, offset))
        lost.queue.written_off_bytes -= lost.length
        if lost.budget is not None:
            lost.budget.lost -= lost.length
        return lost

    def credit(self) -> Iterable[tuple[CreditBudget, int]]:
        """What is still taken (for invariants)."""
        return [(lost.budget, lost.length) for lost in self._written_off.values() if lost.budget is not None]


def timed_out(progress: TransferProgress) -> ResourceExhausted:
    seconds = progress.queue.limits.timeout_seconds
    return ResourceExhausted(
        f"a device did not answer within {seconds:g} seconds: {progress.transfer.link}",
        setting="io_timeout",
        value=seconds,
        plan_id=progress.transfer.plan_id,
    )
