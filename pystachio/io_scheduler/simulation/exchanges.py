"""Traffic between nodes: everybody sends to everybody, and now and then something is urgent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from pystachio.errors import InvalidRequest, PystachioError
from pystachio.io_scheduler.core.events import PlanClosed, PlanOpened
from pystachio.io_scheduler.core.request import Extent, PriorityClass
from pystachio.io_scheduler.simulation.fields import require_positive
from pystachio.io_scheduler.simulation.hardware import KIB, MIB, NETWORK, Hardware
from pystachio.io_scheduler.simulation.network import Message
from pystachio.io_scheduler.simulation.simulation import Simulation
from pystachio.io_scheduler.simulation.transfer import SimulatedTransfer
from pystachio.io_scheduler.simulation.virtual_time import Kind
from pystachio.io_scheduler.simulation.workloads import Workload

Sizes = Literal["uniform", "hot", "pareto"]

_PARETO_SHAPE = 1.5
_LARGEST_PARETO = 100.0
"""Times the smallest: one message alone should not bound an exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllToAll:
    """Every node sends a message to every other one, all at once; the simulation is over when all have arrived.

    `uniform`: `message_bytes` each; `hot`: those to the first node are `hot_factor` times as long; `pareto`: lengths
    from a heavy-tailed distribution, `message_bytes` at the least.
    """

    name: str = "exchange"
    sizes: Sizes = "uniform"
    message_bytes: int = 8 * MIB
    hot_factor: int = 4
    priority: PriorityClass = PriorityClass.BATCH

    def check(self, hardware: Hardware) -> None:
        require_positive(self, "message_bytes", "hot_factor")
        if self.sizes not in get_args(Sizes):
            raise InvalidRequest(f"no such sizes: {self.sizes!r}", hint=f"one of {', '.join(get_args(Sizes))}")
        _check_network(hardware)

    def start(self, simulation: Simulation) -> None:
        simulation.expect()
        lengths = self.lengths(simulation)
        left = sum(len(row) for row in lengths.values())

        def ended(message: Message, _: PystachioError | None) -> None:
            nonlocal left
            left -= 1
            simulation.finished(self.priority, message.length)
            if not left:
                for node in simulation.nodes:
                    node.tell(PlanClosed(self.name))
                simulation.measured(self.priority, 0.0)
                simulation.end()

        def send(_: None) -> None:
            for node in simulation.nodes:
                node.tell(PlanOpened(self.name, self.priority))
            simulation.send(
                [
                    Message(
                        sender,
                        receiver,
                        length,
                        plan_id=self.name,
                        priority=self.priority,
                        ended=ended,
                        credit=simulation.pool(NETWORK),
                        delivered=_dropped if simulation.pool(NETWORK) is not None else None,
                    )
                    for sender, row in lengths.items()
                    for receiver, length in row.items()
                ]
            )

        simulation.time.at(0.0, Kind.ARRIVAL, 0, send, None)

    def lengths(self, simulation: Simulation) -> dict[int, dict[int, int]]:
        """Bytes by sender and receiver; the same for the same seed."""
        chance = simulation.chance(self.name)
        nodes = range(len(simulation.nodes))

        def length(receiver: int) -> int:
            if self.sizes == "hot" and receiver == 0:
                return self.message_bytes * self.hot_factor
            if self.sizes == "pareto":
                return int(self.message_bytes * min(_LARGEST_PARETO, chance.paretovariate(_PARETO_SHAPE)))
            return self.message_bytes

        return {sender: {receiver: length(receiver) for receiver in nodes if receiver != sender} for sender in nodes}

    def least_seconds(self, simulation: Simulation) -> float:
        """The lower bound: what the busiest port takes for its bytes."""
        network = simulation.hardware.network
        assert network is not None
        lengths = self.lengths(simulation)
        sent = max(sum(row.values()) for row in lengths.values())
        received = max(sum(row.get(receiver, 0) for row in lengths.values()) for receiver in lengths)
        return max(sent, received) / network.bytes_per_second

    def alone(self) -> Workload | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class UrgentMessages:
    """Interactive messages between nodes chosen at random, at random times; the time until each arrived is measured."""

    name: str = "urgent"
    message_bytes: int = 256 * KIB
    per_second: float = 1_000.0
    priority: PriorityClass = PriorityClass.INTERACTIVE

    def check(self, hardware: Hardware) -> None:
        require_positive(self, "message_bytes", "per_second")
        _check_network(hardware)

    def start(self, simulation: Simulation) -> None:
        chance = simulation.chance(self.name)
        time = simulation.time
        for node in simulation.nodes:
            node.tell(PlanOpened(self.name, self.priority))

        def later(number: int) -> None:
            when = time.now + chance.expovariate(self.per_second)
            time.at(when, Kind.ARRIVAL, number, send, number)

        def send(number: int) -> None:
            sender, receiver = chance.sample(range(len(simulation.nodes)), 2)
            since = time.now

            def ended(message: Message, _: PystachioError | None) -> None:
                simulation.finished(self.priority, message.length)
                simulation.measured(self.priority, since)
                simulation.nodes[message.receiver].release(message.credit, message.length, self.name)

            simulation.send(
                [
                    Message(
                        sender,
                        receiver,
                        self.message_bytes,
                        plan_id=self.name,
                        priority=self.priority,
                        ended=ended,
                        credit=simulation.pool(NETWORK),
                    )
                ]
            )
            later(number + 1)

        later(1)

    def alone(self) -> Workload | None:
        return self


def _dropped(transfer: SimulatedTransfer, chunk: Extent) -> None:
    """The consumer has no use for the bytes and gives their memory back at once."""
    transfer.node.release(transfer.transfer.credit, chunk.length, transfer.transfer.plan_id)


def _check_network(hardware: Hardware) -> None:
    if hardware.network is None:
        raise InvalidRequest("the hardware has no network", hint="Hardware(network=Network(), ...)")
    if hardware.nodes < 2:
        raise InvalidRequest(f"an exchange needs two nodes or more: {hardware.nodes}")
