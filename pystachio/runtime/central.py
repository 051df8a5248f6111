"""The central service as an actor, and a node's end of it.

Reports and leases are left in a mailbox and forgotten: no start of a plan, no chunk and no cancellation ever waits for
the other side. Timers run only while there are plans that last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from pystachio.errors import InternalError
from pystachio.io_scheduler.central.events import CentralMessage, NodeLost, NodeMessage
from pystachio.io_scheduler.central.fairness import LinkClass
from pystachio.io_scheduler.central.lease_holder import LeaseHolder, LeaseHolderStatistics, Reranking, Served
from pystachio.io_scheduler.central.scheduler import Central, CentralEvent, CentralStatistics
from pystachio.io_scheduler.core.events import TimePassed
from pystachio.io_scheduler.core.request import Lease, PriorityClass
from pystachio.io_scheduler.ledger import Ledger
from pystachio.runtime.actors import ActorRef, Children
from pystachio.runtime.clock import Clock


class NodeLink(Protocol):
    """The centre's way to a node. A message may be lost, but never keeps the sender."""

    def publish(self, message: CentralMessage) -> None: ...


class CentreLink(Protocol):
    """A node's way to the centre, whoever that is at present. A message may be lost, but never keeps the sender."""

    def send(self, message: NodeMessage) -> None: ...


TIMER_SLACK_SECONDS = 0.001
"""Loops round, uvloop to milliseconds: a timer that rings a little early would be set again and again."""


class Alarm:
    """One timer of the running loop: `ring` is called once the earliest time that was asked for has come."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float | None) -> None:
        """Ring at that time of the clock. One that is set for earlier stays: whoever is woken looks again."""
        if at is None or (self._at is not None and self._at <= at):
            return
        self.cancel()
        self._at = at
        delay = max(0.0, at - self._clock.now()) + TIMER_SLACK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = self._timer = None

    def _wake(self) -> None:
        self._at = self._timer = None
        self._ring()


class CentralActor:
    """Runs the core. Made anew after a crash, it is the next centre: its epoch is higher, and nodes join it again."""

    def __init__(self, core: Central, links: Mapping[str, NodeLink], clock: Clock, alarm: Alarm) -> None:
        self._core = core
        self._links = links
        self._clock = clock
        self._alarm = alarm

    async def receive(self, message: CentralEvent) -> None:
        for name, published in self._core.handle(message, self._clock.now()):
            link = self._links.get(name)
            if link is not None:
                link.publish(published)
        self._alarm.set(self._core.next_wake())


class CentralService:
    """The centre on this node, if it is the one; `epoch` is higher than that of any centre before."""

    def __init__(self, children: Children, clock: Clock, *, epoch: int = 1) -> None:
        self._next_epoch = epoch
        self._core = Central(epoch)
        self._clock = clock
        self._children = children
        self._links: dict[str, NodeLink] = {}
        self._alarm = Alarm(clock, lambda: self._tell(TimePassed()))
        self._ref: ActorRef[CentralEvent] = children.spawn("central", self._create)

    def connect(self, node: str, link: NodeLink) -> None:
        """Leases for the node go this way from now on."""
        self._links[node] = link

    def lose(self, node: str) -> None:
        """The cluster's membership has given the node up."""
        self._links.pop(node, None)
        self._tell(NodeLost(node))

    def send(self, message: NodeMessage) -> None:
        """`CentreLink` for the centre's own node."""
        self._tell(message)

    def statistics(self) -> CentralStatistics:
        return self._core.statistics()

    def close(self) -> None:
        """It is the centre no more: nothing is heard or published after this."""
        self._links.clear()
        self._alarm.cancel()
        self._children.stop(self._ref)

    def _create(self, ref: ActorRef[CentralEvent]) -> CentralActor:
        self._core = Central(self._next_epoch)
        self._next_epoch += 1
        return CentralActor(self._core, self._links, self._clock, self._alarm)

    def _tell(self, message: CentralEvent) -> None:
        with suppress(InternalError):  # it has ended, as a centre may
            self._ref.tell(message)


@dataclass(frozen=True, slots=True)
class LocalLink:
    """To a node in the same process: on the loop's next turn, so that its failures are not the centre's."""

    take: Callable[[CentralMessage], None]

    def publish(self, message: CentralMessage) -> None:
        asyncio.get_running_loop().call_soon(self.take, message)


