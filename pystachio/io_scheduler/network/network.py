"""A node's network: who it is connected to, and messages to and from them by name. `__init__` says how to use it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from pystachio.errors import InvalidRequest, NodeLost, PystachioError
from pystachio.io_scheduler.client import as_bytes
from pystachio.io_scheduler.core.request import CreditPool, Direction, Link
from pystachio.io_scheduler.devices import Buffer, Device
from pystachio.io_scheduler.devices.ucx import UcxWorker
from pystachio.io_scheduler.network.backlog import Backlog
from pystachio.io_scheduler.network.frames import INSTANCE_BYTES, Carrier, Hello
from pystachio.io_scheduler.network.handshake import Identity, name_taken
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.links import NetworkLink, Timers, TransferService
from pystachio.io_scheduler.network.liveness import Health
from pystachio.io_scheduler.network.messages import MessageDevice, MessageKey
from pystachio.io_scheduler.network.peer import Peer, PeerStatistics
from pystachio.io_scheduler.network.reception import Address, Reception
from pystachio.io_scheduler.network.rendezvous import AlreadyConnected, Meeting
from pystachio.io_scheduler.network.tls import TlsFiles, load
from pystachio.io_scheduler.network.transports import TransportChoice, require_tls
from pystachio.io_scheduler.network.unwanted import Unwanted
from pystachio.io_scheduler.network.visits import Visit, Visits


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkStatistics:
    """`refused` counts connections that did not prove themselves or did not fit, `visits` the clients there are."""

    address: Address | None
    carrier: Carrier
    peers: tuple[PeerStatistics, ...]
    refused: int
    visits: int


class Network:
    """Use it as `async with Network(...)`: leaving the block ends every connection. The service outlives it.

    `node` is this node's name, `secret` the cluster's (at least 16 bytes), `epoch` the version of its membership that
    this node knows: nodes of different epochs do not connect. `joined` is called when a peer is connected, from either
    side, `lost` when it is lost, `refused` with the address of who came and was refused, and why. `heard` is called
    with a peer's name and each body that it tells, in order, and `visited` with each client that comes; either may
    raise a PystachioError to end that connection. With `tls`, every
    connection is encrypted; UCX's cannot be. `clock` is of Unix time, by which tokens expire. `emulate` may put another
    device in front of each link's, to make the network slower than it is. `ucx_options` are UCX's variables without
    their prefix: over TCP, UCX listens on every interface unless they name some (`NET_DEVICES`).
    """

    def __init__(
        self,
        *,
        node: str,
        service: TransferService,
        secret: bytes,
        transport: TransportChoice,
        epoch: int = 0,
        limits: NetworkLimits | None = None,
        joined: Callable[[str], None] | None = None,
        lost: Callable[[str, PystachioError], None] | None = None,
        refused: Callable[[str, PystachioError], None] | None = None,
        heard: Callable[[str, bytes], None] | None = None,
        visited: Callable[[Visit], None] | None = None,
        tls: TlsFiles | None = None,
        emulate: Callable[[Device], Device] | None = None,
        ucx_options: Mapping[str, str] | None = None,
        timers: Timers | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if tls is not None:
            require_tls(transport)
        self.node = node
        self.epoch = epoch
        self._service = service
        self._secret = secret
        self._carrier = transport.carrier
        self._instance = os.urandom(INSTANCE_BYTES)
        self._limits = limits if limits is not None else NetworkLimits()
        self._backlog = Backlog(self._limits.chunk_bytes)
        self._unwanted = Unwanted()
        self._on_joined = joined
        self._on_lost = lost
        self._on_heard = heard
        self._ucx_options = ucx_options
        self._timers: Timers = timers if timers is not None else asyncio.get_running_loop()
        self._ingress = NetworkLink(Link("network", node, Direction.READ), MessageDevice(self._limits.ingress()))
        self._egress = NetworkLink(Link("network", node, Direction.WRITE), MessageDevice(self._limits.egress()))
        for link, device in (self._ingress, self._egress):
            service.register_device(link, device if emulate is None else emulate(device))
        self._worker: UcxWorker | None = None
        self._visits = Visits(visited, limits=self._limits, timers=self._timers, clock=clock)
        self._reception = Reception(
            self._identity,
            limits=self._limits,
            timers=self._timers,
            check=self._check_name,
            knows=self._knows,
            admit=self._admit,
            refuse=refused,
            visits=self._visits,
            clock=clock,
            tls=None if tls is None else load(tls),
        )
        self._peers: dict[str, Peer] = {}
        self._ranks: dict[str, int] = {}
        self._identity()

    async def __aenter__(self) -> Network:
        if self._carrier is Carrier.UCX:
            self._worker = self._reception.worker = UcxWorker(self._ucx_options)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._reception.close()
        for peer in tuple(self._peers.values()):
            peer.close("the node leaves")
        self._visits.close("the node leaves")
        if self._worker is not None:
            self._worker.close()

    @property
    def peers(self) -> tuple[str, ...]:
        """The names of those connected, sorted."""
        return tuple(sorted(self._peers))

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> Address:
        """Accept peers at this address and no other; port 0 takes a free one. Raises OSError where that is impossible.

        To listen on all interfaces, say so: `0.0.0.0` or `::`.
        """
        return await self._reception.listen(host, port)

    async def connect(self, peer: str, host: str, port: int) -> None:
        """Be connected to the node `peer`, which listens there; without effect when it is connected already.

        Raises NodeLost (nobody answers, another epoch), Unauthorized (another secret, another node), InvalidRequest
        (the name is taken).
        """
        if peer in self._peers:
            return
        with suppress(AlreadyConnected):
            self._admit(await self._reception.connect(peer, host, port))

    async def meet(self, host: str, port: int) -> str:
        """Be connected to whichever node listens there, and return its name. Raises as `connect`."""
        try:
            meeting = await self._reception.connect("", host, port)
        except AlreadyConnected as known:
            return known.name
        self._admit(meeting)
        return meeting.established.node

    def suspects(self) -> frozenset[str]:
        """The peers that have been silent for too long, but not for so long that they are lost."""
        return frozenset(name for name, peer in self._peers.items() if peer.health is Health.SUSPECT)

    def disconnect(self, peer: str, reason: str) -> None:
        """The node is no member any more; what is under way with it ends with NodeLost. Idempotent."""
        if peer in self._peers:
            self._peers[peer].close(reason)

    def tell(self, peer: str, body: bytes) -> None:
        """The peer's `heard` is called with the body, after all that it was told before; this never waits.

        Heartbeats and grants go first, so a long body delays nothing. Raises NodeLost when the peer is not connected,
        InvalidRequest for a body over 16 MiB. When the peer is lost, nobody says what it has heard. A peer with more
        than 16 MiB waiting when it is told more is lost, perhaps before this returns.
        """
        self._peer(peer).tell(body)

    async def send(
        self, peer: str, key: MessageKey, buffer: Buffer, *, criticality: int = 0, patience: float | None = None
    ) -> None:
        """Returns when the receiver has all of `buffer`, checked; it is not used any more once this has ended.

        The plan is open in the scheduler. `patience` is how many seconds the receiver may leave the message alone,
        `math.inf` for as long as the plan is open; None is `NetworkLimits.wait_seconds`. Raises NodeLost when the peer
        is lost, ResourceExhausted when nobody asks for the message in time, Cancelled, and whatever the receiver
        refuses with.
        """
        await self._peer(peer).send(key, as_bytes(buffer), criticality, patience)

    async def offered(self, peer: str, key: MessageKey, *, patience: float | None = None) -> int:
        """Wait until the message is offered, and return its length: for who must have a buffer of his own for it."""
        return await self._peer(peer).offered(key, patience)

    async def receive(
        self,
        peer: str,
        key: MessageKey,
        into: Buffer | None = None,
        *,
        criticality: int = 0,
        credit: CreditPool | None = None,
        patience: float | None = None,
    ) -> Buffer:
        """The message as bytes: in `into`, which is as long, or else in memory of the scheduler's pool.

        `patience` is how many seconds the sender may take to offer the message, as in `send`. Nothing is written to the
        memory once this has ended, however it ends. Raises like `send`, and DataError when the message has another
        length or arrived damaged. Cancelling it gives the message up, even before it is
        offered: its sender is refused, unless somebody here asks for it again in time.
        """
        destination = None if into is None else as_bytes(into)
        return await self._peer(peer).receive(key, destination, criticality, credit, patience)

    def decline(self, peer: str, key: MessageKey) -> None:
        """Nobody here will ask for the message: its sender is refused, now or when it is offered."""
        if peer in self._peers:
            self._peers[peer].decline(key)
        else:
            self._unwanted.give_up(peer, key)

    def close_plan(self, plan_id: str) -> None:
        """Nothing of the plan is wanted any more: what waits ends with Cancelled, what comes is refused.

        To be called when a plan has ended, however: a peer may have offered what nobody will ask for.
        """
        self._unwanted.close_plan(plan_id)
        for peer in self._peers.values():
            peer.close_plan(plan_id)

    def statistics(self) -> NetworkStatistics:
        return NetworkStatistics(
            address=self._reception.address,
            carrier=self._carrier,
            peers=tuple(self._peers[name].statistics() for name in sorted(self._peers)),
            refused=self._reception.refused,
            visits=len(self._visits),
        )

    def _peer(self, name: str) -> Peer:
        peer = self._peers.get(name)
        if peer is None:
            raise NodeLost(f"the node is not connected: {name}", node=name)
        return peer

    def _identity(self) -> Identity:
        return Identity(
            node=self.node, instance=self._instance, epoch=self.epoch, carrier=self._carrier, secret=self._secret
        )

    def _check_name(self, hello: Hello) -> None:
        """Who has started anew takes the place of what is left of its old self, as soon as that is silent."""
        known = self._peers.get(hello.node)
        if known is not None and known.instance != hello.instance and known.speaks:
            raise name_taken(hello.node)

    def _knows(self, name: str, instance: bytes) -> bool:
        known = self._peers.get(name)
        return known is not None and known.instance == instance

    def _admit(self, meeting: Meeting) -> None:
        """The newer connection to a node counts, except when both connected at once: then that of the lesser name.

        Raises NodeLost when the connection is gone already.
        """
        name = meeting.established.node
        known = self._peers.get(name)
        if known is not None and known.instance == meeting.established.instance and self._keeps(known, name):
            meeting.close("the nodes are connected already")
            return
        try:
            peer = self._make_peer(meeting)
        except PystachioError:
            meeting.close("there is no path for data")
            raise
        self._peers[name] = peer
        self._ranks.clear()
        if known is not None:
            known.close("the node has connected again")
            if self._on_lost is not None:
                # What either end has told the other on the old connection may not have arrived.
                self._on_lost(name, NodeLost("the node has connected again", node=name))
        peer.start()
        if self._on_joined is not None and peer.error is None:
            self._on_joined(name)

    def _make_peer(self, meeting: Meeting) -> Peer:
        return Peer(
            meeting.established,
            meeting.control,
            is_initiator=meeting.is_initiator,
            service=self._service,
            ingress=self._ingress,
            egress=self._egress,
            backlog=self._backlog,
            unwanted=self._unwanted,
            limits=self._limits,
            timers=self._timers,
            rank=self._rank,
            heard=self._hear,
            lost=self._note_lost,
            make_path=meeting.make_path,
        )

    def _keeps(self, known: Peer, name: str) -> bool:
        return known.is_initiator == (self.node < name)

    def _hear(self, peer: str, body: bytes) -> None:
        if self._on_heard is None:
            raise InvalidRequest("nobody here listens to other nodes")
        self._on_heard(peer, body)

    def _note_lost(self, peer: Peer, error: PystachioError) -> None:
        if self._peers.get(peer.name) is peer:
            del self._peers[peer.name]
            self._ranks.clear()
            if self._on_lost is not None:
                self._on_lost(peer.name, error)

    def _rank(self, peer: str) -> int:
        """Places in a ring of all nodes, counted from this one: no two nodes begin with the same peer."""
        if not self._ranks:
            names = sorted((*self._peers, self.node))
            here = names.index(self.node)
            self._ranks = {name: (place - here) % len(names) for place, name in enumerate(names)}
        return self._ranks.get(peer, 0)
