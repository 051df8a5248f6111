"""What goes wrong in a simulation, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pystachio.errors import Cancelled, InvalidRequest
from pystachio.io_scheduler.core.request import Link, PriorityClass
from pystachio.io_scheduler.simulation.devices import Condition
from pystachio.io_scheduler.simulation.fields import require_not_negative, require_positive
from pystachio.io_scheduler.simulation.hardware import GPU_LINK, PCIE_LINK, Hardware, disk_link
from pystachio.io_scheduler.simulation.simulation import Simulation
from pystachio.io_scheduler.simulation.virtual_time import Kind


class Fault(Protocol):
    def check(self, hardware: Hardware) -> None:
        """Raise InvalidRequest when the hardware has nothing of the kind."""
        ...

    def start(self, simulation: Simulation) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFault:
    """From `at` to `until` (None: the end) a device is not what it was. Probabilities are for each chunk.

    `device` is `disk0`, `disk1`, ..., `pcie` or `gpu`; `speed` a share of its bandwidth. A stalled chunk comes
    `stall_seconds` late; a chunk with an error, or that was read short, may be tried again; a device that `vanishes`
    answers nothing until it is back.
    """

    node: int = 0
    device: str = "disk0"
    at: float = 0.0
    until: float | None = None
    speed: float = 1.0
    stall_probability: float = 0.0
    stall_seconds: float = 0.0
    error_probability: float = 0.0
    short_read_probability: float = 0.0
    vanishes: bool = False

    def check(self, hardware: Hardware) -> None:
        require_positive(self, "speed")
        require_not_negative(self, "node", "at", "stall_seconds")
        for name in ("stall_probability", "error_probability", "short_read_probability"):
            require_not_negative(self, name)
            if getattr(self, name) > 1:
                raise InvalidRequest(f"DeviceFault.{name} is more than 1: {getattr(self, name)}")
        if self.until is not None and self.until < self.at:
            raise InvalidRequest(f"the fault ends before it begins: {self.until}")
        if self.node >= hardware.nodes:
            raise InvalidRequest(f"no such node: {self.node}")
        self._link(hardware)

    def start(self, simulation: Simulation) -> None:
        device = simulation.device(self.node, self._link(simulation.hardware))

        def begin(_: None) -> None:
            device.condition = Condition(
                speed=self.speed,
                stall_probability=self.stall_probability,
                stall_seconds=self.stall_seconds,
                error_probability=self.error_probability,
                short_read_probability=self.short_read_probability,
                vanished=self.vanishes,
            )

        def end(_: None) -> None:
            device.recover()

        simulation.time.at(self.at, Kind.FAULT, self.node, begin, None)
        if self.until is not None:
            simulation.time.at(self.until, Kind.FAULT, self.node, end, None)

    def _link(self, hardware: Hardware) -> Link:
        if self.device == "pcie" and hardware.pcie is not None:
            return PCIE_LINK
        if self.device == "gpu" and hardware.gpu is not None:
            return GPU_LINK
        number = self.device.removeprefix("disk")
        if number.isdigit() and int(number) < hardware.disks and number != self.device:
            return disk_link(int(number))
        raise InvalidRequest(f"no such device: {self.device!r}", hint="disk0, disk1, ..., pcie or gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The node neither sends nor sees anything of the network from `at` to `until`."""

    node: int
    at: float
    until: float

    def check(self, hardware: Hardware) -> None:
        require_not_negative(self, "node", "at")
        if hardware.network is None or self.node >= hardware.nodes:
            raise InvalidRequest(f"no such node on a network: {self.node}")
        if self.until < self.at:
            raise InvalidRequest(f"the silence ends before it begins: {self.until}")

    def start(self, simulation: Simulation) -> None:
        network = simulation.network
        assert network is not None
        simulation.time.at(
            self.at, Kind.FAULT, self.node, lambda _: network.port(self.node).fall_silent(self.until), None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Somebody cancels the plan; nothing happens when it is not there."""

    plan_id: str
    at: float

    def check(self, hardware: Hardware) -> None:
        require_not_negative(self, "at")

    def start(self, simulation: Simulation) -> None:
        def cancel(_: None) -> None:
            plan = simulation.plans.get(self.plan_id)
            if plan is not None:
                plan.fail(Cancelled("the plan was cancelled", plan_id=self.plan_id))

        simulation.time.at(self.at, Kind.FAULT, 0, cancel, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank:
    """Somebody changes the plan's priority; nothing happens when it is not there."""

    plan_id: str
    at: float
    priority: PriorityClass

    def check(self, hardware: Hardware) -> None:
        require_not_negative(self, "at")

    def start(self, simulation: Simulation) -> None:
        def rerank(_: None) -> None:
            plan = simulation.plans.get(self.plan_id)
            if plan is not None:
                plan.set_priority(self.priority)

        simulation.time.at(self.at, Kind.FAULT, 0, rerank, None)
