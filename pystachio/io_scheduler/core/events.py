"""The scheduler's language: facts that go in, in the past tense, and orders that come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pystachio.errors import PystachioError
from pystachio.io_scheduler.core.request import CreditPool, Extent, Lease, Link, LinkLimits, PriorityClass, Transfer


@dataclass(frozen=True, slots=True)
class LinkOpened:
    link: Link
    limits: LinkLimits


@dataclass(frozen=True, slots=True)
class PoolOpened:
    """Transfers may use `nbytes` of credit of the pool from now on; again with another size for a change."""

    pool: CreditPool
    nbytes: int


@dataclass(frozen=True, slots=True)
class CreditReleased:
    """The consumer has passed on, or dropped, `nbytes` that were delivered to it.

    `plan_id` is the plan that submitted the transfer: a plan whose consumers are slow is to wait itself, not others.
    """

    pool: CreditPool
    nbytes: int
    plan_id: str | None = None


@dataclass(frozen=True, slots=True)
class PlanOpened:
    """`weight` is the plan's share against others of its class; `deadline` in seconds of the scheduler's clock."""

    plan_id: str
    priority: PriorityClass
    weight: float = 1.0
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    """Applies to all that waits. A `deadline` of None leaves the plan's deadline as it is."""

    plan_id: str
    priority: PriorityClass
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class PlanCancelled:
    """All of the plan's transfers, now and later, fail with `Cancelled`."""

    plan_id: str


@dataclass(frozen=True, slots=True)
class PlanClosed:
    """The plan will submit nothing more. Transfers that are still there are cancelled."""

    plan_id: str


@dataclass(frozen=True, slots=True)
class TransfersSubmitted:
    """Transfers that arrived together: the order between them is decided before the first is dispatched."""

    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class TransfersCancelled:
    """Whoever waited for them gave up. Transfers that have ended already are ignored."""

    transfer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransfersBoosted:
    """The plan waits for these transfers, which may be another's: they are queued as its own where that is more urgent.

    With the owner as `plan_id` this promotes prefetches. Transfers that have ended already are ignored.
    """

    transfer_ids: tuple[int, ...]
    plan_id: str
    criticality: int = 0


class ChunksCompleted(NamedTuple):
    """Chunks that devices have ended, by transfer and offset; those noticed together are told together."""

    chunks: tuple[tuple[int, int], ...]


class ChunkFailed(NamedTuple):
    """The device will not touch the chunk any more. Retryable errors are tried again."""

    transfer_id: int
    offset: int
    error: PystachioError


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    lease: Lease


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Due whenever `Scheduler.next_wake` has come: time-outs, retries and the end of leases happen here."""


Event = (
    ChunksCompleted
    | TransfersSubmitted
    | CreditReleased
    | ChunkFailed
    | TransfersCancelled
    | TransfersBoosted
    | PlanOpened
    | PlanCancelled
    | PlanClosed
    | PriorityChanged
    | LinkOpened
    | PoolOpened
    | LeaseGranted
    | TimePassed
)


class StartChunk(NamedTuple):
    """Hand this part of the transfer to the link's device. `queue_seconds` is its wait since submission."""

    transfer_id: int
    chunk: Extent
    queue_seconds: float


class DeliverChunk(NamedTuple):
    """A chunk of a `by_chunk` transfer has arrived; its credit is the consumer's to release."""

    transfer_id: int
    chunk: Extent


class CompleteTransfer(NamedTuple):
    """All bytes have arrived."""

    transfer_id: int


class FailTransfer(NamedTuple):
    """Tell whoever waits. No device touches the destination any more, except for chunks that were written off."""

    transfer_id: int
    error: PystachioError


class CancelChunks(NamedTuple):
    """Nobody wants the chunks at these offsets any more; a device that can may end them early."""

    transfer_id: int
    offsets: tuple[int, ...]


class WriteOffChunks(NamedTuple):
    """The device has not ended these chunks long after their time-out. Their memory must not be reused until it has."""

    transfer_id: int
    offsets: tuple[int, ...]


Action = StartChunk | DeliverChunk | CompleteTransfer | FailTransfer | CancelChunks | WriteOffChunks


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatistics:
    """`bytes_per_second` and `latency_seconds` are what the window was calibrated with; None while not yet measured.

    `parked_transfers` wait for memory credit, a peer or a shared link rather than for this one.
    """

    link: Link
    waiting_transfers: int
    waiting_bytes: int
    parked_transfers: int
    outstanding_bytes: int
    window_bytes: int
    chunk_bytes: int
    bytes_per_second: float | None
    latency_seconds: float | None
    written_off_bytes: int


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    pool: CreditPool
    nbytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """`lease` is (epoch, sequence) of the lease in force, None when the node orders plans by itself."""

    plans: int
    transfers: int
    links: tuple[LinkStatistics, ...]
    pools: tuple[PoolStatistics, ...]
    lease: tuple[int, int] | None
    clock_jumps: int
