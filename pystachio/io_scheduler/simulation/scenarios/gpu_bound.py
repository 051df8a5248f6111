"""Disks that deliver twice what the GPU can work on: everything waits for kernels, and for memory behind them."""

from __future__ import annotations

from pystachio.io_scheduler.simulation import GIB, NVME, Device, Hardware, Queries, Scans, Scenario


def scenario() -> Scenario:
    return Scenario(
        title="GPU-bound: 64 MiB queries beside three endless scans on four nodes",
        hardware=Hardware(nodes=4, disk=NVME, gpu=Device(bytes_per_second=3 * GIB, latency_seconds=20e-6)),
        workloads=(
            Scans(plans=3, path=("disk", "gpu")),
            Queries(per_second=8.0, path=("disk", "gpu")),
        ),
        seconds=10.0,
        warm_up_seconds=0.5,
    )
