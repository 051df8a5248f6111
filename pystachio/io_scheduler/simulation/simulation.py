"""A cluster in virtual time: nodes, devices, network, and the books of what happened."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from pystachio.errors import InvalidRequest
from pystachio.io_scheduler.core.policy import Policy
from pystachio.io_scheduler.core.request import CreditPool, Direction, Link, PriorityClass
from pystachio.io_scheduler.simulation.audit import Audit
from pystachio.io_scheduler.simulation.devices import SimulatedDevice
from pystachio.io_scheduler.simulation.hardware import (
    EGRESS,
    GPU_LINK,
    INGRESS,
    PCIE_LINK,
    POOLS,
    Device,
    Hardware,
    disk_link,
)
from pystachio.io_scheduler.simulation.meter import LinkMeter
from pystachio.io_scheduler.simulation.network import Message, SimulatedNetwork
from pystachio.io_scheduler.simulation.node import SimulatedNode
from pystachio.io_scheduler.simulation.trace import Trace
from pystachio.io_scheduler.simulation.virtual_time import VirtualTime

if TYPE_CHECKING:
    from pystachio.io_scheduler.simulation.plan import SimulatedPlan

PATIENCE_SECONDS = 600.0
"""Virtual time without any work after which nothing is expected to happen any more; time-outs come earlier."""


class Deadlock(AssertionError):
    """Everything waits and nothing is due. The message says who waits for what."""


class Simulation:
    """What workloads and faults act on. `seconds` of None: until the workloads have ended.

    What happens before `counted_from` is not counted. With `checked` all books are checked after every event.
    """

    def __init__(
        self,
        hardware: Hardware,
        policy: Policy,
        seed: int,
        *,
        seconds: float | None,
        counted_from: float = 0.0,
        checked: bool = False,
        trace: Trace | None = None,
    ) -> None:
        self.hardware = hardware
        self.policy = policy
        self.time = VirtualTime()
        self.trace = trace
        self.seconds = seconds
        self.counted_from = counted_from
        self.central_messages = 0
        """Reports and leases."""
        self.plans: dict[str, SimulatedPlan] = {}
        self.latencies: dict[PriorityClass, list[float]] = {priority: [] for priority in PriorityClass}
        self.bytes_finished: Counter[PriorityClass] = Counter()
        self.plans_done: Counter[PriorityClass] = Counter()
        self.plans_failed: Counter[PriorityClass] = Counter()
        self.meters: list[LinkMeter] = []
        self.audits: list[Audit] = [Audit(index) for index in range(hardware.nodes)] if checked else []
        self.nodes = [
            SimulatedNode(index, self.time, policy, self.audits[index] if checked else None, hardware.sweep_seconds)
            for index in range(hardware.nodes)
        ]
        self._seed = seed
        self._ids = count(1)
        self._peers: Counter[tuple[str, int]] = Counter()
        self._to_end = 0
        self._idle_at = -1
        self._idle_since = 0.0
        for node in self.nodes:
            self._build(node)
        self.network = self._build_network()

    # What workloads and faults use

    def chance(self, name: str) -> Random:
        """Chance of its own for each use: what one workload draws does not change what another one does."""
        return Random(f"{self._seed} {name}")

    def next_transfer_id(self) -> int:
        return next(self._ids)

    def next_peer(self, plan_id: str, node: int) -> int:
        """The other nodes in turn."""
        self._peers[plan_id, node] += 1
        others = len(self.nodes) - 1
        return (node + 1 + (self._peers[plan_id, node] - 1) % others) % len(self.nodes)

    def pool(self, stage: str) -> CreditPool | None:
        """The credit that the stage takes."""
        return POOLS.get(stage) if self.hardware.stage_bytes is not None else None

    def send(self, messages: Sequence[Message]) -> None:
        if self.network is None:
            raise InvalidRequest("the hardware has no network")
        self.network.send(messages)

    def device(self, node: int, link: Link) -> SimulatedDevice:
        server = self.nodes[node].server(link)
        assert isinstance(server, SimulatedDevice), "ports of the network are no devices of this kind"
        return server

    def expect(self) -> None:
        """One more part of the work must `end` before a simulation without fixed length is over."""
        self._to_end += 1

    def end(self) -> None:
        self._to_end -= 1
        if not self._to_end and self.seconds is None:
            self.time.stopped = True

    @property
    def is_counting(self) -> bool:
        return self.time.now >= self.counted_from and (self.seconds is None or self.time.now <= self.seconds)

    def measured(self, priority: PriorityClass, since: float) -> None:
        """Somebody's wait that began at `since` is over."""
        if since >= self.counted_from:
            self.latencies[priority].append(self.time.now - since)

    def finished(self, priority: PriorityClass, length: int) -> None:
        """Bytes have passed all stages."""
        if self.is_counting:
            self.bytes_finished[priority] += length

    def plan_ended(self, plan: SimulatedPlan) -> None:
        del self.plans[plan.plan_id]
        (self.plans_done if plan.error is None else self.plans_failed)[plan.priority] += 1
        if self.trace is not None:
            how = "done" if plan.error is None else plan.error.code
            self.trace.ended(plan.plan_id, plan.priority.name.lower(), plan.opened_at, self.time.now, how)

    def run(self, until: float | None = None) -> None:
        """To the end, or to `until`. Raises Deadlock, and with `checked` whatever the books say."""
        if until is None:
            until = self.seconds if self.seconds is not None else float("inf")
        with _without_collections():
            self.time.run(until, self._nothing_works)
        if self.time.is_over and not self.time.stopped:
            self._fail_if_waiting()

    @property
    def chunks(self) -> int:
        return sum(node.chunks for node in self.nodes)

    @property
    def messages(self) -> int:
        return self.network.messages if self.network is not None else 0

    # Nothing works

    def _nothing_works(self) -> None:
        time = self.time
        if self._idle_at != time.events - 1:
            self._idle_since = time.now
        self._idle_at = time.events
        if time.now - self._idle_since > PATIENCE_SECONDS or not (time.interference or self._somebody_wakes()):
            self._fail_if_waiting()

    def _somebody_wakes(self) -> bool:
        """To try again, or because a device is late."""
        return any(node.scheduler.next_wake() is not None for node in self.nodes)

    def _fail_if_waiting(self) -> None:
        if any(node.transfers for node in self.nodes) or self._to_end:
            raise Deadlock(f"everything waits and nothing is due, at {self.time.now:.6f} s\n{self.who_waits()}")

    def who_waits(self) -> str:
        """Who waits for what, in words."""
        lines = []
        for node in self.nodes:
            statistics = node.scheduler.statistics()
            full = {pool.pool: f"{pool.used_bytes} of {pool.nbytes} bytes used" for pool in statistics.pools}
            inside = {link.link: link.outstanding_bytes for link in statistics.links}
            for simulated in list(node.transfers.values())[:_SHOWN]:
                transfer = simulated.transfer
                waits_for = [f"{transfer.link} ({inside[transfer.link]} bytes inside)"]
                if transfer.credit is not None:
                    waits_for.append(
                        f"credit of {transfer.credit.tier}/{transfer.credit.stage} ({full[transfer.credit]})"
                    )
                lines.append(
                    f"node {node.index}: plan {transfer.plan_id}, transfer {transfer.transfer_id}: "
                    f"{' or '.join(waits_for)}"
                )
            if len(node.transfers) > _SHOWN:
                lines.append(f"node {node.index}: {len(node.transfers) - _SHOWN} more")
        plans = list(self.plans.values())[:_SHOWN]
        lines += [f"plan {plan.plan_id} ({plan.priority.name.lower()}): {plan.waits_for()}" for plan in plans]
        return "\n".join(lines)

    # Building

    def _build(self, node: SimulatedNode) -> None:
        hardware = self.hardware
        bus = None if hardware.pcie is None else self._open(node, PCIE_LINK, hardware.pcie, None)
        for disk in range(hardware.disks):
            self._open(node, disk_link(disk), hardware.disk, bus)
            self._open(node, disk_link(disk, Direction.WRITE), hardware.disk, None)
        if hardware.gpu is not None:
            self._open(node, GPU_LINK, hardware.gpu, None)
        if hardware.stage_bytes is not None:
            for pool in dict.fromkeys(POOLS.values()):
                node.open_pool(pool, hardware.stage_bytes)

    def _open(self, node: SimulatedNode, link: Link, spec: Device, bus: SimulatedDevice | None) -> SimulatedDevice:
        meter = self._meter(node.index, link)
        chance = self.chance(f"node {node.index} {link}")
        device = SimulatedDevice(self.time, spec, meter, chance, bus=bus, trace=self.trace)
        node.open_link(link, spec.limits(), device)
        return device

    def _meter(self, node: int, link: Link) -> LinkMeter:
        until = self.seconds if self.seconds is not None else float("inf")
        meter = LinkMeter(node, link, counted_from=self.counted_from, counted_until=until)
        self.meters.append(meter)
        return meter

    def _build_network(self) -> SimulatedNetwork | None:
        spec = self.hardware.network
        if spec is None:
            return None
        meters = [(self._meter(node.index, EGRESS), self._meter(node.index, INGRESS)) for node in self.nodes]
        push = self.policy.name == "fifo"
        return SimulatedNetwork(self.time, spec, self.nodes, meters, self._ids, push=push, trace=self.trace)


_SHOWN = 8


@contextmanager
def _without_collections() -> Iterator[None]:
    """Millions of chunks live at the same time and are no garbage: looking for some takes a third of the run."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
