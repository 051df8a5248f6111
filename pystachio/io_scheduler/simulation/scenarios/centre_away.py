"""The central service cannot be reached for 30 seconds. Nobody waits for it: not even a plan that starts meanwhile."""

from __future__ import annotations

from pystachio.io_scheduler.simulation import NVME, CentralService, Hardware, PriorityClass, Queries, Scans, Scenario

AWAY_AT = 5.0
BACK_AT = 35.0


def scenario() -> Scenario:
    return Scenario(
        title="The central service is away for 30 s: scans on four nodes, one of them on a single node, and queries",
        hardware=Hardware(nodes=4, disks=1, disk=NVME),
        workloads=(
            CentralService(away_at=AWAY_AT, back_at=BACK_AT),
            Scans(plans=2),
            Scans(name="small", nodes=1),
            Scans(name="late", start_at=AWAY_AT + 15.0),
            Queries(per_second=2.0),
            Queries(name="meanwhile", priority=PriorityClass.NORMAL, per_second=1.0, start_at=AWAY_AT, stop_at=BACK_AT),
        ),
        seconds=40.0,
        warm_up_seconds=0.5,
        policies=("pystachio",),
    )
