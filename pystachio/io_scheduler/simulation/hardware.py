"""What a simulated cluster is made of, as plain data. All nodes are alike; faults make them differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pystachio.errors import InvalidRequest
from pystachio.io_scheduler.core.request import CreditPool, Direction, Link, LinkLimits
from pystachio.io_scheduler.simulation.fields import require_not_negative, require_positive

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A disk, a bus or a processor: a chunk takes `latency_seconds`, up to `depth` of them at once, and then its bytes
    pass one chunk after the other at `bytes_per_second`. More than `depth` chunks wait inside the device.
    """

    bytes_per_second: float
    latency_seconds: float = 0.0
    depth: int = 128
    chunk_bytes: int = 2 * MIB
    smallest_chunk_bytes: int = 256 * KIB
    timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        require_positive(self, "bytes_per_second", "depth", "chunk_bytes", "smallest_chunk_bytes", "timeout_seconds")
        require_not_negative(self, "latency_seconds")
        if self.smallest_chunk_bytes > self.chunk_bytes:
            raise InvalidRequest(f"smallest_chunk_bytes is larger than chunk_bytes: {self.smallest_chunk_bytes}")

    def limits(self) -> LinkLimits:
        return LinkLimits(
            chunk_bytes=self.chunk_bytes,
            window_bytes=4 * self.chunk_bytes,
            smallest_chunk_bytes=self.smallest_chunk_bytes,
            timeout_seconds=self.timeout_seconds,
        )


NVME = Device(bytes_per_second=6 * GIB, latency_seconds=100e-6)
"""A datacentre SSD on four lanes of PCIe 4."""
PCIE = Device(bytes_per_second=25 * GIB, latency_seconds=5e-6)
"""Sixteen lanes of PCIe 4, one direction."""
GPU = Device(bytes_per_second=40 * GIB, latency_seconds=20e-6)
"""Decoding and filtering on one GPU. Its latency is that of a launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One full-duplex port per node on one switch.

    The switch keeps up to `port_buffer_bytes` for each port and loses nothing: a sender whose next chunk does not fit
    into the buffer of its port stops, with everything behind that chunk. A message about transfers (offer, grant) takes
    `hop_seconds`, as the first byte of a chunk does, and `control_bytes` of its sender's bandwidth.
    """

    bytes_per_second: float = 12.5e9
    hop_seconds: float = 2e-6
    chunk_bytes: int = MIB
    port_buffer_bytes: int = 8 * MIB
    control_bytes: int = 64
    timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        require_positive(self, "bytes_per_second", "chunk_bytes", "port_buffer_bytes", "timeout_seconds")
        require_not_negative(self, "hop_seconds", "control_bytes")

    @property
    def chunk_seconds(self) -> float:
        """How long the bytes of one chunk take on the wire."""
        return self.chunk_bytes / self.bytes_per_second

    def ingress_limits(self) -> LinkLimits:
        """A receiver has four chunks under way, two of them from one sender, and room for an urgent one beyond."""
        return self._limits(self.chunk_bytes, window_chunks=4, peer_bytes=2 * self.chunk_bytes)

    def egress_limits(self) -> LinkLimits:
        """Two chunks keep the port busy, one to each peer. What was granted is not cut again: up to a quarter joins the
        last chunk."""
        grant_bytes = self.chunk_bytes + self.chunk_bytes // 4
        return self._limits(grant_bytes, window_chunks=2, peer_bytes=grant_bytes)

    def _limits(self, chunk_bytes: int, *, window_chunks: int, peer_bytes: int | None) -> LinkLimits:
        return LinkLimits(
            chunk_bytes=chunk_bytes,
            window_bytes=window_chunks * self.chunk_bytes,
            calibrated=False,
            smallest_chunk_bytes=chunk_bytes,
            peer_bytes=peer_bytes,
            urgent_bytes=self.chunk_bytes,
            timeout_seconds=self.timeout_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """`nodes` machines with `disks` disks each, and one bus, GPU and network port where given.

    `stage_bytes` is the memory of each stage of a node: what has been read, what is on the device, what has been
    received. None: memory is no limit. Every `sweep_seconds` a node looks for chunks that devices have ended, as one
    that collects completions does; 0: it is told of each at once.
    """

    nodes: int = 1
    disks: int = 1
    disk: Device = NVME
    pcie: Device | None = None
    gpu: Device | None = None
    network: Network | None = None
    stage_bytes: int | None = 512 * MIB
    sweep_seconds: float = 0.0

    def __post_init__(self) -> None:
        require_positive(self, "nodes")
        require_not_negative(self, "disks", "sweep_seconds")
        if self.stage_bytes is None:
            return
        chunk = max(device.chunk_bytes for device in (self.disk, self.pcie, self.gpu, self.network) if device)
        if self.stage_bytes < 2 * chunk:
            raise InvalidRequest(
                f"a stage's memory must hold two chunks: {self.stage_bytes}", hint=f"stage_bytes={2 * chunk} or more"
            )


DISK, DISK_THROUGH_PCIE, PCIE_STAGE, GPU_STAGE, NETWORK, SPILL = "disk", "disk+pcie", "pcie", "gpu", "network", "spill"

STAGES: Sequence[str] = (DISK, DISK_THROUGH_PCIE, PCIE_STAGE, GPU_STAGE, NETWORK, SPILL)
"""What may happen to bytes. `disk+pcie` reads straight across the bus into the GPU; `spill` writes to a disk."""

PCIE_LINK = Link("pcie", "0")
GPU_LINK = Link("gpu", "0")
EGRESS = Link("network", "port", Direction.WRITE)
INGRESS = Link("network", "port", Direction.READ)

POOLS = {
    DISK: CreditPool("host", 0),
    DISK_THROUGH_PCIE: CreditPool("device", 1),
    PCIE_STAGE: CreditPool("device", 1),
    NETWORK: CreditPool("host", 2),
}
"""The credit that each stage takes. Stages that only work on what is there, or free it, take none."""


def disk_link(disk: int, direction: Direction = Direction.READ) -> Link:
    return Link("disk", str(disk), direction)


def check_path(path: Sequence[str], hardware: Hardware) -> None:
    """Raise InvalidRequest when bytes cannot take this path on this hardware."""
    unknown = [stage for stage in path if stage not in STAGES]
    if unknown:
        raise InvalidRequest(f"no such stage: {unknown[0]!r}", hint=f"one of {', '.join(STAGES)}")
    if not path or not path[0].startswith(DISK):
        raise InvalidRequest("a path starts at a disk", hint='for example ("disk", "pcie", "gpu")')
    missing = {
        "disks": not hardware.disks,
        "pcie": hardware.pcie is None and any("pcie" in stage for stage in path),
        "gpu": hardware.gpu is None and GPU_STAGE in path,
        "network": hardware.network is None and NETWORK in path,
    }
    for name, is_missing in missing.items():
        if is_missing:
            raise InvalidRequest(f"the path needs what the hardware does not have: {name}")
    stages = [POOLS[stage].stage for stage in path if stage in POOLS]
    if stages != sorted(set(stages)):
        raise InvalidRequest(
            f"the path would wait for itself: {' > '.join(path)}", hint="disk before pcie before network, once each"
        )
    if SPILL in path[:-1]:
        raise InvalidRequest("spilling is the end of a path")
    if NETWORK in path and hardware.nodes < 2:
        raise InvalidRequest("a path over the network needs two nodes or more")