class NodeLeases:
    """A node's end: tells the centre of its plans and what they moved, and passes leases on to the I/O scheduler.

    `rerank` is called for plans whose class or deadline was changed on another node.
    """

    def __init__(
        self,
        node: str,
        *,
        clock: Clock,
        ledger: Ledger,
        centre: CentreLink,
        grant: Callable[[Lease], None],
        rerank: Callable[[Reranking], None],
    ) -> None:
        self._holder = LeaseHolder(node)
        self._clock = clock
        self._ledger = ledger
        self._centre = centre
        self._grant = grant
        self._rerank = rerank
        self._alarm = Alarm(clock, self._report_if_due)

    def plan_started(
        self, plan_id: str, priority: PriorityClass, *, weight: float = 1.0, due_at: float | None = None
    ) -> None:
        """The plan runs; nobody was asked. `due_at` in seconds of the clock."""
        self._holder.plan_started(plan_id, priority, self._clock.now(), weight=weight, due_at=due_at)
        self._alarm.set(self._holder.next_wake())

    def plan_reranked(self, plan_id: str, priority: PriorityClass, *, due_at: float | None = None) -> None:
        """The plan's class or deadline was changed on this node, which follows already."""
        self._holder.plan_reranked(plan_id, priority, self._clock.now(), due_at=due_at)
        self._alarm.set(self._holder.next_wake())

    def plan_ended(self, plan_id: str) -> None:
        self._holder.plan_ended(plan_id)

    def centre_changed(self, centre: CentreLink) -> None:
        """Another centre took over: it is told everything anew."""
        self._centre = centre
        self._holder.centre_changed(self._clock.now())
        self._alarm.set(self._holder.next_wake())

    def take(self, message: CentralMessage) -> None:
        """What the centre sent; it may be late, doubled or nonsense."""
        taken = self._holder.take(message, self._clock.now())
        if taken.lease is not None:
            self._grant(taken.lease)
        for reranking in taken.rerankings:
            self._rerank(reranking)
        self._alarm.set(self._holder.next_wake())

    def statistics(self) -> LeaseHolderStatistics:
        return self._holder.statistics()

    def close(self) -> None:
        self._alarm.cancel()

    def _report_if_due(self) -> None:
        wake, now = self._holder.next_wake(), self._clock.now()
        if wake is not None and wake <= now:
            self._centre.send(self._holder.report(served(self._ledger, self._holder.plans()), now))
            wake = self._holder.next_wake()
        self._alarm.set(wake)


def served(ledger: Ledger, plan_ids: Iterable[str]) -> Iterator[Served]:
    """What the ledger says that the plans have moved so far, by link class."""
    for plan_id in plan_ids:
        totals: dict[LinkClass, tuple[int, float]] = {}
        for (_, link), account in ledger.accounts(plan_id).items():
            link_class = LinkClass(link.medium, link.direction)
            nbytes, queue_seconds = totals.get(link_class, (0, 0.0))
            totals[link_class] = (nbytes + account.transferred_bytes, queue_seconds + account.queue_seconds)
        for link_class, (nbytes, queue_seconds) in totals.items():
            yield Served(plan_id, link_class, nbytes, queue_seconds)


class Centre(Protocol):
    """What a node needs of the central service, wherever that is. It is a `CentreLink`."""

    def attach(self, leases: NodeLeases) -> None:
        """The node's own end, once, before anything is sent."""
        ...

    def send(self, message: NodeMessage) -> None: ...

    def statistics(self) -> CentralStatistics | None:
        """None where the centre is on another node."""
        ...

    def close(self) -> None: ...


OpenCentre = Callable[[Children, Clock, str], Centre]
"""Makes a node's centre, given its supervision, its clock and its name."""


class OwnCentre:
    """The `Centre` of a single machine: a cluster of one node, which is the central service's as well."""

    def __init__(self, children: Children, clock: Clock, node: str) -> None:
        self._service = CentralService(children, clock)
        self._node = node

    def attach(self, leases: NodeLeases) -> None:
        self._service.connect(self._node, LocalLink(leases.take))

    def send(self, message: NodeMessage) -> None:
        self._service.send(message)

    def statistics(self) -> CentralStatistics:
        return self._service.statistics()

    def close(self) -> None:
        self._service.close()
