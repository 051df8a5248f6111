"""The two ends of a message, as the scheduler sees them: what a network link's device is asked to move.

A message travels as an inbound transfer of its receiver, cut into chunks by the receiver's scheduler; each chunk that
starts there is a grant, and becomes a transfer of its own on the sender's egress link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from pystachio.errors import Cancelled, PystachioError
from pystachio.io_scheduler.core.request import LinkLimits
from pystachio.io_scheduler.devices import Buffer, ChunkEnd, ChunkRequest
from pystachio.io_scheduler.network.data_path import Arrival, DataPath
from pystachio.io_scheduler.network.frames import Grant, Offer, Received
from pystachio.io_scheduler.network.refusals import copy_of
from pystachio.io_scheduler.submission import Submission


class MessageKey(NamedTuple):
    """What a message is called at both ends, in whatever order they come to it."""

    plan_id: str
    operator: str
    sequence: int


class MovedMessage(Protocol):
    """A message, or a part of one, as a `DeviceFile` that moves its own chunks."""

    @property
    def path(self) -> str: ...

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None: ...

    def abandon(self, request: ChunkRequest) -> None: ...

    def close(self) -> None: ...


class MessageDevice:
    """One direction of the node's network: `devices.Device` whose files are messages, announced before they move."""

    def __init__(self, limits: LinkLimits) -> None:
        self.limits = limits
        self._announced: dict[str, MovedMessage] = {}

    def announce(self, message: MovedMessage) -> None:
        self._announced[message.path] = message

    def forget(self, path: str) -> None:
        """Idempotent."""
        self._announced.pop(path, None)

    def open(self, path: str) -> MovedMessage:
        return self._announced[path]

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        message: MovedMessage = request.file  # type: ignore[assignment]
        message.start(request, ended)

    def abandon(self, request: ChunkRequest) -> None:
        message: MovedMessage = request.file  # type: ignore[assignment]
        message.abandon(request)

    def close(self) -> None:
        """There is nothing to release: connections belong to the network."""


@dataclass(slots=True, eq=False)
class Offered:
    """A message at its receiver that nobody has asked for yet; `error` once its sender has given it up, when it did."""

    offer: Offer
    error: PystachioError | None = None
    withdrawn_at: float = 0.0


class IncomingMessage:
    """Grants the chunks that the receiver's scheduler starts.

    `error` is why nothing more can come, `is_refused` says that the sender knows that nothing more is wanted. `granted`
    bytes of it were asked for.
    """

    def __init__(
        self,
        path: str,
        number: int,
        length: int,
        *,
        data_path: DataPath,
        next_grant: Callable[[], int],
        count_grant: Callable[[int], int],
        send_frame: Callable[[Grant | Received], None],
        refuse: Callable[[IncomingMessage, PystachioError], None],
    ) -> None:
        """`count_grant` is told how many bytes are asked for, and returns the backlog that the grant says."""
        self.path = path
        self.number = number
        self.error: PystachioError | None = None
        self.is_refused = False
        self.granted = 0
        self.submission: Submission | None = None
        self._data_path = data_path
        self._next_grant = next_grant
        self._count_grant = count_grant
        self._send_frame = send_frame
        self._missing = length
        self._refuse = refuse
        self._grants: dict[int, int] = {}

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        if self.error is not None:
            ended(ChunkEnd(0, self._data_path.taken, copy_of(self.error)))
            return
        grant = self._next_grant()
        self._grants[id(request)] = grant
        # Expected first: what answers the grant may come at once.
        self._data_path.expect(grant, request.buffer, partial(self._end, request, ended))
        if id(request) in self._grants:
            length = len(request.buffer)
            self.granted += length
            self._send_frame(Grant(self.number, grant, request.offset, length, self._count_grant(length)))

    def abandon(self, request: ChunkRequest) -> None:
        """A chunk is given up only with all of its message."""
        grant = self._grants.get(id(request))
        if grant is not None:
            self._refuse(self, Cancelled("the receiver gave the message up"))
            self._data_path.give_up(grant)

    def close(self) -> None:
        """No chunk of the message is inside the device."""

    def _end(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None], arrival: Arrival) -> None:
        self._grants.pop(id(request), None)
        error = arrival.error
        if error is not None:
            error = copy_of(self.error or error)
        ended(ChunkEnd(arrival.transferred, self._data_path.taken, error))
        if error is None:
            self._missing -= arrival.transferred
            if not self._missing and self.error is None and not self.is_refused:
                # At once, together with the grants that follow: its sender need not wait for this node's turns.
                self._send_frame(Received(self.number))


@dataclass(slots=True, eq=False)
class OutgoingMessage:
    """A message at its sender. `ended` is done when its buffer is used no more and its fate is known.

    `progress_at` is when the receiver was last heard of it, `patience` how many seconds it may then be silent, and
    `granted` how much of it was asked for.
    """

    number: int
    key: MessageKey
    buffer: Buffer
    criticality: int
    ended: asyncio.Future[None]
    progress_at: float
    patience: float
    granted: int = 0
    moving: dict[int, tuple[GrantedPart, Submission]] = field(default_factory=dict)
    is_received: bool = False
    error: PystachioError | None = None

    def settle(self) -> None:
        """End when nothing moves any more and there is a reason to."""
        if self.moving or self.ended.done():
            return
        if self.error is not None:
            self.ended.set_exception(self.error)
            # Seen, even when whoever waited has left.
            self.ended.exception()
        elif self.is_received:
            self.ended.set_result(None)


class GrantedPart:
    """What one grant asks for, as a file of the sender's egress link."""

    def __init__(self, path: str, grant: int, data_path: DataPath, granted_at: float) -> None:
        self.path = path
        self.granted_at = granted_at
        self.is_overdue = False
        """Whether it has waited so long that it goes before the longest backlog."""
        self.is_answered = False
        """Whether the grant's bytes are sent, or on their way; else somebody must say that they never will be."""
        self._grant = grant
        self._data_path = data_path

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        self.is_answered = True
        self._data_path.send(self._grant, request.buffer, partial(self._end, len(request.buffer), ended))

    def abandon(self, request: ChunkRequest) -> None:
        self._data_path.take_back(self._grant)

    def close(self) -> None:
        """Nothing of it is inside the device."""

    def _end(self, length: int, ended: Callable[[ChunkEnd], None], error: PystachioError | None) -> None:
        if error is None:
            ended(ChunkEnd(length, self._data_path.taken))
        else:
            self.is_answered = False
            ended(ChunkEnd(0, self._data_path.taken, copy_of(error)))
