"""What a client may ask of the scheduler: plain, frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class PriorityClass(IntEnum):
    """The class of a plan; a lower value goes first."""

    INTERACTIVE = 0
    NORMAL = 1
    BATCH = 2


class Direction(StrEnum):
    READ = "read"
    WRITE = "write"


class PathTaken(StrEnum):
    """How the bytes of a chunk really travelled, which may differ from what was asked for."""

    GDS = "gds"
    KVIKIO_POSIX = "kvikio-posix"
    DIRECT = "direct"
    BUFFERED = "buffered"
    EMULATED = "emulated"


@dataclass(frozen=True, slots=True)
class Extent:
    """`length` bytes from `offset` of a file."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a device with bandwidth of its own. `name` identifies the device, e.g. `259:0` for a disk."""

    medium: str
    name: str
    direction: Direction = Direction.READ

    def __str__(self) -> str:
        return f"{self.medium} {self.name} {self.direction}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """What a device asks of its queue.

    `chunk_bytes` is the unit of dispatch, `window_bytes` bounds the bytes inside the device, `alignment` is what file
    offsets and lengths must be multiples of (1 when anything goes).
    """

    chunk_bytes: int
    window_bytes: int
    alignment: int = 1


@dataclass(frozen=True, slots=True)
class Transfer:
    """One request to the scheduler. Inside a plan, higher `criticality` goes first, then the order of submission."""

    transfer_id: int
    plan_id: str
    link: Link
    extent: Extent
    criticality: int = 0
