"""Small clusters on which everything is left to chance: what is proven by trying it ten thousand times.

Memory down to two chunks per stage, all classes and paths, consumers that are late or never come, shared scans,
exchanges, plans that are cancelled or change their class, devices that stall, slow down, fail, read short or vanish,
nodes that fall silent, leases that get lost or come twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import get_args

from pystachio.io_scheduler.core.policy import POLICIES, Policy
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.simulation.audit import Audit, InvariantViolated
from pystachio.io_scheduler.simulation.central_service import CentralService
from pystachio.io_scheduler.simulation.exchanges import AllToAll, Sizes
from pystachio.io_scheduler.simulation.faults import Cancel, DeviceFault, Fault, Rerank, Silence
from pystachio.io_scheduler.simulation.hardware import KIB, MIB, Device, Hardware, Network
from pystachio.io_scheduler.simulation.node import SimulatedNode
from pystachio.io_scheduler.simulation.scenario import Scenario, prepare
from pystachio.io_scheduler.simulation.shared_scans import SharedScan
from pystachio.io_scheduler.simulation.workloads import Queries, Scans, Workload

CHUNK_BYTES = 256 * KIB
LONGEST_SECONDS = 300.0
"""Virtual time in which every one of these simulations must be over: nobody starves."""
_LAST_FAULT_SECONDS = 4.0

_PRIORITIES = tuple(PriorityClass)


def random_scenario(seed: int) -> Scenario:
    """The same for the same seed. All of its work ends."""
    chance = Random(seed)
    hardware = _hardware(chance)
    workloads = _workloads(chance, hardware)
    return Scenario(
        title=f"random {seed}",
        hardware=hardware,
        workloads=workloads,
        faults=_faults(chance, hardware, workloads),
        seconds=None,
    )


def check_random(seed: int, policy: Policy = POLICIES["pystachio"]) -> str:
    """Simulate it with all books checked after every event, and once more without; the event hash.

    Raises AssertionError: a deadlock, an invariant that does not hold, bytes or credit that are left over, a plan that
    starves, or two runs that are not the same.
    """
    event_hash = _run(seed, policy, checked=True)
    again = _run(seed, policy, checked=False)
    assert event_hash == again, f"seed {seed} replays differently: {event_hash}, then {again}"
    return event_hash


def _run(seed: int, policy: Policy, *, checked: bool) -> str:
    scenario = random_scenario(seed)
    simulation = prepare(scenario, policy, seed, checked=checked)
    simulation.run(LONGEST_SECONDS)
    assert simulation.time.stopped, f"after {LONGEST_SECONDS:g} s somebody still waits:\n{simulation.who_waits()}"
    simulation.time.stopped = False
    # What devices still hold comes back, late.
    simulation.run(max(simulation.time.now, _LAST_FAULT_SECONDS) + 1.0)
    for node, audit in zip(simulation.nodes, simulation.audits):
        _check_end(node, audit, simulation.time.now)
    return simulation.time.digest()


def _check_end(node: SimulatedNode, audit: Audit, now: float) -> None:
    """All has ended, and all that was taken was given back, but for chunks that a device never ended."""
    audit.check_end()
    statistics = node.scheduler.statistics()
    lost = audit.written_off_bytes()
    left = [
        f"{pool.used_bytes} bytes of {pool.pool}" for pool in statistics.pools if pool.used_bytes != lost[pool.pool]
    ]
    left += [f"{link.outstanding_bytes} bytes in {link.link}" for link in statistics.links if link.outstanding_bytes]
    left += [f"{statistics.transfers} transfers"] if statistics.transfers else []
    left += [f"{statistics.plans} plans"] if statistics.plans else []
    if left:
        raise InvariantViolated(f"left over: {', '.join(left)}", node.index, now)


def _hardware(chance: Random) -> Hardware:
    nodes = chance.choice((1, 1, 2, 3))

    def device(rate: float) -> Device:
        return Device(
            bytes_per_second=rate * chance.uniform(0.3, 1.5) * MIB,
            latency_seconds=chance.choice((0.0, 20e-6, 100e-6, 1e-3)),
            depth=chance.choice((1, 2, 8, 128)),
            chunk_bytes=CHUNK_BYTES,
            smallest_chunk_bytes=chance.choice((CHUNK_BYTES // 4, CHUNK_BYTES)),
            timeout_seconds=chance.choice((0.5, 2.0, 30.0)),
        )

    return Hardware(
        nodes=nodes,
        disks=chance.choice((1, 2, 3)),
        disk=device(1000.0),
        pcie=device(2000.0) if chance.random() < 0.5 else None,
        gpu=device(1500.0) if chance.random() < 0.5 else None,
        network=_network(chance) if nodes > 1 else None,
        stage_bytes=CHUNK_BYTES * chance.choice((2, 2, 3, 4, 8, 32)),
        sweep_seconds=chance.choice((0.0, 0.0, 200e-6, 2e-3)),
    )


def _network(chance: Random) -> Network:
    return Network(
        bytes_per_second=chance.uniform(200.0, 2000.0) * MIB,
        hop_seconds=chance.choice((2e-6, 50e-6)),
        chunk_bytes=CHUNK_BYTES,
        port_buffer_bytes=CHUNK_BYTES * chance.choice((1, 2, 8)),
    )


def _workloads(chance: Random, hardware: Hardware) -> Sequence[Workload]:
    workloads: list[Workload] = [
        _scans(chance, hardware, f"scan{index}-") for index in range(chance.choice((1, 1, 2, 3)))
    ]
    if chance.random() < 0.6:
        workloads.append(_queries(chance, hardware))
    if chance.random() < 0.25:
        workloads.append(_shared(chance))
    if hardware.network is not None and chance.random() < 0.4:
        sizes = chance.choice(get_args(Sizes))
        workloads.append(AllToAll(sizes=sizes, message_bytes=chance.randint(1, 3 * CHUNK_BYTES)))
    if chance.random() < 0.15:
        workloads.append(CentralService(jitter_seconds=0.05, lost=0.3, doubled=0.2, takes_over_at=chance.uniform(0, 1)))
    return workloads


def _path(chance: Random, hardware: Hardware) -> Sequence[str]:
    first = "disk+pcie" if hardware.pcie is not None and chance.random() < 0.5 else "disk"
    path = [first]
    if hardware.pcie is not None and first == "disk" and chance.random() < 0.5:
        path.append("pcie")
    if hardware.gpu is not None and chance.random() < 0.6:
        path.append("gpu")
    if hardware.network is not None and chance.random() < 0.6:
        path.append("network")
        if hardware.gpu is not None and chance.random() < 0.5:
            path.append("gpu")
    if chance.random() < 0.2:
        path.append("spill")
    return path


def _scans(chance: Random, hardware: Hardware, name: str) -> Scans:
    extent = chance.randint(1, 6 * CHUNK_BYTES)
    return Scans(
        name=name,
        plans=chance.choice((1, 1, 2)),
        priority=chance.choice(_PRIORITIES),
        path=_path(chance, hardware),
        extent_bytes=extent,
        ahead=chance.choice((1, 2, 4)),
        bytes_per_disk=chance.randint(1, 3) * extent,
        weight=chance.choice((0.5, 1.0, 3.0)),
        start_at=chance.choice((0.0, chance.uniform(0.0, 0.01))),
        consumer_seconds=chance.choice((0.0, 0.0, 0.0, 1e-4, 0.01, 1.0, None)),
    )


def _queries(chance: Random, hardware: Hardware) -> Queries:
    return Queries(
        path=_path(chance, hardware),
        priority=chance.choice((PriorityClass.INTERACTIVE, PriorityClass.INTERACTIVE, PriorityClass.NORMAL)),
        bytes_per_node=chance.randint(1, 6 * CHUNK_BYTES),
        extent_bytes=chance.randint(CHUNK_BYTES, 3 * CHUNK_BYTES),
        clients=chance.choice((1, 2)),
        think_seconds=chance.choice((0.0, 0.001, 0.1)),
        count=chance.randint(1, 4),
        deadline_seconds=chance.choice((None, 0.01)),
    )


def _shared(chance: Random) -> SharedScan:
    return SharedScan(
        queue_bytes=4 * CHUNK_BYTES,
        wanted_bytes=chance.randint(1, 2) * CHUNK_BYTES,
        extent_bytes=CHUNK_BYTES,
        per_second=chance.choice((100.0, 1000.0)),
        boost=chance.random() < 0.8,
        count=chance.randint(1, 3),
    )


def _faults(chance: Random, hardware: Hardware, workloads: Sequence[Workload]) -> Sequence[Fault]:
    faults: list[Fault] = []
    for workload in workloads:
        if isinstance(workload, Scans):
            for index in range(workload.plans):
                faults += _meddling(chance, workload, index)
    if any(isinstance(workload, SharedScan) for workload in workloads) and chance.random() < 0.2:
        faults.append(Cancel(plan_id="shared", at=chance.uniform(0.0, 0.02)))
    devices = [f"disk{disk}" for disk in range(hardware.disks)]
    devices += ["pcie"] * (hardware.pcie is not None) + ["gpu"] * (hardware.gpu is not None)
    for node in range(hardware.nodes):
        for device in devices:
            if chance.random() < 0.3:
                faults.append(_device_fault(chance, node, device))
        if hardware.network is not None and chance.random() < 0.15:
            at = chance.uniform(0.0, 0.01)
            faults.append(Silence(node=node, at=at, until=at + chance.choice((0.001, 0.1, 2.0))))
    return faults


def _meddling(chance: Random, scans: Scans, index: int) -> Sequence[Fault]:
    """A plan whose consumer never comes is cancelled at last; others now and then."""
    plan_id = f"{scans.name}{index}"
    soon = scans.start_at + chance.uniform(0.0, 0.01)
    if scans.consumer_seconds is None:
        # Not before it has begun: then nobody would ever come.
        return [Cancel(plan_id=plan_id, at=chance.uniform(scans.start_at, _LAST_FAULT_SECONDS))]
    draw = chance.random()
    if draw < 0.25:
        return [Cancel(plan_id=plan_id, at=soon)]
    if draw < 0.45:
        return [Rerank(plan_id=plan_id, at=soon, priority=chance.choice(_PRIORITIES))]
    return []


def _device_fault(chance: Random, node: int, device: str) -> DeviceFault:
    at = chance.choice((0.0, chance.uniform(0.0, 0.01)))
    until = min(at + chance.choice((0.001, 0.05, 1.5, _LAST_FAULT_SECONDS)), _LAST_FAULT_SECONDS)
    fault = DeviceFault(node=node, device=device, at=at, until=chance.choice((until, until, None)))
    match chance.randrange(5):
        case 0:
            return replace(fault, speed=chance.choice((0.05, 0.25, 0.5)))
        case 1:
            return replace(fault, stall_probability=0.3, stall_seconds=chance.choice((0.002, 0.3, 3.0)))
        case 2:
            return replace(fault, error_probability=chance.choice((0.1, 0.5, 1.0)))
        case 3:
            return replace(fault, short_read_probability=chance.choice((0.1, 1.0)))
        case _:
            return replace(fault, vanishes=True)
