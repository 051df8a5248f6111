"""Plans that wait for what another plan reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pystachio.errors import InvalidRequest
from pystachio.io_scheduler.core.request import Extent, PriorityClass
from pystachio.io_scheduler.simulation.fields import require_positive
from pystachio.io_scheduler.simulation.hardware import MIB, Hardware, check_path
from pystachio.io_scheduler.simulation.node import SimulatedNode
from pystachio.io_scheduler.simulation.plan import SimulatedPlan, Work
from pystachio.io_scheduler.simulation.simulation import Simulation
from pystachio.io_scheduler.simulation.virtual_time import Kind
from pystachio.io_scheduler.simulation.workloads import Workload, read_everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedScan:
    """A batch plan has a long queue on the first disk; urgent plans arrive that want `wanted_bytes` of what it waits
    for, and, with `boost`, lend it their priority. Without the batch plan (`is_alone`) they read it themselves.
    `count` urgent plans arrive; None: until the simulation ends.
    """

    name: str = "shared"
    queue_bytes: int = 512 * MIB
    wanted_bytes: int = 16 * MIB
    extent_bytes: int = 4 * MIB
    per_second: float = 10.0
    boost: bool = True
    count: int | None = None
    is_alone: bool = False

    def check(self, hardware: Hardware) -> None:
        require_positive(self, "queue_bytes", "wanted_bytes", "extent_bytes", "per_second")
        check_path(("disk",), hardware)
        if self.wanted_bytes > self.queue_bytes:
            raise InvalidRequest(f"wanted_bytes is more than the queue holds: {self.wanted_bytes}")

    def start(self, simulation: Simulation) -> None:
        _SharedScan(self, simulation).begin()

    def alone(self) -> Workload | None:
        return replace(self, is_alone=True)


class _SharedScan:
    """The batch plan and the urgent ones of a `SharedScan`."""

    def __init__(self, spec: SharedScan, simulation: Simulation) -> None:
        self._spec = spec
        self._simulation = simulation
        self._chance = simulation.chance(spec.name)
        self._queue: dict[int, Work] = {}
        self._position = 0
        self._batch: SimulatedPlan
        self._arrivals = 0
        self._answered = 0
        self._waiting: dict[str, SimulatedPlan] = {}

    def begin(self) -> None:
        spec, simulation = self._spec, self._simulation
        if spec.count is not None:
            simulation.expect()
        if not spec.is_alone:
            node = simulation.nodes[0]
            self._batch = SimulatedPlan(
                simulation, spec.name, PriorityClass.BATCH, ("disk",), nodes=[node], ended=self._batch_ended
            )
            self._batch.scan(node, [self._next() for _ in range(spec.queue_bytes // spec.extent_bytes)])
        self._arrive_later()

    def _next(self) -> Work:
        position = self._position
        self._position += self._spec.extent_bytes
        work = Work(Extent(position, self._spec.extent_bytes), 0, lambda: None, lambda: self._scanned(position))
        self._queue[position] = work
        return work

    def _scanned(self, position: int) -> None:
        del self._queue[position]
        if self._batch.is_open and self._batch.error is None:
            self._batch.scan(self._simulation.nodes[0], [self._next()])

    def _arrive_later(self) -> None:
        if self._arrivals == self._spec.count:
            return
        self._arrivals += 1
        when = self._simulation.time.now + self._chance.expovariate(self._spec.per_second)
        self._simulation.time.at(when, Kind.ARRIVAL, self._arrivals, self._arrive, self._arrivals)

    def _arrive(self, number: int) -> None:
        spec, simulation = self._spec, self._simulation
        plan_id = f"{spec.name}-urgent{number}"
        node = simulation.nodes[0]
        urgent = SimulatedPlan(
            simulation, plan_id, PriorityClass.INTERACTIVE, ("disk",), nodes=[node], ended=self._answer
        )
        if spec.is_alone or not self._batch.is_open or self._batch.error is not None:
            read_everywhere(simulation, urgent, spec.wanted_bytes, spec.extent_bytes)
        else:
            self._wait_for_shared(urgent, node)
        self._arrive_later()

    def _wait_for_shared(self, urgent: SimulatedPlan, node: SimulatedNode) -> None:
        wanted = list(self._queue.values())[-(self._spec.wanted_bytes // self._spec.extent_bytes) :]
        left = len(wanted)

        self._waiting[urgent.plan_id] = urgent

        def ended() -> None:
            nonlocal left
            left -= 1
            if not left:
                urgent.close()

        for work in wanted:
            work.ended = _after(work.ended, ended)
        if self._spec.boost:
            urgent.boost(node, wanted)

    def _answer(self, plan: SimulatedPlan) -> None:
        self._waiting.pop(plan.plan_id, None)
        if plan.error is None:
            self._simulation.measured(plan.priority, plan.opened_at)
        self._answered += 1
        if self._answered == self._spec.count:
            if not self._spec.is_alone:
                self._batch.close()
            self._simulation.end()

    def _batch_ended(self, batch: SimulatedPlan) -> None:
        """What it had asked for will not come: whoever waits for that fails with it."""
        if batch.error is not None:
            for urgent in tuple(self._waiting.values()):
                urgent.fail(batch.error)


def _after(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        then()

    return both
