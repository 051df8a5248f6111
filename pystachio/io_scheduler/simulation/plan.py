"""A plan on the simulated cluster: extents that pass the stages of its path, and the credit that they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pystachio.errors import PystachioError
from pystachio.io_scheduler.core.events import PlanCancelled, PlanClosed, PlanOpened, PriorityChanged, TransfersBoosted
from pystachio.io_scheduler.core.request import CreditPool, Direction, Extent, Link, PriorityClass, Transfer
from pystachio.io_scheduler.simulation.hardware import (
    DISK_THROUGH_PCIE,
    GPU_LINK,
    GPU_STAGE,
    NETWORK,
    PCIE_LINK,
    PCIE_STAGE,
    SPILL,
    disk_link,
)
from pystachio.io_scheduler.simulation.network import Message
from pystachio.io_scheduler.simulation.node import SimulatedNode
from pystachio.io_scheduler.simulation.transfer import SimulatedTransfer
from pystachio.io_scheduler.simulation.virtual_time import Kind

if TYPE_CHECKING:
    from pystachio.io_scheduler.simulation.simulation import Simulation


@dataclass(slots=True, eq=False)
class Work:
    """An extent of a plan on its way through the stages. `ended` is called when nothing of it is left anywhere."""

    extent: Extent
    disk: int
    ended: Callable[[], None]
    scanned: Callable[[], None] | None = None
    """Called when the disk is done with it."""
    parcels: int = 1
    """Parts of it that are under way; the extent on its disk is one."""
    transfer_id: int = 0
    is_scanned: bool = False


@dataclass(slots=True, eq=False)
class _Parcel:
    """A chunk beyond its first stage. `held` is the credit of the stage that it comes from, of `node`."""

    work: Work
    stage: int
    node: SimulatedNode
    length: int
    held: CreditPool | None


class SimulatedPlan:
    """Lives on `nodes` from `open` to `close` or `cancel`; the first failing transfer fails it everywhere.

    What has passed all stages is the consumer's, which keeps it for `consumer_seconds`; None: until the plan ends.
    """

    def __init__(
        self,
        simulation: Simulation,
        plan_id: str,
        priority: PriorityClass,
        path: Sequence[str],
        *,
        nodes: Sequence[SimulatedNode],
        weight: float = 1.0,
        deadline: float | None = None,
        consumer_seconds: float | None = 0.0,
        ended: Callable[[SimulatedPlan], None] | None = None,
    ) -> None:
        self.plan_id = plan_id
        self.priority = priority
        self.nodes = nodes
        self.error: PystachioError | None = None
        self.opened_at = simulation.time.now
        self.is_open = True
        self._simulation = simulation
        self._path = tuple(path)
        self._consumer_seconds = consumer_seconds
        self._ended = ended
        self._kept: dict[_Parcel, None] = {}
        self._under_way = 0
        simulation.plans[plan_id] = self
        for node in nodes:
            node.tell(PlanOpened(plan_id, priority, weight, deadline))

    # What workloads ask for

    def scan(self, node: SimulatedNode, works: Sequence[Work], *, criticality: int = 0) -> None:
        """Read extents from disks of the node, all at once, and take what arrives through the stages."""
        stage = self._path[0]
        through = PCIE_LINK if stage == DISK_THROUGH_PCIE else None
        transfers = []
        for work in works:
            self._under_way += 1
            work.transfer_id = self._simulation.next_transfer_id()
            transfer = Transfer(
                work.transfer_id,
                self.plan_id,
                disk_link(work.disk),
                work.extent,
                criticality=criticality,
                credit=self._simulation.pool(stage),
                by_chunk=True,
                through=through,
            )
            transfers.append(
                SimulatedTransfer(transfer, self.priority, self._scanned, delivered=self._delivered, context=work)
            )
        node.submit(*transfers)

    def boost(self, node: SimulatedNode, works: Sequence[Work]) -> None:
        """The plan waits for extents that another one has asked for."""
        node.tell(TransfersBoosted(tuple(work.transfer_id for work in works), self.plan_id))

    def set_priority(self, priority: PriorityClass) -> None:
        self.priority = priority
        for node in self.nodes:
            node.tell(PriorityChanged(self.plan_id, priority))

    def close(self) -> None:
        """All is done. What was started and not waited for is cancelled."""
        self._end(PlanClosed(self.plan_id))

    def fail(self, error: PystachioError) -> None:
        """Cancel everything on every node; `ended` is called once all transfers have ended."""
        if self.error is not None or not self.is_open:
            return
        self.error = error
        for node in self.nodes:
            node.tell(PlanCancelled(self.plan_id))
        for parcel in tuple(self._kept):
            self._consumed(parcel)
        self._close_when_empty()

    def waits_for(self) -> str:
        kept = sum(parcel.length for parcel in self._kept)
        return f"{self._under_way} extents under way, its consumer keeps {kept} bytes"

    # What happens to its bytes

    def _scanned(self, transfer: SimulatedTransfer, error: PystachioError | None) -> None:
        work = transfer.context
        assert isinstance(work, Work)
        work.is_scanned = True
        if work.scanned is not None and error is None:
            work.scanned()
        self._parcel_ended(work, error)

    def _delivered(self, transfer: SimulatedTransfer, chunk: Extent) -> None:
        work = transfer.context
        assert isinstance(work, Work)
        work.parcels += 1
        self._go_on(_Parcel(work, 0, transfer.node, chunk.length, transfer.transfer.credit))

    def _go_on(self, parcel: _Parcel) -> None:
        """The parcel has passed a stage."""
        parcel.stage += 1
        if parcel.stage == len(self._path):
            self._consume(parcel)
            return
        stage = self._path[parcel.stage]
        if stage == NETWORK:
            self._send(parcel)
            return
        transfer = Transfer(
            self._simulation.next_transfer_id(),
            self.plan_id,
            self._link(stage, parcel),
            Extent(0, parcel.length),
            credit=self._simulation.pool(stage),
            write_back=stage == SPILL,
        )
        parcel.node.submit(SimulatedTransfer(transfer, self.priority, self._passed, context=parcel))

    def _passed(self, transfer: SimulatedTransfer, error: PystachioError | None) -> None:
        parcel = transfer.context
        assert isinstance(parcel, _Parcel)
        taken = transfer.transfer.credit
        if error is not None or taken is not None or self._path[parcel.stage] == SPILL:
            parcel.node.release(parcel.held, parcel.length, self.plan_id)
            parcel.held = taken if error is None else None
        if error is not None:
            self._parcel_ended(parcel.work, error)
        else:
            self._go_on(parcel)

    def _send(self, parcel: _Parcel) -> None:
        """Parcels go around all other nodes in turn, as the partitions of an exchange do."""
        target = self._simulation.next_peer(self.plan_id, parcel.node.index)
        message = Message(
            parcel.node.index,
            target,
            parcel.length,
            plan_id=self.plan_id,
            priority=self.priority,
            ended=self._received,
            credit=self._simulation.pool(NETWORK),
            context=parcel,
        )
        self._simulation.send([message])

    def _received(self, message: Message, error: PystachioError | None) -> None:
        parcel = message.context
        assert isinstance(parcel, _Parcel)
        parcel.node.release(parcel.held, parcel.length, self.plan_id)
        if error is not None:
            parcel.held = None
            self._parcel_ended(parcel.work, error)
            return
        parcel.node = self._simulation.nodes[message.receiver]
        parcel.held = message.credit
        self._go_on(parcel)

    def _consume(self, parcel: _Parcel) -> None:
        seconds = self._consumer_seconds
        self._kept[parcel] = None
        if seconds == 0.0 or self.error is not None:
            self._consumed(parcel)
        elif seconds is not None:
            time = self._simulation.time
            time.at(time.now + seconds, Kind.CONSUMER, parcel.work.transfer_id, self._consumed, parcel)

    def _consumed(self, parcel: _Parcel) -> None:
        if parcel not in self._kept:
            # The plan has failed meanwhile, and dropped it.
            return
        del self._kept[parcel]
        parcel.node.release(parcel.held, parcel.length, self.plan_id)
        self._simulation.finished(self.priority, parcel.length)
        self._parcel_ended(parcel.work, None)

    def _parcel_ended(self, work: Work, error: PystachioError | None) -> None:
        if error is not None:
            # Other parcels of the same extent may end meanwhile; this one has not yet.
            self.fail(error)
        work.parcels -= 1
        if work.parcels == 0:
            self._under_way -= 1
            if self.error is None:
                work.ended()
            self._close_when_empty()

    def _close_when_empty(self) -> None:
        if self.error is not None and self.is_open and not self._under_way:
            self.close()

    def _end(self, event: PlanClosed) -> None:
        if not self.is_open:
            return
        self.is_open = False
        for node in self.nodes:
            node.tell(event)
        self._simulation.plan_ended(self)
        if self._ended is not None:
            self._ended(self)

    def _link(self, stage: str, parcel: _Parcel) -> Link:
        if stage == GPU_STAGE:
            return GPU_LINK
        if stage == PCIE_STAGE:
            return PCIE_LINK
        assert stage == SPILL
        return disk_link(parcel.work.disk, Direction.WRITE)
