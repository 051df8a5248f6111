"""The control plane: what everything else on a node uses to speak to other nodes, and to know who they are.

It drives the membership's core with the network and real timers, and gives typed messages to their handlers. Nothing
waits here: a message is told and forgotten, and what cannot be delivered or is refused is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, TypeVar, assert_never

from pystachio.endpoint import Endpoint
from pystachio.errors import InternalError, NodeLost, PystachioError
from pystachio.io_scheduler.network.liveness import Health
from pystachio.runtime.actors import Children, Directive
from pystachio.runtime.central import Alarm
from pystachio.runtime.clock import Clock
from pystachio.runtime.logging import get_logger
from pystachio.runtime.membership.core import Membership
from pystachio.runtime.membership.discovery import Discovery
from pystachio.runtime.membership.events import (
    Action,
    AddressesDiscovered,
    AdoptView,
    AskJoin,
    Connect,
    ConnectFailed,
    Disconnect,
    DrainAsked,
    Event,
    LeaveAsked,
    MemberLost,
    MemberReached,
    NodeConnected,
    NodeDisconnected,
    SayLeave,
    SeedAnswered,
    TellView,
    TimePassed,
)
from pystachio.runtime.membership.views import Address, Member, View
from pystachio.server.long_messages import SHORT_BYTES, LongMessages
from pystachio.server.membership_messages import announcement, event_of, record_of
from pystachio.server.messages import (
    ControlMessage,
    DrainOrdered,
    Fenced,
    JoinForwarded,
    Left,
    LongMessageSent,
    MembershipMessage,
    ViewAnnounced,
    decode,
    encode,
    measure,
)
from pystachio.server.node_network import NodeNetwork
from pystachio.server.plan_messages import PlanMessage, class_of
from pystachio.server.refused_contacts import FailedContacts

M = TypeVar("M", bound=ControlMessage)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStanding:
    """A member as this node sees it: LOST is one that is not connected, or not any more, but still in the view."""

    member: Member
    health: Health
    leads: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneStatistics:
    """`told` and `heard` are messages. Dropped were those to a node that is not connected (`undeliverable`), without a
    handler (`unhandled`), of a node that is no member (`fenced`) and what was no message (`malformed`); the handler of
    `failed` ones raised.
    """

    told: int = 0
    heard: int = 0
    undeliverable: int = 0
    unhandled: int = 0
    fenced: int = 0
    malformed: int = 0
    failed: int = 0
    views: int = 0


class ControlPlane:
    """`async with control.open(network, host, port)`: a member, at first of a cluster of its own.

    `instance` is random for each start of the node, `chance` gives the jitter of attempts to connect. Messages of plans
    that are longer than `short_bytes` do not go over the control connection.
    """

    def __init__(
        self, name: str, *, instance: str, discovery: Discovery, clock: Clock, chance: Random | None = None
    ) -> None:
        self.name = name
        self._instance = instance
        self._discovery = discovery
        self._clock = clock
        self._chance = chance if chance is not None else Random()
        self._core: Membership | None = None
        self._network: NodeNetwork | None = None
        self._children: Children | None = None
        self._long: LongMessages | None = None
        self.short_bytes = SHORT_BYTES
        self._alarm = Alarm(clock, partial(self._take, TimePassed()))
        self._events: deque[Event] = deque()
        self._handlers: dict[type[Any], Callable[[str, Any], None]] = {}
        self._view_callbacks: list[Callable[[View], None]] = []
        self._reached_callbacks: list[Callable[[str], None]] = []
        self._lost_callbacks: list[Callable[[str, PystachioError], None]] = []
        self.failed = FailedContacts(clock)
        self._counts = ControlPlaneStatistics()
        self._is_taking = False
        self.handle(DrainOrdered, lambda node, message: self._take(DrainAsked(message.draining)))
        self.handle(LongMessageSent, self._take_long)

    @asynccontextmanager
    async def open(self, network: NodeNetwork, host: str, port: int) -> AsyncIterator[ControlPlane]:
        """Take part in the cluster until the block is left; others find this node at `host` and `port`.

        Leaving it tells the others that this node goes; the network is closed by whoever opened it.
        """
        async with Children(self._decide) as children:
            self._network, self._children = network, children
            self._long = LongMessages(
                network,
                start=children.start,
                announce=lambda node, message: self._tell_body(node, encode(message)),
                heard=self.note_heard,
            )
            member = Member(self.name, host, port, self._instance)
            self._core = Membership(member, chance=self._chance, now=self._clock.now())
            self._announce(self._core.view)
            children.start("discovery", self._discover)
            self._take(TimePassed())
            try:
                yield self
            finally:
                self._take(LeaveAsked())
                self._alarm.cancel()

    @property
    def view(self) -> View:
        """The view in force. Raises InternalError before the control plane is open."""
        return self._membership().view

    @property
    def is_open(self) -> bool:
        return self._core is not None

    def available(self) -> tuple[Member, ...]:
        """Those that can be given work now: in the view, reachable from here, and not draining. This node included."""
        core = self._membership()
        reachable = core.present | {self.name}
        return tuple(member for member in core.view.members if member.name in reachable and not member.draining)

    def reaches(self, node: str) -> bool:
        """Whether it is a member that can be reached from here, or this node."""
        return node == self.name or node in self._membership().present

    def standings(self) -> tuple[MemberStanding, ...]:
        """The view's members with their health, sorted by name."""
        core, suspects = self._membership(), self._connected().suspects()

        def health(name: str) -> Health:
            if name != self.name and name not in core.present:
                return Health.LOST
            return Health.SUSPECT if name in suspects else Health.ALIVE

        return tuple(
            MemberStanding(member=member, health=health(member.name), leads=member.name == core.view.leader)
            for member in core.view.members
        )

    def handle(self, kind: type[M], handler: Callable[[str, M], None]) -> None:
        """Have messages of this type given to `handler`, with the name of the node that sent them, on the loop.

        Once per type. A handler that raises loses its message, and nothing else.
        """
        if kind in self._handlers or kind in (ViewAnnounced, JoinForwarded, Left, Fenced):
            raise InternalError(f"messages of this type have a handler already: {kind.__name__}")
        self._handlers[kind] = handler

    def tell(self, node: str, message: ControlMessage) -> None:
        """Send the message and forget it; to this node itself, on the next turn of the loop.

        Dropped and counted when the node is not connected, and, where it is not a plan's, when it is over 16 MiB. Of
        plans, long messages go beside the control connection: shorter ones that are told later may arrive before.
        Raises InvalidRequest when a plan's message is too long.
        """
        self._tell(node, message)

    async def deliver(self, node: str, message: ControlMessage) -> None:
        """As `tell`; a long message has arrived after this, or will not."""
        arriving = self._tell(node, message)
        if arriving is not None:
            await asyncio.wait((arriving,))

    def _tell(self, node: str, message: ControlMessage) -> asyncio.Task[None] | None:
        """What waits until a long message has arrived."""
        if node == self.name:
            asyncio.get_running_loop().call_soon(self._dispatch, node, message)
            return None
        if self._long is not None and isinstance(message, PlanMessage):
            length = measure(message)
            if length > self.short_bytes:
                arriving = self._long.tell(node, length, partial(encode, message), class_of(message))
                self._count(undeliverable=int(arriving is None))
                return arriving
        self._tell_body(node, encode(message))
        return None

    def _tell_body(self, node: str, body: bytes) -> bool:
        """Whether the node is connected, and takes a body of this length."""
        try:
            self._connected().tell(node, body)
        except PystachioError:  # whatever its connection ended with
            self._count(undeliverable=1)
            return False
        self._count(told=1)
        return True

    def when_view_changes(self, callback: Callable[[View], None]) -> None:
        """With each view that comes into force here, the first one included if it is not yet."""
        self._view_callbacks.append(callback)

    def when_node_reached(self, callback: Callable[[str], None]) -> None:
        """When a member can be reached that could not be before: it is among those available, unless it drains."""
        self._reached_callbacks.append(callback)

    def when_node_lost(self, callback: Callable[[str, PystachioError], None]) -> None:
        """When a member that could be reached cannot be any more, has started anew, or is excluded; with NodeLost."""
        self._lost_callbacks.append(callback)

    def drain(self, node: str, draining: bool = True) -> None:
        """Have a node end its plans and get no more of them, or get them again."""
        self.tell(node, DrainOrdered(draining))

    def statistics(self) -> ControlPlaneStatistics:
        return self._counts

    def note_connected(self, peer: str) -> None:
        """The network's `joined`."""
        self._take(NodeConnected(peer))

    def note_lost(self, peer: str, error: PystachioError) -> None:
        """The network's `lost`."""
        if self._long is not None:
            self._long.lose(peer)
        self._take(NodeDisconnected(peer, error.message))

    def note_heard(self, peer: str, body: bytes | bytearray) -> None:
        """The network's `heard`. Who sends what is no message is disconnected."""
        self._count(heard=1)
        try:
            message = decode(body)
            if isinstance(message, MembershipMessage):
                self._take(event_of(peer, message))
                if isinstance(message, Fenced):
                    self._tell_lost(peer, "it took this node for no member, and refused a message")
                return
        except PystachioError as error:
            self._refuse(peer, error)
            return
        if self._core is None or not self._core.admits(peer):
            self._count(fenced=1)
            if self._core is not None:
                self.tell(peer, Fenced(self._core.view.epoch))
            return
        self._dispatch(peer, message)

    def _take_long(self, peer: str, message: LongMessageSent) -> None:
        try:
            if self._long is not None:
                self._long.take(peer, message)
        except PystachioError as error:
            self._refuse(peer, error)

    def _refuse(self, peer: str, error: PystachioError) -> None:
        self._count(malformed=1)
        get_logger().warning("a message of another node was refused", node=peer, error=str(error))
        if self._network is not None:
            self._network.disconnect(peer, error.message)

    def _dispatch(self, node: str, message: ControlMessage) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            self._count(unhandled=1)
            return
        try:
            handler(node, message)
        except Exception as error:
            self._count(failed=1)
            get_logger().error("a control message failed", node=node, kind=type(message).__name__, exc_info=error)

    def _take(self, event: Event) -> None:
        """One event after the other, also those that an action of one causes."""
        self._events.append(event)
        core = self._core
        if core is None or self._is_taking:
            return
        self._is_taking = True
        try:
            while self._events:
                for action in core.handle(self._events.popleft(), self._clock.now()):
                    self._act(action)
        finally:
            self._is_taking = False
        self._alarm.set(core.next_wake())

    def _act(self, action: Action) -> None:
        match action:
            case Connect(address):
                assert self._children is not None, "it is open"
                self._children.start(f"connect {address.name or address.host}", partial(self._connect, address))
            case Disconnect(name, reason):
                self._connected().disconnect(name, reason)
            case TellView(to, told):
                self.tell(to, announcement(told))
            case AskJoin(to, member):
                self.tell(to, JoinForwarded(record_of(member)))
            case SayLeave(to):
                self.tell(to, Left())
            case AdoptView(view):
                self._announce(view)
            case MemberReached(name):
                for note in self._reached_callbacks:
                    self._guard(partial(note, name))
            case MemberLost(name, reason):
                get_logger().warning("a node is lost", node=name, reason=reason)
                self._tell_lost(name, reason)
            case _:
                assert_never(action)

    def _tell_lost(self, node: str, reason: str) -> None:
        if self._long is not None:
            self._long.withdraw(node)
        for callback in self._lost_callbacks:
            self._guard(partial(callback, node, NodeLost(f"the node is lost: {reason}", node=node)))

    def _announce(self, view: View) -> None:
        self._count(views=1)
        get_logger().info("a view is in force", epoch=view.epoch, leader=view.leader, members=len(view.members))
        for callback in self._view_callbacks:
            self._guard(partial(callback, view))

    def _guard(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            self._count(failed=1)
            get_logger().error("a callback of the membership failed", exc_info=error)

    async def _connect(self, address: Address) -> None:
        network, place = self._connected(), Endpoint(address.host, address.port)
        try:
            if address.name:
                await network.connect(address.name, address.host, address.port)
            else:
                name = await network.meet(address.host, address.port)
                self._take(SeedAnswered(address, name))
            self.failed.note_connected(place)
        except PystachioError as error:
            self.failed.note_failed(place, error)
            self._take(ConnectFailed(address, error.message))

    async def _discover(self) -> None:
        async for addresses in self._discovery.addresses():
            self._take(AddressesDiscovered(tuple(addresses)))

    def _decide(self, name: str, error: BaseException) -> Directive:
        get_logger().error("a task of the control plane failed", task=name, exc_info=error)
        return Directive.STOP

    def _membership(self) -> Membership:
        if self._core is None:
            raise InternalError("the control plane is not open yet")
        return self._core

    def _connected(self) -> NodeNetwork:
        if self._network is None:
            raise InternalError("the control plane is not open yet")
        return self._network

    def _count(self, **more: int) -> None:
        counts = self._counts
        self._counts = replace(counts, **{name: getattr(counts, name) + number for name, number in more.items()})
