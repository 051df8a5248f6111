"""Scenarios: what to simulate, as plain data in plain Python files, and running them."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from pystachio.errors import InvalidRequest, NotFound, PystachioError
from pystachio.io_scheduler.policy import POLICIES, Policy
from pystachio.io_scheduler.request import PriorityClass
from pystachio.io_scheduler.simulation import scenarios
from pystachio.io_scheduler.simulation.faults import Fault
from pystachio.io_scheduler.simulation.fields import require_not_negative, require_positive
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
        require_not_negative(self, "warm_up_seconds")
        if self.seconds is not None:
            require_positive(self, "seconds")
            if self.seconds <= self.warm_up_seconds:
                raise InvalidRequest(f"the scenario is over before it counts: {self.seconds}")
        for what, parts in (("workload", self.workloads), ("fault", self.faults)):
            for part in parts:
                if not (callable(getattr(part, "check", None)) and callable(getattr(part, "start", None))):
                    raise InvalidRequest(f"not a {what}: {part!r}")
                part.check(self.hardware)
        for policy in self.policies:
            find_policy(policy)

    def alone(self) -> Scenario | None:
        """The same cluster with its interactive plans only; None when there are none, or nothing else."""
        left = tuple(alone for workload in self.workloads if (alone := workload.alone()) is not None)
        return replace(self, workloads=left) if left and left != tuple(self.workloads) else None


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


def built_in_names() -> list[str]:
    return sorted(module.name for module in iter_modules(scenarios.__path__))


def load_scenario(name: str) -> Scenario:
    """A built-in scenario by name, or that of a Python file. Raises NotFound, or InvalidRequest that says where."""
    if name in built_in_names():
        return _call(import_module(f"{scenarios.__name__}.{name}"), name)
    path = Path(name)
    if path.suffix != ".py":
        raise NotFound(f"no such scenario: {name}", hint=f"a Python file, or one of {', '.join(built_in_names())}")
    return _call(_execute(path), str(path))


def _execute(path: Path) -> ModuleType:
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"no such scenario file: {path}") from None
    except OSError as error:
        raise InvalidRequest(f"the scenario file cannot be read: {path}: {error.strerror}") from None
    module = ModuleType("scenario")
    module.__file__ = str(path)
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except SyntaxError as error:
        raise InvalidRequest(f"the scenario is not Python: {path}, line {error.lineno}: {error.msg}") from None
    except Exception as error:
        raise _failed(path, error) from error
    return module


def _call(module: ModuleType, where: str) -> Scenario:
    function = getattr(module, "scenario", None)
    if not callable(function):
        raise InvalidRequest(
            f"the scenario file defines no function `scenario`: {where}", hint="def scenario() -> Scenario: ..."
        )
    try:
        scenario = function()
    except Exception as error:
        raise _failed(Path(where), error) from error
    if not isinstance(scenario, Scenario):
        raise InvalidRequest(f"`scenario` returned no Scenario but {type(scenario).__name__}: {where}")
    return scenario


def _failed(path: Path, error: Exception) -> InvalidRequest:
    """Says in which line of the file it happened."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    what = error.message if isinstance(error, PystachioError) else f"{type(error).__name__}: {error}"
    hint = error.hint if isinstance(error, PystachioError) else None
    place = f", line {lines[-1]}" if lines else ""
    return InvalidRequest(f"the scenario fails: {path}{place}: {what}", hint=hint)
