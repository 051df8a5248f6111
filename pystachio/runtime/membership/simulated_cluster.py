"""Simulated nodes on a simulated network: they run the membership's core, and what must always hold is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from random import Random
from typing import assert_never

from pystachio.runtime.membership.core import Membership
from pystachio.runtime.membership.events import (
    Action,
    AddressesDiscovered,
    AdoptView,
    AskJoin,
    Connect,
    ConnectFailed,
    Disconnect,
    Event,
    JoinAsked,
    MemberLost,
    MemberReached,
    NodeConnected,
    NodeDisconnected,
    NodeLeft,
    SayLeave,
    SeedAnswered,
    TellView,
    TimePassed,
    ViewHeard,
)
from pystachio.runtime.membership.simulated_network import (
    BEAT_SECONDS,
    DEAD_BEATS,
    HANDSHAKE_SECONDS,
    Agenda,
    Connection,
    SimulatedNetwork,
)
from pystachio.runtime.membership.views import Address, Member, View


class InvariantBroken(AssertionError):
    """The message has the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOutcome:
    """`agreed_after` is in virtual seconds since the last fault; `digest` is of every event and action."""

    seed: int
    nodes: int
    faults: int
    events: int
    views: int
    agreed_after: float
    view: View
    digest: str


class SimulatedNode:
    """One node through all its starts. While it is `stalled`, it neither reads nor beats."""

    def __init__(self, cluster: SimulatedCluster, name: str, index: int) -> None:
        self.name = name
        self.address = Address(name, "10.0.0.1", 1000 + index)
        self.core: Membership | None = None
        self.connections: dict[str, Connection] = {}
        self.starts = 0
        self.stalled = False
        self._cluster = cluster
        self._chance = Random(f"{cluster.seed} {name}")
        self._backlog: list[Callable[[], None]] = []
        self._woken_at: float | None = None

    def start(self) -> None:
        self.starts += 1
        member = Member(self.name, self.address.host, self.address.port, f"{self.name}{self.starts}")
        self.core = Membership(member, chance=self._chance, now=self._cluster.agenda.now)
        self._woken_at = None
        self.take(AddressesDiscovered(self._cluster.discovered(self.name)))
        self._cluster.agenda.after(self._chance.random() * BEAT_SECONDS, partial(self._beat, self.starts))

    def crash(self) -> None:
        """The machine's kernel closes what the process had open."""
        self.core = None
        self.stalled = False
        self._backlog.clear()
        for peer in tuple(self.connections):
            self.close(peer, "the process ended")

    def stall(self) -> None:
        self.stalled = self.core is not None

    def go_on(self) -> None:
        """What has come in the meantime is read first."""
        self.stalled = False
        backlog, self._backlog = self._backlog, []
        for happen in backlog:
            happen()

    def when_running(self, start: int, happen: Callable[[], None]) -> None:
        """Now, or when the node goes on; never when it has been started again."""
        if self.core is None or start != self.starts:
            return
        if self.stalled:
            self._backlog.append(partial(self.when_running, start, happen))
        else:
            happen()

    def take(self, event: Event) -> None:
        if self.core is None:
            return
        before = self.core.view
        actions = self.core.handle(event, self._cluster.agenda.now)
        self._cluster.note(self, before, event, actions)
        for action in actions:
            self._act(action)
        if self.core is not None and (wake := self.core.next_wake()) is not None and wake != self._woken_at:
            self._woken_at = wake
            self._cluster.agenda.at(wake, partial(self.when_running, self.starts, partial(self._wake, wake)))

    def attach(self, peer: str, connection: Connection) -> None:
        """The newer connection counts, as in `Network`: nobody is told of the older one's end."""
        known = self.connections.get(peer)
        self.connections[peer] = connection
        if known is None:
            self.take(NodeConnected(peer))
        else:
            self._cluster.close(known, self.name)

    def close(self, peer: str, reason: str) -> None:
        connection = self.connections.pop(peer, None)
        if connection is not None:
            self._cluster.close(connection, self.name)
            self.take(NodeDisconnected(peer, reason))

    def _wake(self, wake: float) -> None:
        if self._woken_at == wake:
            self._woken_at = None
            self.take(TimePassed())

    def _beat(self, start: int) -> None:
        if self.core is None or start != self.starts:
            return
        if not self.stalled:
            for peer, connection in tuple(self.connections.items()):
                connection.silent[self.name] += 1
                if connection.silent[self.name] >= DEAD_BEATS:
                    self.close(peer, "silent")
                else:
                    self._cluster.beat(connection, self.name)
        self._cluster.agenda.after(BEAT_SECONDS, partial(self._beat, start))

    def _act(self, action: Action) -> None:
        match action:
            case Connect(address):
                self._cluster.connect(self, address)
            case Disconnect(name, reason):
                self.close(name, reason)
            case TellView(to, told):
                self._tell(to, ViewHeard(self.name, told))
            case AskJoin(to, member):
                self._tell(to, JoinAsked(member))
            case SayLeave(to):
                self._tell(to, NodeLeft(self.name))
            case AdoptView() | MemberReached() | MemberLost():
                pass
            case _:
                assert_never(action)

    def _tell(self, to: str, event: Event) -> None:
        connection = self.connections.get(to)
        if connection is not None:
            self._cluster.tell(connection, self.name, event)


