"""The central service in a simulated cluster: the cores that production runs, and messages that may not arrive."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pystachio.errors import InvalidRequest
from pystachio.io_scheduler.central.events import CentralMessage, NodeMessage
from pystachio.io_scheduler.central.fairness import LinkClass
from pystachio.io_scheduler.central.lease_holder import LeaseHolder, Served
from pystachio.io_scheduler.central.scheduler import Central, CentralEvent
from pystachio.io_scheduler.core.events import (
    Action,
    Event,
    LeaseGranted,
    PlanClosed,
    PlanOpened,
    PriorityChanged,
    StartChunk,
    TimePassed,
)
from pystachio.io_scheduler.simulation.fields import require_not_negative
from pystachio.io_scheduler.simulation.hardware import Hardware
from pystachio.io_scheduler.simulation.node import SimulatedNode
from pystachio.io_scheduler.simulation.simulation import Simulation
from pystachio.io_scheduler.simulation.virtual_time import Kind, VirtualTime


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralService:
    """One centre for all nodes. From `away_at` to `back_at` nothing that it sends or is sent arrives.

    At `takes_over_at` another one takes over; with `split_brain` the old one goes on, and hears all that nodes say.
    A message takes `delay_seconds` and up to `jitter_seconds` more, so that it may overtake others; `lost` and
    `doubled` are probabilities.
    """

    away_at: float | None = None
    back_at: float | None = None
    takes_over_at: float | None = None
    split_brain: bool = False
    delay_seconds: float = 200e-6
    jitter_seconds: float = 0.0
    lost: float = 0.0
    doubled: float = 0.0

    def check(self, hardware: Hardware) -> None:
        require_not_negative(self, "delay_seconds", "jitter_seconds", "lost", "doubled")
        if self.away_at is not None and self.back_at is not None and self.back_at < self.away_at:
            raise InvalidRequest(f"the centre is back before it is away: {self.back_at}")

    def start(self, simulation: Simulation) -> None:
        Wire(self, simulation).begin()

    def alone(self) -> None:
        """It is no load."""


class Wire:
    """The centres, the nodes' ends of them, and what is between."""

    def __init__(self, spec: CentralService, simulation: Simulation) -> None:
        self.ends = [NodeEnd(self, node, simulation.time) for node in simulation.nodes]
        self.centres: list[Centre] = []
        self._spec = spec
        self._simulation = simulation
        self._chance = simulation.chance("central service")
        self._epoch = 0

    def begin(self) -> None:
        self._appoint(None)
        if self._spec.takes_over_at is not None:
            self._simulation.time.at(self._spec.takes_over_at, Kind.FAULT, 0, self._appoint, None)

    def send(self, message: NodeMessage) -> None:
        """To the centre, or to all who believe to be it."""
        for centre in self.centres:
            self._carry(centre.take, message)

    def publish(self, node: str, message: CentralMessage) -> None:
        self._carry(self.ends[int(node)].take, message)

    def _appoint(self, _: None) -> None:
        self._epoch += 1
        if not self._spec.split_brain:
            for centre in self.centres:
                centre.is_up = False
            self.centres.clear()
        self.centres.append(Centre(self, self._epoch, self._simulation.time))
        for end in self.ends:
            end.join()

    def _carry(self, take: Callable[[CentralMessage], None] | Callable[[NodeMessage], None], message: object) -> None:
        spec, time = self._spec, self._simulation.time
        self._simulation.central_messages += 1
        is_away = spec.away_at is not None and spec.away_at <= time.now < (spec.back_at or float("inf"))
        for _ in range(2 if self._chance.random() < spec.doubled else 1):
            delay = spec.delay_seconds + spec.jitter_seconds * self._chance.random()
            if not is_away and self._chance.random() >= spec.lost:
                time.at(time.now + delay, Kind.CENTRE, 0, take, message)


class Centre:
    """Whoever believes to be the centre."""

    def __init__(self, wire: Wire, epoch: int, time: VirtualTime) -> None:
        self.core = Central(epoch)
        self.is_up = True
        self._wire = wire
        self._time = time
        self._wakes_at = float("inf")

    def take(self, event: CentralEvent) -> None:
        if not self.is_up:
            return
        for node, message in self.core.handle(event, self._time.now):
            self._wire.publish(node, message)
        wake = self.core.next_wake()
        if wake is not None and wake < self._wakes_at:
            self._wakes_at = wake
            self._time.at(wake, Kind.CENTRE, 0, self._wake, wake)

    def _wake(self, due: float) -> None:
        if due == self._wakes_at:
            self._wakes_at = float("inf")
            self.take(TimePassed())


class NodeEnd:
    """A node's side: what its scheduler is told and orders is the ledger of its plans."""

    def __init__(self, wire: Wire, node: SimulatedNode, time: VirtualTime) -> None:
        self.holder = LeaseHolder(str(node.index))
        self.bytes: Counter[tuple[str, LinkClass]] = Counter()
        self._queue_seconds: dict[tuple[str, LinkClass], float] = defaultdict(float)
        self._wire = wire
        self._node = node
        self._time = time
        self._wakes_at = float("inf")
        node.observe = self._observe

    def join(self) -> None:
        """There is another centre."""
        self.holder.centre_changed(self._time.now)
        self._wake_later()

    def take(self, message: CentralMessage) -> None:
        taken = self.holder.take(message, self._time.now)
        if taken.lease is not None:
            self._node.tell(LeaseGranted(taken.lease))
        for plan_id, priority, due_at in taken.rerankings:
            self._node.tell(PriorityChanged(plan_id, priority, due_at))
        self._wake_later()

    def _observe(self, event: Event, actions: Sequence[Action], now: float) -> None:
        match event:
            case PlanOpened(plan_id, priority, weight, deadline):
                self.holder.plan_started(plan_id, priority, now, weight=weight, due_at=deadline)
                self._wake_later()
            case PriorityChanged(plan_id, priority, deadline):
                self.holder.plan_reranked(plan_id, priority, now, due_at=deadline)
                self._wake_later()
            case PlanClosed(plan_id):
                self.holder.plan_ended(plan_id)
            case _:
                pass
        for action in actions:
            if isinstance(action, StartChunk):
                transfer = self._node.transfers[action.transfer_id].transfer
                key = (transfer.plan_id, LinkClass(transfer.link.medium, transfer.link.direction))
                self.bytes[key] += action.chunk.length
                self._queue_seconds[key] += action.queue_seconds

    def _wake_later(self) -> None:
        wake = self.holder.next_wake()
        if wake is not None and wake < self._wakes_at:
            self._wakes_at = max(wake, self._time.now)
            self._time.at(self._wakes_at, Kind.CENTRE, self._node.index, self._wake, self._wakes_at)

    def _wake(self, due: float) -> None:
        if due != self._wakes_at:
            return
        self._wakes_at = float("inf")
        wake = self.holder.next_wake()
        if wake is not None and wake <= self._time.now:
            self._wire.send(self.holder.report(self._served(), self._time.now))
        self._wake_later()

    def _served(self) -> Iterator[Served]:
        running = set(self.holder.plans())
        for (plan_id, link_class), nbytes in self.bytes.items():
            if plan_id in running:
                yield Served(plan_id, link_class, nbytes, self._queue_seconds[plan_id, link_class])
