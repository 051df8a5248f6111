"""Everybody sends to everybody, as in a shuffle, while short messages between the same nodes are urgent."""

from __future__ import annotations

from pystachio.io_scheduler.simulation import MIB, AllToAll, Hardware, Network, Scenario, UrgentMessages


def scenario() -> Scenario:
    return Scenario(
        title="A shuffle between 64 nodes beside urgent 256 KiB messages",
        hardware=Hardware(nodes=64, disks=0, network=Network()),
        workloads=(AllToAll(message_bytes=8 * MIB), UrgentMessages(per_second=10_000.0)),
        seconds=None,
        policies=("pystachio", "fifo"),
    )
