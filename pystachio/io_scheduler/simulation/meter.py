"""What a link did: how long it was busy, when, and for whom."""

from __future__ import annotations

from pystachio.io_scheduler.core.request import Link, PriorityClass

_SLOTS = 256
_FIRST_SLOT_SECONDS = 1e-5


class LinkMeter:
    """Busy seconds of one link of one node, in total and by class over time; bytes by class.

    The time line has at most some hundred slots, which become wider as time goes on: `slot_seconds` each.
    """

    __slots__ = (
        "_from",
        "_slots",
        "_until",
        "busy_seconds",
        "bytes_by_class",
        "chunks",
        "link",
        "node",
        "slot_seconds",
    )

    def __init__(self, node: int, link: Link, *, counted_from: float, counted_until: float) -> None:
        """The time before `counted_from`, when devices are still being calibrated, is in the time line only."""
        self.node = node
        self.link = link
        self.busy_seconds = 0.0
        self.bytes_by_class = [0] * len(PriorityClass)
        self.chunks = 0
        self.slot_seconds = _FIRST_SLOT_SECONDS
        self._from, self._until = counted_from, counted_until
        self._slots: tuple[list[float], ...] = tuple([] for _ in PriorityClass)

    def note(self, start: float, end: float, length: int, priority: PriorityClass) -> None:
        """The link was busy with a chunk from `start` to `end`; in the order of `start`."""
        while end >= _SLOTS * self.slot_seconds:
            self._widen()
        _fill(self._slots[priority], self.slot_seconds, start, end)
        if end <= self._from or start >= self._until:
            return
        self.chunks += 1
        seconds = end - start
        inside = min(end, self._until) - max(start, self._from)
        self.busy_seconds += inside
        self.bytes_by_class[priority] += length if inside == seconds else round(length * inside / seconds)

    def shares(self) -> tuple[tuple[float, ...], ...]:
        """For each class the share of each slot in which the link was busy with it."""
        length = max(len(slots) for slots in self._slots)
        return tuple(
            tuple(min(1.0, seconds / self.slot_seconds) for seconds in slots) + (0.0,) * (length - len(slots))
            for slots in self._slots
        )

    def _widen(self) -> None:
        for slots in self._slots:
            odd = [*slots[1::2], 0.0]
            slots[:] = [even + odd[index] for index, even in enumerate(slots[::2])]
        self.slot_seconds *= 2.0


def _fill(slots: list[float], width: float, start: float, end: float) -> None:
    first, last = int(start / width), int(end / width)
    if last >= len(slots):
        slots.extend([0.0] * (last + 1 - len(slots)))
    if first == last:
        slots[first] += end - start
        return
    slots[first] += (first + 1) * width - start
    for slot in range(first + 1, last):
        slots[slot] += width
    slots[last] += end - last * width
