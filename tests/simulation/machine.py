"""One simulated node with one device, whose core is told what to start: for times that can be worked out by hand."""

from __future__ import annotations

from random import Random

from pystachio.errors import PystachioError
from pystachio.io_scheduler.core.events import PlanOpened
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import Extent, Link, LinkLimits, PriorityClass, Transfer
from pystachio.io_scheduler.simulation.devices import SimulatedDevice
from pystachio.io_scheduler.simulation.hardware import PCIE_LINK, Device, disk_link
from pystachio.io_scheduler.simulation.meter import LinkMeter
from pystachio.io_scheduler.simulation.node import SimulatedNode
from pystachio.io_scheduler.simulation.transfer import SimulatedTransfer
from pystachio.io_scheduler.simulation.virtual_time import VirtualTime

DISK = disk_link(0)
UNLIMITED = LinkLimits(chunk_bytes=1 << 30, window_bytes=1 << 40, calibrated=False, timeout_seconds=1e6)
FOREVER = float("inf")


class Machine:
    """`ended` says when each transfer ended, in seconds; an error's code follows if it failed."""

    def __init__(self, disk: Device, *, pcie: Device | None = None, limits: LinkLimits = UNLIMITED) -> None:
        self.time = VirtualTime()
        self.node = SimulatedNode(0, self.time, POLICIES["pystachio"], None)
        self.ended: dict[int, tuple[float, str]] = {}
        self.bus = self._open(PCIE_LINK, pcie, None, UNLIMITED) if pcie is not None else None
        device = self._open(DISK, disk, self.bus, limits)
        assert device is not None
        self.disk = device
        self.meter: LinkMeter
        self.node.tell(PlanOpened("plan", PriorityClass.NORMAL))

    def _open(
        self, link: Link, spec: Device | None, bus: SimulatedDevice | None, limits: LinkLimits
    ) -> SimulatedDevice | None:
        if spec is None:
            return None
        self.meter = LinkMeter(0, link, counted_from=0.0, counted_until=FOREVER)
        device = SimulatedDevice(self.time, spec, self.meter, Random(0), bus=bus)
        self.node.open_link(link, limits, device)
        return device

    def read(self, transfer_id: int, length: int, *, through: Link | None = None) -> None:
        transfer = Transfer(transfer_id, "plan", DISK, Extent(0, length), through=through)
        self.node.submit(SimulatedTransfer(transfer, PriorityClass.NORMAL, self._ended))

    def run(self, until: float = FOREVER) -> None:
        self.time.run(until, lambda: None)

    def seconds(self) -> dict[int, float]:
        """When each transfer ended."""
        return {transfer_id: round(seconds, 9) for transfer_id, (seconds, _) in self.ended.items()}

    def _ended(self, transfer: SimulatedTransfer, error: PystachioError | None) -> None:
        self.ended[transfer.transfer.transfer_id] = (self.time.now, "" if error is None else error.code)
