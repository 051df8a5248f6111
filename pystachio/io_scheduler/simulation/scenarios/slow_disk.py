"""Four disks in one node, one of which falls to a quarter of its speed."""

from __future__ import annotations

from pystachio.io_scheduler.simulation import NVME, DeviceFault, Hardware, Queries, Scans, Scenario


def scenario() -> Scenario:
    return Scenario(
        title="One of four disks falls to a quarter of its speed after 3 s",
        hardware=Hardware(disks=4, disk=NVME),
        workloads=(Scans(plans=3), Queries(per_second=10.0)),
        faults=(DeviceFault(device="disk2", at=3.0, speed=0.25),),
        seconds=8.0,
        warm_up_seconds=0.5,
    )
