"""What simulated clients do: scans that never end, queries that want to be quick, scans that are shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from pystachio.errors import InvalidRequest
from pystachio.io_scheduler.core.request import Extent, PriorityClass
from pystachio.io_scheduler.simulation.fields import require_not_negative, require_positive
from pystachio.io_scheduler.simulation.hardware import MIB, Hardware, check_path
from pystachio.io_scheduler.simulation.node import SimulatedNode
from pystachio.io_scheduler.simulation.plan import SimulatedPlan, Work
from pystachio.io_scheduler.simulation.simulation import Simulation
from pystachio.io_scheduler.simulation.virtual_time import Kind


class Workload(Protocol):
    """Plain data that says what to do; `start` does it. A scenario file may bring workloads of its own."""

    def check(self, hardware: Hardware) -> None:
        """Raise InvalidRequest when this cannot be done on the hardware."""
        ...

    def start(self, simulation: Simulation) -> None: ...

    def alone(self) -> Workload | None:
        """What is left of it when interactive plans have the cluster to themselves."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scans:
    """Each of `plans` reads extents from all disks of all nodes (or of the first `nodes`), `ahead` of them at a time
    from each disk.

    `bytes_per_disk` of None: until the simulation ends. What has passed the path is kept for `consumer_seconds`.
    """

    name: str = "scan"
    plans: int = 1
    priority: PriorityClass = PriorityClass.BATCH
    path: Sequence[str] = ("disk",)
    extent_bytes: int = 16 * MIB
    ahead: int = 4
    bytes_per_disk: int | None = None
    weight: float = 1.0
    nodes: int | None = None
    start_at: float = 0.0
    consumer_seconds: float | None = 0.0

    def check(self, hardware: Hardware) -> None:
        require_positive(self, "plans", "extent_bytes", "ahead", "weight")
        require_not_negative(self, "start_at")
        if self.bytes_per_disk is not None:
            require_positive(self, "bytes_per_disk")
        if self.nodes is not None:
            require_positive(self, "nodes")
        if self.consumer_seconds is not None:
            require_not_negative(self, "consumer_seconds")
        check_path(self.path, hardware)

    def start(self, simulation: Simulation) -> None:
        for index in range(self.plans):
            if self.bytes_per_disk is not None:
                simulation.expect()
            act = _Scan(self, simulation, f"{self.name}{index}").begin
            simulation.time.at(self.start_at, Kind.ARRIVAL, index, act, None)

    def alone(self) -> Workload | None:
        return self if self.priority == PriorityClass.INTERACTIVE else None


