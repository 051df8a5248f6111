"""One peer: its control connection, its data path, and the messages in both directions.

A sender offers a message; a receiver that wants it submits it to its scheduler as an inbound transfer and grants each
chunk as the scheduler starts it; the sender answers every grant exactly once, through its own scheduler, with its bytes
or, when it gave the message up, with none. The receiver ends the message by saying Received or Refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pystachio.errors import NodeLost, PystachioError
from pystachio.io_scheduler.core.request import CreditPool
from pystachio.io_scheduler.devices import Buffer
from pystachio.io_scheduler.network.backlog import Backlog
from pystachio.io_scheduler.network.bodies import BodyReader
from pystachio.io_scheduler.network.conversation import require_short
from pystachio.io_scheduler.network.data_path import DataPath
from pystachio.io_scheduler.network.frame_connection import FrameConnection
from pystachio.io_scheduler.network.frames import (
    BodyPart,
    Data,
    Frame,
    Goodbye,
    Grant,
    Heartbeat,
    Offer,
    Received,
    Refuse,
    Withdraw,
)
from pystachio.io_scheduler.network.handshake import Established
from pystachio.io_scheduler.network.inbox import Inbox
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.links import NetworkLink, Timers, TransferService
from pystachio.io_scheduler.network.liveness import Health, Liveness
from pystachio.io_scheduler.network.messages import MessageKey
from pystachio.io_scheduler.network.outbox import Outbox
from pystachio.io_scheduler.network.refusals import copy_of
from pystachio.io_scheduler.network.unwanted import Unwanted


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatistics:
    """`offered` messages wait for somebody here to ask for them; the others are under way."""

    name: str
    health: Health
    offered: int
    incoming: int
    outgoing: int


class Peer:
    """Messages to and from one node. Everything is called on the loop; when the peer is lost, everything ends so."""

    def __init__(
        self,
        established: Established,
        control: FrameConnection,
        *,
        is_initiator: bool,
        service: TransferService,
        ingress: NetworkLink,
        egress: NetworkLink,
        backlog: Backlog,
        unwanted: Unwanted,
        limits: NetworkLimits,
        timers: Timers,
        rank: Callable[[str], int],
        heard: Callable[[str, bytes], None],
        lost: Callable[[Peer, PystachioError], None],
        make_path: Callable[[Callable[[PystachioError], None]], DataPath],
    ) -> None:
        """`make_path` is given what to call when the path breaks; `backlog` and `unwanted` are the node's, of all its
        peers.

        `heard` is told the peer's name and a body of it; a PystachioError that it raises ends the peer.

        Raises NodeLost when the path cannot be made.
        """
        self.name = established.node
        self.instance = established.instance
        self.is_initiator = is_initiator
        self.error: PystachioError | None = None
        self._control = control
        self._timers = timers
        self._beat_seconds = limits.heartbeat_seconds
        self._heard = heard
        self._bodies = BodyReader()
        self._lost = lost
        self._path = make_path(self.fail)
        self._liveness = Liveness(
            beat_seconds=limits.heartbeat_seconds,
            suspect_seconds=limits.suspect_seconds,
            dead_seconds=limits.dead_seconds,
        )
        self._timer: asyncio.TimerHandle | None = None
        prefix = f"{self.name}#{established.session:016x}"
        self._outbox = Outbox(
            peer=self.name,
            prefix=prefix,
            service=service,
            egress=egress,
            data_path=self._path,
            limits=limits,
            timers=timers,
            rank=partial(rank, self.name),
            send_frame=control.send,
        )
        self._inbox = Inbox(
            peer=self.name,
            prefix=prefix,
            service=service,
            ingress=ingress,
            data_path=self._path,
            backlog=backlog,
            unwanted=unwanted,
            limits=limits,
            timers=timers,
            rank=partial(rank, self.name),
            send_frame=control.send,
        )

    def start(self) -> None:
        """Begin to listen and to beat."""
        self._control.attach(self._handle, self.fail)
        if self.error is None:
            self._beat()

    def tell(self, body: bytes) -> None:
        self._require()
        require_short(body)
        self._control.tell(body)

    async def send(self, key: MessageKey, buffer: Buffer, criticality: int, patience: float | None) -> None:
        self._require()
        await self._outbox.send(key, buffer, criticality, patience)

    async def offered(self, key: MessageKey, patience: float | None) -> int:
        self._require()
        return await self._inbox.offered(key, patience)

    async def receive(
        self,
        key: MessageKey,
        into: Buffer | None,
        criticality: int,
        credit: CreditPool | None,
        patience: float | None,
    ) -> Buffer:
        self._require()
        return await self._inbox.receive(key, into, criticality, credit, patience)

    def decline(self, key: MessageKey) -> None:
        if self.error is None:
            self._inbox.decline(key)

    def close_plan(self, plan_id: str) -> None:
        if self.error is None:
            self._outbox.close_plan(plan_id)
            self._inbox.close_plan(plan_id)

    def close(self, reason: str) -> None:
        """Say goodbye; what is under way ends with NodeLost. Idempotent."""
        if self.error is None:
            self._control.close(reason)
            self.fail(NodeLost(f"the connection was closed: {reason}", node=self.name))

    def fail(self, error: PystachioError) -> None:
        """The peer is lost. Everything that waits for it ends, and no buffer is touched any more. Idempotent."""
        if self.error is not None:
            return
        self.error = error
        error.node = self.name
        if self._timer is not None:
            self._timer.cancel()
        self._control.fail(error)
        self._path.close(error)
        self._outbox.fail(error)
        self._inbox.fail(error)
        self._lost(self, error)

    @property
    def health(self) -> Health:
        return self._liveness.health if self.error is None else Health.LOST

    @property
    def speaks(self) -> bool:
        return self.error is None and self._liveness.speaks

    def statistics(self) -> PeerStatistics:
        return PeerStatistics(
            name=self.name,
            health=self.health,
            offered=self._inbox.offered_messages,
            incoming=len(self._inbox),
            outgoing=len(self._outbox),
        )

    def _require(self) -> None:
        if self.error is not None:
            raise copy_of(self.error)

    def _handle(self, frame: Frame) -> None:
        self._liveness.note_heard()
        match frame:
            case Heartbeat():
                pass
            case Grant():
                self._outbox.take_grant(frame)
            case Data():
                self._path.take(frame)
            case Offer():
                self._inbox.take_offer(frame)
            case Received():
                self._outbox.take_received(frame)
            case Refuse():
                self._outbox.take_refuse(frame)
            case Withdraw():
                self._inbox.take_withdraw(frame)
            case BodyPart():
                body = self._bodies.take(frame)
                if body is not None:
                    self._heard(self.name, body)
            case Goodbye(reason):
                self.fail(NodeLost(f"the node has left: {reason}"))
            case _:
                raise NodeLost(f"a frame of the handshake came after it: {type(frame).__name__}")

    def _beat(self) -> None:
        self._control.send(Heartbeat())
        if self._liveness.note_beat() is Health.LOST:
            self.fail(NodeLost("the node's event loop has not turned, or the network is silent"))
            return
        now = self._timers.time()
        self._outbox.check(now)
        self._inbox.check(now)
        self._timer = self._timers.call_later(self._beat_seconds, self._beat)
