"""Urgent plans want what a batch plan has already asked for: they lend it their priority instead of waiting."""

from __future__ import annotations

from pystachio.io_scheduler.simulation import NVME, Hardware, Scenario, SharedScan


def scenario() -> Scenario:
    return Scenario(
        title="Priority inheritance: urgent plans wait for 16 MiB at the end of a batch plan's 512 MiB queue",
        hardware=Hardware(disk=NVME),
        workloads=(SharedScan(),),
        seconds=10.0,
        warm_up_seconds=0.5,
    )