class _Scan:
    """One plan of `Scans`."""

    def __init__(self, spec: Scans, simulation: Simulation, plan_id: str) -> None:
        self._spec = spec
        self._simulation = simulation
        self._plan_id = plan_id
        self._plan: SimulatedPlan
        self._positions: dict[tuple[int, int], int] = {}
        self._works = 0

    def begin(self, _: None) -> None:
        spec, simulation = self._spec, self._simulation
        self._plan = SimulatedPlan(
            simulation,
            self._plan_id,
            spec.priority,
            spec.path,
            nodes=simulation.nodes[: spec.nodes],
            weight=spec.weight,
            consumer_seconds=spec.consumer_seconds,
            ended=self._plan_ended,
        )
        for node in self._plan.nodes:
            works = [self._next(node, disk) for _ in range(spec.ahead) for disk in range(simulation.hardware.disks)]
            self._plan.scan(node, [work for work in works if work is not None])

    def _next(self, node: SimulatedNode, disk: int) -> Work | None:
        position = self._positions.get((node.index, disk), 0)
        length, limit = self._spec.extent_bytes, self._spec.bytes_per_disk
        if limit is not None:
            length = min(length, limit - position)
            if length <= 0:
                return None
        self._positions[node.index, disk] = position + length
        self._works += 1
        return Work(Extent(position, length), disk, self._work_ended, lambda: self._go_on(node, disk))

    def _go_on(self, node: SimulatedNode, disk: int) -> None:
        if self._plan.is_open and self._plan.error is None and (work := self._next(node, disk)) is not None:
            self._plan.scan(node, [work])

    def _work_ended(self) -> None:
        self._works -= 1
        if not self._works:
            self._plan.close()

    def _plan_ended(self, plan: SimulatedPlan) -> None:
        if plan.error is None:
            self._simulation.measured(plan.priority, plan.opened_at)
        if self._spec.bytes_per_disk is not None:
            self._simulation.end()


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """Short plans: each reads `bytes_per_node` on every node, spread over its disks; its latency is measured.

    Either `per_second` of them arrive at random (a Poisson process), or each of `clients` asks again
    `think_seconds` (on average) after its answer. `count` of None: until the simulation ends.
    """

    name: str = "query"
    priority: PriorityClass = PriorityClass.INTERACTIVE
    path: Sequence[str] = ("disk",)
    bytes_per_node: int = 64 * MIB
    extent_bytes: int = 8 * MIB
    per_second: float | None = None
    clients: int | None = None
    think_seconds: float = 0.0
    count: int | None = None
    deadline_seconds: float | None = None
    start_at: float = 0.0
    stop_at: float | None = None

    def check(self, hardware: Hardware) -> None:
        require_positive(self, "bytes_per_node", "extent_bytes")
        require_not_negative(self, "think_seconds", "start_at")
        if (self.per_second is None) == (self.clients is None):
            raise InvalidRequest("queries arrive per_second or from clients: give one of the two")
        if self.per_second is not None:
            require_positive(self, "per_second")
        if self.clients is not None:
            require_positive(self, "clients")
        for name in ("count", "deadline_seconds", "stop_at"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        check_path(self.path, hardware)

    def start(self, simulation: Simulation) -> None:
        _Queries(self, simulation).begin()

    def alone(self) -> Workload | None:
        return self if self.priority == PriorityClass.INTERACTIVE else None


class _Queries:
    """The clients of `Queries`."""

    def __init__(self, spec: Queries, simulation: Simulation) -> None:
        self._spec = spec
        self._simulation = simulation
        self._chance: Random = simulation.chance(spec.name)
        self._asked = 0
        self._answered = 0

    def begin(self) -> None:
        spec = self._spec
        if spec.count is not None:
            self._simulation.expect()
        for _ in range(spec.clients or 1):
            self._ask_later(first=True)

    def _ask_later(self, *, first: bool = False) -> None:
        spec = self._spec
        if spec.count is not None and self._asked >= spec.count:
            return
        if spec.per_second is not None:
            pause = self._chance.expovariate(spec.per_second)
        else:
            pause = self._chance.expovariate(1.0 / spec.think_seconds) if spec.think_seconds else 0.0
        when = (spec.start_at if first else self._simulation.time.now) + pause
        if spec.stop_at is not None and when > spec.stop_at:
            return
        self._asked += 1
        self._simulation.time.at(when, Kind.ARRIVAL, self._asked, self._ask, self._asked)

    def _ask(self, number: int) -> None:
        spec, simulation = self._spec, self._simulation
        now = simulation.time.now
        plan = SimulatedPlan(
            simulation,
            f"{spec.name}{number}",
            spec.priority,
            spec.path,
            nodes=simulation.nodes,
            deadline=None if spec.deadline_seconds is None else now + spec.deadline_seconds,
            ended=self._answer,
        )
        read_everywhere(simulation, plan, spec.bytes_per_node, spec.extent_bytes)
        if spec.per_second is not None:
            self._ask_later()

    def _answer(self, plan: SimulatedPlan) -> None:
        if plan.error is None:
            self._simulation.measured(plan.priority, plan.opened_at)
        self._answered += 1
        if self._answered == self._spec.count:
            self._simulation.end()
        if self._spec.clients is not None:
            self._ask_later()


def read_everywhere(simulation: Simulation, plan: SimulatedPlan, bytes_per_node: int, extent_bytes: int) -> None:
    """Ask for so much on every node at once, its disks in turn; the plan is closed when all has arrived."""
    extents = [
        Extent(offset, min(extent_bytes, bytes_per_node - offset)) for offset in range(0, bytes_per_node, extent_bytes)
    ]
    left = len(extents) * len(plan.nodes)

    def ended() -> None:
        nonlocal left
        left -= 1
        if not left:
            plan.close()

    for node in plan.nodes:
        disks = simulation.hardware.disks
        plan.scan(node, [Work(extent, index % disks, ended) for index, extent in enumerate(extents)])
