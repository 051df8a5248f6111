"""Extents pass the stages of a plan's path, and credit goes from stage to stage."""

from __future__ import annotations

from collections import Counter

import pytest

from pystachio.errors import Cancelled, DataError, InvalidRequest
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import CreditPool, Extent, PriorityClass
from pystachio.io_scheduler.simulation.hardware import MIB, POOLS, Device, Hardware, Network, check_path
from pystachio.io_scheduler.simulation.plan import SimulatedPlan, Work
from pystachio.io_scheduler.simulation.simulation import Deadlock, Simulation

DEVICE = Device(bytes_per_second=1024.0 * MIB, latency_seconds=1e-4)
EVERYTHING = Hardware(
    nodes=2, disk=DEVICE, pcie=DEVICE, gpu=DEVICE, network=Network(bytes_per_second=1024.0 * MIB), stage_bytes=16 * MIB
)


class Run:
    """One plan that reads one extent on the first node."""

    def __init__(self, *path: str, consumer_seconds: float | None = 0.0, length: int = 8 * MIB) -> None:
        self.simulation = Simulation(EVERYTHING, POLICIES["pystachio"], 0, seconds=None, checked=True)
        self.finished = False
        self.plan = SimulatedPlan(
            self.simulation,
            "plan",
            PriorityClass.NORMAL,
            path,
            nodes=self.simulation.nodes,
            consumer_seconds=consumer_seconds,
        )
        self.plan.scan(self.simulation.nodes[0], [Work(Extent(0, length), 0, self._finish)])

    def _finish(self) -> None:
        self.finished = True

    def until(self, seconds: float) -> dict[CreditPool, int]:
        """The credit in use on both nodes together at that time."""
        self.simulation.time.run(seconds, lambda: None)
        used = dict.fromkeys(POOLS.values(), 0)
        for node in self.simulation.nodes:
            for pool in node.scheduler.statistics().pools:
                used[pool.pool] += pool.used_bytes
        return used

    def check_end(self) -> None:
        for audit in self.simulation.audits:
            audit.check_end()


PATHS = [
    ("disk",),
    ("disk+pcie",),
    ("disk", "gpu"),
    ("disk", "pcie", "gpu"),
    ("disk+pcie", "gpu", "spill"),
    ("disk", "network"),
    ("disk", "pcie", "gpu", "network", "gpu", "spill"),
]


LINKS = {
    "disk": ("disk 0 read",),
    "disk+pcie": ("disk 0 read", "pcie 0 read"),
    "pcie": ("pcie 0 read",),
    "gpu": ("gpu 0 read",),
    "network": ("network port write", "network port read"),
    "spill": ("disk 0 write",),
}


def crossed(path: tuple[str, ...]) -> list[str]:
    return [link for stage in path for link in LINKS[stage]]


@pytest.mark.parametrize("path", PATHS, ids=" > ".join)
def test_every_byte_passes_every_stage_once(path: tuple[str, ...]) -> None:
    run = Run(*path)
    assert not any(run.until(1.0).values())
    assert run.finished
    assert run.simulation.bytes_finished[PriorityClass.NORMAL] == 8 * MIB
    moved: Counter[str] = Counter()
    for meter in run.simulation.meters:
        moved[str(meter.link)] += sum(meter.bytes_by_class)
    assert +moved == {link: 8 * MIB * times for link, times in Counter(crossed(path)).items()}
    run.check_end()


def test_credit_is_held_until_the_next_stage_has_taken_over() -> None:
    run = Run("disk", "pcie", consumer_seconds=None)
    assert run.until(0.0005)[POOLS["disk"]] > 0
    after = run.until(1.0)
    assert after[POOLS["disk"]] == 0
    assert after[POOLS["pcie"]] == 8 * MIB, "the consumer keeps it"


def test_a_late_consumer_keeps_its_credit_for_so_long() -> None:
    run = Run("disk", consumer_seconds=2.0)
    assert run.until(1.0)[POOLS["disk"]] == 8 * MIB
    assert run.until(3.0)[POOLS["disk"]] == 0
    assert run.finished


def test_what_a_cancelled_plan_holds_is_released() -> None:
    run = Run("disk", "pcie", consumer_seconds=None)
    run.until(0.004)
    run.plan.fail(Cancelled("enough"))
    assert not any(run.until(1.0).values())
    assert not run.plan.is_open
    assert not run.finished
    assert run.simulation.plans_failed[PriorityClass.NORMAL] == 1
    run.check_end()


def test_the_first_error_fails_the_plan_everywhere() -> None:
    run = Run("disk", "network")
    run.until(0.002)
    run.plan.fail(DataError("first"))
    run.plan.fail(DataError("second"))
    assert not any(run.until(1.0).values())
    assert str(run.plan.error) == "first"
    assert all(node.scheduler.statistics().plans == 0 for node in run.simulation.nodes)
    run.check_end()


def test_everything_waits_and_nothing_is_due() -> None:
    """The consumer never comes, so the memory of the only stage is full: who waits for what is said at once."""
    run = Run("disk", consumer_seconds=None, length=64 * MIB)
    run.simulation.expect()
    with pytest.raises(Deadlock) as caught:
        run.simulation.run()
    message = str(caught.value)
    assert message.startswith("everything waits and nothing is due, at 0.0")
    assert "node 0: plan plan, transfer 1: disk 0 read (0 bytes inside) or credit of host/0" in message
    assert "of 16777216 bytes used" in message
    assert "plan plan (normal): 1 extents under way, its consumer keeps 14680064 bytes" in message
    assert run.simulation.time.now < 1.0


@pytest.mark.parametrize(
    ("path", "hardware", "message"),
    [
        ((), EVERYTHING, "a path starts at a disk"),
        (("gpu",), EVERYTHING, "a path starts at a disk"),
        (("disk", "tape"), EVERYTHING, "no such stage: 'tape'"),
        (("disk", "pcie"), Hardware(), "the hardware does not have: pcie"),
        (("disk+pcie",), Hardware(), "the hardware does not have: pcie"),
        (("disk", "gpu"), Hardware(), "the hardware does not have: gpu"),
        (("disk", "network"), Hardware(nodes=2), "the hardware does not have: network"),
        (("disk", "network"), Hardware(network=Network()), "two nodes"),
        (("disk",), Hardware(disks=0), "the hardware does not have: disks"),
        (("disk", "network", "pcie"), EVERYTHING, "would wait for itself"),
        (("disk+pcie", "pcie"), EVERYTHING, "would wait for itself"),
        (("disk", "spill", "gpu"), EVERYTHING, "end of a path"),
    ],
    ids=str,
)
def test_paths_that_bytes_cannot_take(path: tuple[str, ...], hardware: Hardware, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_path(path, hardware)
