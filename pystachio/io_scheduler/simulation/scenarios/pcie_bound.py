"""Eight disks behind one bus that carries half of what they deliver."""

from __future__ import annotations

from pystachio.io_scheduler.simulation import NVME, PCIE, Hardware, Queries, Scans, Scenario


def scenario() -> Scenario:
    return Scenario(
        title="PCIe-bound: 256 MiB queries beside three endless scans, eight disks read through one bus",
        hardware=Hardware(disks=8, disk=NVME, pcie=PCIE),
        workloads=(
            Scans(plans=3, path=("disk+pcie",)),
            Queries(per_second=15.0, path=("disk+pcie",), bytes_per_node=256 << 20),
        ),
        seconds=10.0,
        warm_up_seconds=0.5,
    )
