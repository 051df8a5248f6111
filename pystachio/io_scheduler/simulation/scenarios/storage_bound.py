"""Short queries beside three endless scans that want all of the disks of four nodes."""

from __future__ import annotations

from pystachio.io_scheduler.simulation import NVME, Hardware, Queries, Scans, Scenario


def scenario() -> Scenario:
    return Scenario(
        title="Storage-bound: 64 MiB queries beside three endless scans on four nodes",
        hardware=Hardware(nodes=4, disks=1, disk=NVME),
        workloads=(Scans(plans=3), Queries(per_second=20.0)),
        seconds=10.0,
        warm_up_seconds=0.5,
    )
