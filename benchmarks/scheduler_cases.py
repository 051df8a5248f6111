"""Each thing that the simulator shows of the scheduler: a function that simulates it and returns figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.figures import Figure
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.simulation import (
    GIB,
    GPU,
    MIB,
    NVME,
    PCIE,
    AllToAll,
    Device,
    DeviceFault,
    Hardware,
    Network,
    Outcome,
    PriorityClass,
    Queries,
    Scans,
    Scenario,
    SharedScan,
    UrgentMessages,
    Workload,
    find_policy,
    load_scenario,
    simulate,
)
from pystachio.io_scheduler.simulation.comparison import Comparison, compare
from pystachio.io_scheduler.simulation.random_scenarios import check_random
from pystachio.io_scheduler.simulation.scenario import prepare
from pystachio.io_scheduler.simulation.simulation import Deadlock

INTERACTIVE, NORMAL, BATCH = PriorityClass
PEERS = ("strict", "fair", "fifo")


# Isolation


def isolation(name: str, goal: float, seconds: float) -> list[Figure]:
    """One client at a time asks, so that the idle latency is free of waiting for other queries."""
    scenario = _with_queries(load_scenario(name), clients=1, per_second=None, think_seconds=0.03)
    scenario = replace(scenario, seconds=seconds)
    results = {each.outcome.policy: each for each in compare(scenario, list(POLICIES.values()))}
    words = name.replace("_", "-")
    ours = results["pystachio"]
    return [
        Figure(
            f"interactive p99 over idle, {words}",
            _ratio(ours, 0.99),
            "ratio",
            goal=goal,
            peers={policy: _ratio(results[policy], 0.99) for policy in PEERS},
            samples=len(ours.outcome.of(INTERACTIVE).latencies),
        ),
        Figure(
            f"batch's part of the bandwidth that interactive leaves, {words}",
            _batch_share(ours.outcome, scenario.hardware),
            "share",
            goal=0.99,
            direction="at least",
            peers={policy: _batch_share(results[policy].outcome, scenario.hardware) for policy in PEERS},
        ),
    ]


def hard_isolation(seconds: float) -> list[Figure]:
    """Without a goal: queries of 2 ms, and devices that stall for 2 ms on one request in a hundred."""
    scenario = replace(load_scenario("storage_bound"), seconds=seconds)
    scenario = _with_queries(scenario, clients=1, per_second=None, think_seconds=0.03)
    short = _with_queries(scenario, bytes_per_node=12 * MIB)
    faults = [DeviceFault(node=node, stall_probability=0.01, stall_seconds=0.002) for node in range(4)]
    figures = []
    for words, each in (("queries of 2 ms", short), ("stalling disks", replace(scenario, faults=faults))):
        (ours,) = compare(each, [POLICIES["pystachio"]])
        samples = len(ours.outcome.of(INTERACTIVE).latencies)
        figures.append(Figure(f"interactive p99 over idle, {words}", _ratio(ours, 0.99), "ratio", samples=samples))
    return figures


def _with_queries(scenario: Scenario, **changes: object) -> Scenario:
    def changed(workload: Workload) -> Workload:
        return replace(workload, **changes) if isinstance(workload, Queries) else workload  # type: ignore[arg-type]

    return replace(scenario, workloads=[changed(workload) for workload in scenario.workloads])


def _ratio(comparison: Comparison, share: float) -> float:
    ratio = comparison.ratio(INTERACTIVE, share)
    assert ratio is not None, "nothing was measured"
    return ratio


def _batch_share(outcome: Outcome, hardware: Hardware) -> float:
    """Of what the scarcest resource can carry."""
    left = _scarcest_rate(hardware) * hardware.nodes - outcome.of(INTERACTIVE).bytes_per_second
    return outcome.of(BATCH).bytes_per_second / left


def _scarcest_rate(hardware: Hardware) -> float:
    rates = [hardware.disk.bytes_per_second * hardware.disks]
    return min(rates + [device.bytes_per_second for device in (hardware.pcie, hardware.gpu) if device is not None])


# Exchanges


def all_to_all(sizes: str, nodes: int, message_bytes: int, goal: float, urgent_goal: float | None) -> list[Figure]:
    """Efficiency is the time that the busiest port needs for its bytes over the time that it took."""
    exchange = AllToAll(sizes=sizes, message_bytes=message_bytes)  # type: ignore[arg-type]
    workloads: list[Workload] = [exchange]
    if urgent_goal is not None:
        workloads.append(UrgentMessages(per_second=10_000.0))
    # Thousands of nodes keep no books of memory: the exchange's consumers take everything at once.
    hardware = Hardware(nodes=nodes, disks=0, network=Network(), stage_bytes=512 * MIB if nodes < 256 else None)
    scenario = Scenario(title=sizes, hardware=hardware, workloads=workloads, seconds=None)
    least = exchange.least_seconds(prepare(scenario, find_policy("fifo"), 0))
    policies = ("pystachio", "fifo") if urgent_goal is not None else ("pystachio",)
    outcomes = {policy: simulate(scenario, find_policy(policy)) for policy in policies}
    efficiency = {policy: least / outcome.of(BATCH).latencies[0] for policy, outcome in outcomes.items()}
    words = f"{nodes}-node all-to-all, {sizes}"
    peers = {"fifo push": efficiency["fifo"]} if "fifo" in efficiency else {}
    figures = [
        Figure(f"efficiency of a {words}", efficiency["pystachio"], "share", goal, "at least", peers),
    ]
    if urgent_goal is not None:
        chunks = {policy: _urgent_chunk_times(outcome) for policy, outcome in outcomes.items()}
        figures.append(
            Figure(
                f"urgent message's p99 in a {words}",
                chunks["pystachio"],
                "chunks",
                urgent_goal,
                peers={"fifo push": chunks["fifo"]},
                samples=len(outcomes["pystachio"].of(INTERACTIVE).latencies),
            )
        )
    return figures


def _urgent_chunk_times(outcome: Outcome) -> float:
    p99 = outcome.of(INTERACTIVE).quantile(0.99)
    assert p99 is not None
    return p99 / Network().chunk_seconds


# Overlap


def overlap(bytes_per_disk: int) -> list[Figure]:
    """The busiest resource's time over the time of the whole, and against running the phases one after the other."""
    figures = []
    for words, hardware, path, plans in _regimes():
        scans = Scans(path=path, plans=plans, bytes_per_disk=bytes_per_disk // plans)
        scenario = Scenario(title=words, hardware=hardware, workloads=(scans,), seconds=None)
        outcome = simulate(scenario, POLICIES["pystachio"])
        busiest = max(link.busy_seconds for link in outcome.links)
        kinds: dict[str, float] = {}
        for link in outcome.links:
            kinds[link.name] = max(kinds.get(link.name, 0.0), link.busy_seconds)
        in_turn = sum(kinds.values()) if "disk 1 read" not in kinds else _in_turn(kinds)
        figures.append(
            Figure(
                f"overlap efficiency, {words}",
                busiest / outcome.seconds,
                "share",
                0.95,
                "at least",
                {"phases in turn": busiest / in_turn},
            )
        )
    return figures


def _in_turn(kinds: dict[str, float]) -> float:
    """Disks work side by side also when phases do not."""
    disks = max(seconds for name, seconds in kinds.items() if name.startswith("disk"))
    return disks + sum(seconds for name, seconds in kinds.items() if not name.startswith("disk"))


def _regimes() -> Sequence[tuple[str, Hardware, Sequence[str], int]]:
    slow_gpu = Device(bytes_per_second=3 * GIB, latency_seconds=20e-6)
    equal = Device(bytes_per_second=6 * GIB, latency_seconds=20e-6)
    slow_port = Network(bytes_per_second=3e9)
    every_stage = ("disk", "pcie", "gpu", "network", "gpu")
    return (
        ("storage-bound", Hardware(nodes=2, gpu=GPU), ("disk", "gpu"), 1),
        ("GPU-bound", Hardware(nodes=2, gpu=slow_gpu), ("disk", "gpu"), 1),
        ("PCIe-bound", Hardware(disks=8, pcie=PCIE, gpu=GPU), ("disk", "pcie", "gpu"), 1),
        ("read through PCIe", Hardware(disks=8, pcie=PCIE, gpu=GPU), ("disk+pcie", "gpu"), 1),
        ("network-bound", Hardware(nodes=4, pcie=PCIE, gpu=GPU, network=slow_port), every_stage, 1),
        ("all resources equal", Hardware(nodes=2, disk=NVME, pcie=equal, gpu=equal), ("disk", "pcie", "gpu"), 1),
        ("memory of 8 MiB per stage", Hardware(nodes=2, gpu=GPU, stage_bytes=8 * MIB), ("disk", "gpu"), 1),
        ("spilling", Hardware(nodes=2, gpu=equal), ("disk", "gpu", "spill"), 1),
        ("four plans at once", Hardware(nodes=2, pcie=PCIE, gpu=slow_gpu), ("disk", "pcie", "gpu"), 4),
    )


# What else is promised


def random_simulations(first: int, last: int) -> dict[str, int]:
    """How many of the seeds from `first` to before `last` fail, and how."""
    failures = {"deadlocks": 0, "violations": 0}
    for seed in range(first, last):
        try:
            check_random(seed)
        except (Deadlock, AssertionError) as error:
            failures["deadlocks" if isinstance(error, Deadlock) else "violations"] += 1
            sys.stdout.write(f"seed {seed}: {error}\n")
            sys.stdout.flush()
    return failures


def slow_disk(seconds: float) -> list[Figure]:
    """One of four disks runs at a quarter. Its floor is what queries take on it with nobody else there."""
    scenario = _with_queries(load_scenario("slow_disk"), clients=1, per_second=None, think_seconds=0.03)
    scenario = replace(scenario, seconds=seconds, faults=[DeviceFault(device="disk2", speed=0.25)])
    results = {each.outcome.policy: each for each in compare(scenario, list(POLICIES.values()))}
    ours = results["pystachio"]
    healthy = [link for link in ours.outcome.links if link.name != "disk 2 read"]
    capacity = scenario.hardware.disk.bytes_per_second * ours.outcome.seconds
    return [
        Figure(
            "healthy disks' bandwidth beside a slow one",
            min(sum(link.bytes_by_class) for link in healthy) / capacity,
            "share",
            0.99,
            "at least",
        ),
        Figure(
            "interactive p99 over the slow disk's floor",
            _ratio(ours, 0.99),
            "ratio",
            1.3,
            peers={policy: _ratio(results[policy], 0.99) for policy in PEERS},
            samples=len(ours.outcome.of(INTERACTIVE).latencies),
        ),
    ]


def inheritance(seconds: float) -> list[Figure]:
    """The wait for part of a batch plan's queue, over reading that part with nobody else there."""

    def ratio(*, boost: bool) -> tuple[float, int]:
        scenario = replace(
            load_scenario("inheritance"), workloads=[SharedScan(boost=boost, per_second=8.0)], seconds=seconds
        )
        (ours,) = compare(scenario, [POLICIES["pystachio"]])
        waits = ours.outcome.of(INTERACTIVE)
        alone = ours.idle.of(INTERACTIVE).latencies[0] if ours.idle is not None else 0.0
        return (waits.quantile(0.99) or 0.0) / alone, len(waits.latencies)

    value, samples = ratio(boost=True)
    peers = {"without inheritance": ratio(boost=False)[0]}
    return [
        Figure("urgent plan's p99 on a shared scan over reading alone", value, "ratio", 1.5, "at most", peers, samples)
    ]


def overload(seconds: float) -> list[Figure]:
    """Interactive queries ask for 125 % of a resource, of which batch has 5 % reserved."""
    words = "batch's part of its reservation under 125 % interactive load"
    disk = load_scenario("overload")
    bus = Hardware(disks=8, pcie=PCIE)
    gpu = Hardware(disks=4, gpu=Device(bytes_per_second=3 * GIB, latency_seconds=20e-6))
    return [
        Figure(
            words,
            _reserved(disk, "pystachio", seconds),
            "share",
            0.95,
            "at least",
            {"strict": _reserved(disk, "strict", seconds)},
        ),
        Figure(
            f"{words}, of a shared bus", _reserved(_overloaded(bus, ("disk+pcie",), 4), "pystachio", seconds), "share"
        ),
        Figure(f"{words}, of a GPU", _reserved(_overloaded(gpu, ("disk", "gpu"), 1), "pystachio", seconds), "share"),
    ]


def _overloaded(hardware: Hardware, path: Sequence[str], size: int) -> Scenario:
    nbytes = size * 64 * MIB
    per_second = 1.25 * _scarcest_rate(hardware) / nbytes
    workloads = (Scans(path=path), Queries(path=path, bytes_per_node=nbytes, per_second=per_second))
    return Scenario(title="overload", hardware=hardware, workloads=workloads)


def _reserved(scenario: Scenario, policy: str, seconds: float) -> float:
    outcome = simulate(replace(scenario, seconds=seconds, warm_up_seconds=0.5), find_policy(policy))
    reserved = _scarcest_rate(scenario.hardware) * POLICIES["pystachio"].reservations[-1]
    return outcome.of(BATCH).bytes_per_second / reserved