class SimulatedCluster:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.agenda = Agenda()
        self.chance = Random(seed)
        self.network = SimulatedNetwork(self.agenda, self.chance)
        names = self.chance.sample([f"n{number}" for number in range(10, 40)], self.chance.randint(2, 7))
        self.nodes = {name: SimulatedNode(self, name, index) for index, name in enumerate(names)}
        self.seed_node = names[0] if self.chance.random() < 0.3 else None
        self.gone: set[str] = set()
        self.faults = self.events = self.views = 0
        self._published: dict[tuple[int, str, str], View] = {}
        self._digest = sha256()

    def discovered(self, name: str) -> tuple[Address, ...]:
        """A list of all, or the place of one whose name nobody has told."""
        if self.seed_node is not None:
            seed = self.nodes[self.seed_node].address
            return (seed._replace(name=""),)
        return tuple(node.address for node in self.nodes.values() if node.name != name)

    def connect(self, node: SimulatedNode, address: Address) -> None:
        found = next(other for other in self.nodes.values() if other.address.port == address.port)
        start, latency = node.starts, self.network.weather.latency_seconds

        def answer() -> None:
            if found.core is None or found is node:
                node.when_running(start, partial(node.take, ConnectFailed(address, "refused")))
            elif found.stalled or not self.network.reaches(node.name, found.name):
                fail = partial(node.take, ConnectFailed(address, "silence"))
                self.agenda.after(HANDSHAKE_SECONDS, partial(node.when_running, start, fail))
            else:
                node.when_running(start, partial(self._meet, node, found, address))

        self.agenda.after(latency, answer)

    def tell(self, connection: Connection, sender: str, event: Event) -> None:
        receiver = self.nodes[connection.other(sender)]

        def deliver() -> None:
            if receiver.connections.get(sender) is connection:
                connection.silent[receiver.name] = 0
                receiver.take(event)

        self._send(connection, sender, deliver, sheltered=False)

    def beat(self, connection: Connection, sender: str) -> None:
        receiver = connection.other(sender)

        def deliver() -> None:
            connection.silent[receiver] = 0

        self._send(connection, sender, deliver, sheltered=True)

    def close(self, connection: Connection, closer: str) -> None:
        connection.open.discard(closer)
        receiver = self.nodes[connection.other(closer)]
        if receiver.name not in connection.open:
            return

        def deliver() -> None:
            connection.open.discard(receiver.name)
            if receiver.connections.get(closer) is connection:
                del receiver.connections[closer]
                receiver.take(NodeDisconnected(closer, "closed by the other side"))

        self._send(connection, closer, deliver, sheltered=True)

    def note(self, node: SimulatedNode, before: View, event: Event, actions: list[Action]) -> None:
        """Check what must always hold."""
        self.events += 1
        self._digest.update(f"{self.agenda.now:.9f} {node.name} {event!r} {actions!r}\n".encode())
        core = node.core
        assert core is not None, "it has just handled an event"
        epochs = [before.epoch, *(action.view.epoch for action in actions if isinstance(action, AdoptView))]
        self._require(epochs == sorted(epochs), f"the epoch of {node.name} went back")
        self._require(core.view.epoch == epochs[-1], "a view came in force without being adopted")
        for action in actions:
            if isinstance(action, AdoptView):
                self._check_view(core.me, action.view)

    def agree(self) -> bool:
        live = [node.core for node in self.nodes.values() if node.core is not None]
        starts = tuple(sorted((core.me for core in live), key=lambda member: member.name))
        return all(core.view == live[0].view and core.present == self._others(core) for core in live) and (
            live[0].view.members == starts
        )

    def outcome(self, agreed_after: float) -> SimulationOutcome:
        live = next(node.core for node in self.nodes.values() if node.core is not None)
        return SimulationOutcome(
            seed=self.seed,
            nodes=len(self.nodes),
            faults=self.faults,
            events=self.events,
            views=self.views,
            agreed_after=agreed_after,
            view=live.view,
            digest=self._digest.hexdigest(),
        )

    def _others(self, core: Membership) -> frozenset[str]:
        live = (node.name for node in self.nodes.values() if node.core is not None)
        return frozenset(name for name in live if name != core.me.name)

    def _check_view(self, me: Member, view: View) -> None:
        self.views += 1
        names = [member.name for member in view.members]
        self._require(names == sorted(set(names)), "the members of a view are in order, each once")
        self._require(view.leader == names[0], "the least member leads")
        self._require(view.includes(me), "a node adopts views that it is in")
        leader = view.members[0]
        known = self._published.setdefault((view.epoch, leader.name, leader.instance), view)
        self._require(known == view, "a leader publishes one view per epoch")

    def _meet(self, node: SimulatedNode, found: SimulatedNode, address: Address) -> None:
        if found.core is None or found.stalled:  # while the answer waited for who asked
            node.take(ConnectFailed(address, "gone"))
            return
        if node.name not in found.connections or found.name not in node.connections:
            ends = (node.name, found.name)
            connection = Connection(ends, set(ends), dict.fromkeys(ends, 0))
            node.attach(found.name, connection)
            found.attach(node.name, connection)
        if not address.name:
            node.take(SeedAnswered(address, found.name))

    def _send(self, connection: Connection, sender: str, deliver: Callable[[], None], *, sheltered: bool) -> None:
        receiver = self.nodes[connection.other(sender)]
        start = receiver.starts
        self.network.send(connection, sender, partial(receiver.when_running, start, deliver), sheltered=sheltered)

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise InvariantBroken(f"{what} (seed {self.seed}, at {self.agenda.now:.3f} s)")
