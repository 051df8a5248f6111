"""Scenarios: what to simulate, as plain data, and running them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pystachio.errors import InvalidRequest, NotFound, shown
from pystachio.io_scheduler.core.policy import POLICIES, Policy
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.simulation.faults import Fault
from pystachio.io_scheduler.simulation.fields import require_kinds, require_not_negative, require_positive
from pystachio.io_scheduler.simulation.hardware import Hardware
from pystachio.io_scheduler.simulation.meter import LinkMeter
from pystachio.io_scheduler.simulation.outcome import ClassOutcome, LinkOutcome, Outcome
from pystachio.io_scheduler.simulation.simulation import Simulation
from pystachio.io_scheduler.simulation.trace import Trace
from pystachio.io_scheduler.simulation.workloads import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`seconds` of virtual time, of which the first `warm_up_seconds` do not count; None: until all work has ended.

    `policies` are simulated side by side unless others are asked for.
    """

    title: str
    hardware: Hardware
    workloads: Sequence[Workload]
    faults: Sequence[Fault] = ()
    seconds: float | None = 10.0
    warm_up_seconds: float = 0.0
    policies: Sequence[str] = ("pystachio", "strict", "fair", "fifo")

    def __post_init__(self) -> None:
        require_kinds(self)
        _check_hardware(self.hardware)
        require_not_negative(self, "warm_up_seconds")
        if self.seconds is not None:
            require_positive(self, "seconds")
            if self.seconds <= self.warm_up_seconds:
                raise InvalidRequest(f"the scenario is over before it counts: {self.seconds}")
        for what, parts in (("workload", self.workloads), ("fault", self.faults)):
            for part in parts:
                able = callable(getattr(part, "check", None)) and callable(getattr(part, "start", None))
                if isinstance(part, type) or not able:
                    raise InvalidRequest(f"not a {what}: {shown(part)}")
                require_kinds(part)
                part.check(self.hardware)
        for policy in self.policies:
            find_policy(policy)

    def alone(self) -> Scenario | None:
        """The same cluster with its interactive plans only; None when there are none, or nothing else."""
        left = tuple(alone for workload in self.workloads if (alone := workload.alone()) is not None)
        return replace(self, workloads=left) if left and left != tuple(self.workloads) else None


def _check_hardware(hardware: object) -> None:
    if not isinstance(hardware, Hardware):
        raise InvalidRequest(f"Scenario.hardware is not a Hardware: {shown(hardware)}")
    require_kinds(hardware)
    for device in (hardware.disk, hardware.pcie, hardware.gpu, hardware.network):
        require_kinds(device)


def find_policy(name: str) -> Policy:
    """Raises NotFound."""
    policy = POLICIES.get(name)
    if policy is None:
        raise NotFound(f"no such policy: {name!r}", hint=f"one of {', '.join(POLICIES)}")
    return policy


def simulate(
    scenario: Scenario,
    policy: Policy,
    seed: int = 0,
    *,
    checked: bool = False,
    trace: Trace | None = None,
) -> Outcome:
    """Run it once. The same scenario, policy and seed give the same outcome and event hash.

    With `checked` all books are checked after every event: AssertionError says what does not hold. Raises `Deadlock`.
    """
    simulation = prepare(scenario, policy, seed, checked=checked, trace=trace)
    simulation.run()
    return outcome_of(simulation, seed)


def prepare(
    scenario: Scenario, policy: Policy, seed: int, *, checked: bool = False, trace: Trace | None = None
) -> Simulation:
    """All set up, nothing run."""
    simulation = Simulation(
        scenario.hardware,
        policy,
        seed,
        seconds=scenario.seconds,
        counted_from=scenario.warm_up_seconds,
        checked=checked,
        trace=trace,
    )
    for workload in scenario.workloads:
        workload.start(simulation)
    for fault in scenario.faults:
        fault.start(simulation)
    return simulation


def outcome_of(simulation: Simulation, seed: int) -> Outcome:
    """The books of a simulation that has run."""
    seconds = simulation.time.now - simulation.counted_from
    return Outcome(
        policy=simulation.policy.name,
        seed=seed,
        seconds=seconds,
        events=simulation.time.events,
        chunks=simulation.chunks,
        messages=simulation.messages,
        central_messages=simulation.central_messages,
        event_hash=simulation.time.digest(),
        classes=tuple(_class_outcome(simulation, priority, seconds) for priority in PriorityClass),
        links=tuple(_link_outcome(meter, seconds) for meter in simulation.meters if meter.chunks),
    )


def _class_outcome(simulation: Simulation, priority: PriorityClass, seconds: float) -> ClassOutcome:
    return ClassOutcome(
        priority=priority,
        latencies=tuple(sorted(simulation.latencies[priority])),
        bytes_per_second=simulation.bytes_finished[priority] / seconds if seconds > 0 else 0.0,
        plans_done=simulation.plans_done[priority],
        plans_failed=simulation.plans_failed[priority],
    )


def _link_outcome(meter: LinkMeter, seconds: float) -> LinkOutcome:
    return LinkOutcome(
        node=meter.node,
        name=str(meter.link),
        busy=meter.busy_seconds / seconds if seconds > 0 else 0.0,
        busy_seconds=meter.busy_seconds,
        bytes_by_class=tuple(meter.bytes_by_class),
        chunks=meter.chunks,
        slot_seconds=meter.slot_seconds,
        shares_by_class=meter.shares(),
    )
