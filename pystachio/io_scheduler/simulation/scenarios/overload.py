"""More interactive work than the disk can do, and a batch plan that must not starve."""

from __future__ import annotations

from pystachio.io_scheduler.simulation import MIB, NVME, Hardware, Queries, Scans, Scenario


def scenario() -> Scenario:
    return Scenario(
        title="Overload: interactive queries ask for 125 % of the disk, beside one batch plan",
        hardware=Hardware(disk=NVME),
        workloads=(Scans(plans=1), Queries(per_second=120.0, bytes_per_node=64 * MIB)),
        seconds=10.0,
        warm_up_seconds=0.5,
    )
