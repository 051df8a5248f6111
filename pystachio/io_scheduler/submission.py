"""What a client hands to the service, and what the service remembers of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pystachio.errors import PystachioError
from pystachio.io_scheduler.devices import ChunkRead, Destination, DeviceFile
from pystachio.io_scheduler.request import Extent, Link, PriorityClass, Transfer


@dataclass(frozen=True, slots=True)
class FileRead:
    """One contiguous read: `extent` of a file into `destination`, which is as long.

    `required` bytes from the start must exist (the rest is rounding, which may lie behind the end of the file);
    `useful` bytes were asked for.
    """

    extent: Extent
    destination: Destination
    required: int
    useful: int


@dataclass(slots=True, eq=False)
class Submission:
    """The transfers of one client call on one file. They end together: when one fails, the others are given up.

    `ended` is done when no device touches any destination any more; `remaining` transfers have not ended.
    """

    plan_id: str
    path: str
    link: Link
    ended: asyncio.Future[None]
    transfer_ids: tuple[int, ...] = ()
    remaining: int = 0
    error: PystachioError | None = None


@dataclass(slots=True, eq=False)
class PendingTransfer:
    transfer: Transfer
    read: FileRead
    file: DeviceFile
    submission: Submission


@dataclass(slots=True, eq=False)
class PendingChunk:
    """A chunk inside a device. `priority` is the plan's class when it was started."""

    pending: PendingTransfer
    read: ChunkRead
    priority: PriorityClass
    started_at: float
    queue_seconds: float
