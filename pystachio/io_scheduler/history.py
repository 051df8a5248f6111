"""What every transfer and chunk did lately, in rings of bounded size: the source of traces and of verdicts.

Recording takes a microsecond or two (`python -m benchmarks trace_cost`); nothing is sorted or counted until somebody
asks. All times are seconds of the service's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from pystachio.io_scheduler.core.request import CreditPool, Link, PathTaken, PriorityClass
from pystachio.io_scheduler.ring import Numbers, Ring

CAPACITY = 1 << 17
"""Chunks that are remembered: 40 s at 3,000 chunks per second, in about 40 MiB once the ring is full."""


Origin: TypeAlias = tuple[int, str, str, int, int, float]
"""What the chunks of one transfer have in common, as rings keep it: see `History.origin`."""


class ChunkRecord(NamedTuple):
    """One stay of a chunk inside a device; a chunk that is tried again has one for each attempt."""

    transfer_id: int
    plan_id: str
    operator: str
    priority: PriorityClass
    link: Link
    offset: int
    length: int
    submitted_at: float
    started_at: float
    ended_at: float
    path: PathTaken
    failed: bool


class TransferRecord(NamedTuple):
    """`started_at` is the start of its first chunk, None when it had none. `error` is the code of what it failed with.

    `credit` is the pool whose bytes it had to wait for, `peer` the other end of a network transfer.
    """

    transfer_id: int
    plan_id: str
    operator: str
    priority: PriorityClass
    link: Link
    path: str
    length: int
    submitted_at: float
    started_at: float | None
    ended_at: float
    error: str | None
    credit: CreditPool | None = None
    peer: str | None = None


class WindowRecord(NamedTuple):
    """The bytes that a link's window held from `at` on."""

    at: float
    link: Link
    window_bytes: int


class HistorySnapshot(NamedTuple):
    """`complete_from` is the earliest time from which no chunk or transfer has been forgotten."""

    chunks: tuple[ChunkRecord, ...]
    transfers: tuple[TransferRecord, ...]
    consumed: dict[int, float]
    windows: tuple[WindowRecord, ...]
    complete_from: float


class History:
    """The last `capacity` chunks and as many transfers. Recorded on the service's loop, asked on any thread.

    All methods do nothing when the history is not `enabled`; callers ask that first.
    """

    def __init__(self, *, capacity: int = CAPACITY, enabled: bool = True) -> None:
        self.enabled = enabled
        kept = capacity if enabled else 0
        self._numbers = Numbers()
        self._chunks = Ring(self._chunk, kept)
        self._transfers = Ring(self._transfer, kept)
        self._consumed: Ring[tuple[int, float]] = Ring(_consumption, kept)
        self._windows = Ring(WindowRecord._make, kept, (WindowRecord._fields.index("link"),))
        # The ring's own method: nothing is called in between.
        self.window: Callable[[WindowRecord], None] = self._windows.append

    def origin(
        self, transfer_id: int, plan_id: str, operator: str, priority: PriorityClass, link: Link, submitted_at: float
    ) -> Origin:
        """What `chunk` and `transfer` want of a transfer: on a busy node a chunk may end every 10 us."""
        if not self.enabled:
            return _NOTHING
        numbers = self._numbers
        return transfer_id, plan_id, operator, numbers.of(priority), numbers.of(link), submitted_at

    def chunk(
        self,
        origin: Origin,
        offset: int,
        length: int,
        started_at: float,
        ended_at: float,
        path: PathTaken,
        failed: bool,
    ) -> None:
        """One stay of a chunk inside a device."""
        self._chunks.append_row((origin, offset, length, started_at, ended_at, self._numbers.of(path), failed))

    def transfer(
        self,
        origin: Origin,
        path: str,
        length: int,
        started_at: float | None,
        ended_at: float,
        error: str | None,
        credit: CreditPool | None,
        peer: str | None,
    ) -> None:
        """A transfer has ended; the arguments are those of `TransferRecord`."""
        self._transfers.append_row((origin, path, length, started_at, ended_at, error, self._numbers.of(credit), peer))

    def consumed(self, transfer_id: int, at: float) -> None:
        """Whoever asked for the transfer has taken its bytes over, or let go of them."""
        self._consumed.append((transfer_id, at))

    def snapshot(self, since: float = 0.0, until: float = float("inf")) -> HistorySnapshot:
        """All that touched the span of time, of every plan: who waited has to be seen beside who went first."""
        return HistorySnapshot(
            chunks=tuple(each for each in self._chunks.since(since, _ended_at) if each.submitted_at <= until),
            transfers=tuple(each for each in self._transfers.since(since, _ended_at) if each.submitted_at <= until),
            consumed=dict(self._consumed.since(since, _consumed_at)),
            windows=tuple(window for window in self._windows if window.at <= until),
            complete_from=self._complete_from(),
        )

    def _chunk(self, row: tuple[Any, ...]) -> ChunkRecord:
        origin, offset, length, started_at, ended_at, path, failed = row
        transfer_id, plan_id, operator, priority, link, submitted_at = origin
        return ChunkRecord(
            transfer_id,
            plan_id,
            operator,
            self._numbers[priority],
            self._numbers[link],
            offset,
            length,
            submitted_at,
            started_at,
            ended_at,
            self._numbers[path],
            failed,
        )

    def _transfer(self, row: tuple[Any, ...]) -> TransferRecord:
        origin, path, length, started_at, ended_at, error, credit, peer = row
        transfer_id, plan_id, operator, priority, link, submitted_at = origin
        return TransferRecord(
            transfer_id,
            plan_id,
            operator,
            self._numbers[priority],
            self._numbers[link],
            path,
            length,
            submitted_at,
            started_at,
            ended_at,
            error,
            self._numbers[credit],
            peer,
        )

    def _complete_from(self) -> float:
        """Records arrive in the order of their ends: what is lost ended before the oldest that is left."""
        oldest = (self._chunks.forgetting, self._transfers.forgetting)
        return max((record.ended_at for record in oldest if record is not None), default=0.0)


_NOTHING: Origin = (0, "", "", 0, 0, 0.0)


def _ended_at(record: ChunkRecord | TransferRecord) -> float:
    return record.ended_at


def _consumed_at(consumption: tuple[int, float]) -> float:
    return consumption[1]


def _consumption(values: tuple[Any, ...]) -> tuple[int, float]:
    transfer_id, at = values
    return transfer_id, at
