"""What a client may ask of the scheduler: plain, immutable data.

What is made once for each transfer or chunk is a named tuple: a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

PREFETCH = -1
"""The criticality of a transfer that nobody waits for yet."""


class PriorityClass(IntEnum):
    """The class of a plan; a lower value goes first."""

    INTERACTIVE = 0
    NORMAL = 1
    BATCH = 2

    # That of enumerations is written in Python, and these are keys on the way of every chunk.
    __hash__ = int.__hash__


class Direction(StrEnum):
    READ = "read"
    WRITE = "write"

    __hash__ = str.__hash__


class PathTaken(StrEnum):
    """How the bytes of a chunk really travelled, which may differ from what was asked for."""

    GDS = "gds"
    KVIKIO_POSIX = "kvikio-posix"
    DIRECT = "direct"
    BUFFERED = "buffered"
    EMULATED = "emulated"
    TCP = "tcp"
    UCX = "ucx"

    __hash__ = str.__hash__


class Extent(NamedTuple):
    """`length` bytes from `offset` of a file or of a message."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class Link(NamedTuple):
    """One direction of a device with bandwidth of its own. `name` identifies the device, e.g. `259:0` for a disk.

    `medium` is the kind of device: `disk`, `network`, `pcie`, `gpu`.
    """

    medium: str
    name: str
    direction: Direction = Direction.READ

    def __str__(self) -> str:
        return f"{self.medium} {self.name} {self.direction}"


class CreditPool(NamedTuple):
    """A budget of bytes in a tier for what one stage of all plans may have under way.

    A stage's credit returns when a later stage has taken its bytes over, and depends on later stages only: with a pool
    for each stage no ring of waiting stages can close. `node` tells the pools of several nodes apart.
    """

    tier: str
    stage: int
    node: str = ""


CHUNK_SECONDS = 0.0003
"""Of device time in one chunk: what an urgent transfer waits for, against the cost of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """What a device asks of its queue.

    Requests are cut into chunks of `chunk_bytes`, or less on a slow device (about `device_seconds` of its time each,
    but at least `smallest_chunk_bytes`). Where `device_seconds` is more than `CHUNK_SECONDS`, chunks are of the
    smallest length while anything more urgent is expected. `window_bytes` bounds the bytes inside the device until it
    has been measured, and for good when the window is not `calibrated`. `alignment` is what file offsets and lengths
    must be multiples of (1 when anything goes).

    `peer_bytes` bounds the bytes under way between this node and one peer, and shrinks with the chunks. `urgent_bytes`
    is room beyond the window that only interactive transfers may use. A chunk that has not ended after
    `timeout_seconds` fails; one that fails with a retryable error is tried again until it has been tried `attempts`
    times.
    """

    chunk_bytes: int
    window_bytes: int
    alignment: int = 1
    calibrated: bool = True
    smallest_chunk_bytes: int = 256 << 10
    device_seconds: float = CHUNK_SECONDS
    peer_bytes: int | None = None
    urgent_bytes: int = 0
    timeout_seconds: float = 30.0
    attempts: int = 3


class Transfer(NamedTuple):
    """One request to the scheduler. Inside a plan, higher `criticality` goes first, then the order of submission.

    `credit` is the pool that must have room for its bytes before they move. The whole length is taken when the first
    chunk starts; with `by_chunk` each chunk takes its own and is delivered to the consumer on its own. Credit goes back
    with `CreditReleased`, or by itself when the transfer fails.

    `through` is a further link that its chunks occupy at the same time, e.g. the PCIe bus that several disks share.
    `peer` is the other end of a network transfer, `rank` its place in the rotation in which equal peers are served.
    `write_back` marks what frees memory (spilling): it has a lane with a reservation of its own.
    """

    transfer_id: int
    plan_id: str
    link: Link
    extent: Extent
    criticality: int = 0
    credit: CreditPool | None = None
    by_chunk: bool = False
    through: Link | None = None
    peer: str | None = None
    rank: int = 0
    write_back: bool = False


class PlanOrder(NamedTuple):
    """A plan's rank as the central service sees it. `weight` is its share against other plans of its class.

    `due_seconds` after the arrival of the lease it should have ended; None says nothing of a deadline.
    """

    plan_id: str
    priority: PriorityClass
    weight: float
    due_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The order of plans, valid for `seconds` from its arrival; clocks of different machines are never compared.

    A lease supersedes those of older epochs (another centre took over), and within its epoch those of lower `sequence`.
    """

    epoch: int
    sequence: int
    seconds: float
    plans: tuple[PlanOrder, ...]
