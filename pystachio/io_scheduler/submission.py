"""What a client hands to the service, and what the service remembers of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pystachio.errors import PystachioError
from pystachio.io_scheduler.core.request import CreditPool, Extent, Link, PriorityClass, Transfer
from pystachio.io_scheduler.devices import Buffer, ChunkRequest, Device, DeviceFile, FileSeries
from pystachio.io_scheduler.history import Origin
from pystachio.io_scheduler.ledger import Account


class Request(NamedTuple):
    """One contiguous move between `extent` of a file and `buffer`, which is as long.

    Without a buffer one is taken from the service's pool when the first chunk starts (`Submission.buffers`), or with
    `parts`, lengths that add up to the extent's, one for each of them. `required` bytes from the start must exist (the
    rest is rounding, which may lie behind the end of the file); `useful` bytes were asked for. The other fields are
    those of `request.Transfer`; `on_chunk` is called on the loop with each chunk of a `by_chunk` transfer that has
    arrived.
    """

    extent: Extent
    buffer: Buffer | None
    required: int
    useful: int
    credit: CreditPool | None = None
    by_chunk: bool = False
    on_chunk: Callable[[Extent], None] | None = None
    through: Link | None = None
    peer: str | None = None
    rank: int = 0
    write_back: bool = False
    parts: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Submission:
    """The transfers of one client call on one file, or on a series of files. They end together: when one fails, the
    others are given up.

    `ended` is done when no device touches any buffer any more; `remaining` transfers have not ended. `buffers` holds
    what was taken from the pool, by position of the request, or of the part of the only request.
    """

    plan_id: str
    path: str | FileSeries
    link: Link
    device: Device
    operator: str
    ended: asyncio.Future[None]
    remaining: int
    transfer_ids: tuple[int, ...] = ()
    buffers: dict[int, memoryview] = field(default_factory=dict)
    error: PystachioError | None = None


@dataclass(slots=True, eq=False)
class PendingTransfer:
    """`account` is the ledger's for the plan on this link in the class `priority`, `origin` what the history keeps."""

    transfer: Transfer
    request: Request
    position: int
    buffer: Buffer | None
    file: DeviceFile
    submission: Submission
    submitted_at: float
    priority: PriorityClass
    account: Account
    origin: Origin
    started_at: float | None = None


@dataclass(slots=True, eq=False)
class PendingChunk:
    """A chunk inside a device. `origin` names the plan's class when it was started."""

    pending: PendingTransfer
    request: ChunkRequest
    origin: Origin
    started_at: float
    queue_seconds: float
