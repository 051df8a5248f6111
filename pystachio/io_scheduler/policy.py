"""The order in which one link serves what waits for it.

Strict between classes; between the plans of a class, start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair
Queueing", SIGCOMM 1996), in bytes; inside a plan by criticality, then by arrival. A plan that was idle starts at the
present virtual time: credit for idling would let it flood the link when it returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

from pystachio.errors import PystachioError
from pystachio.io_scheduler.request import Extent, LinkLimits, PriorityClass, Transfer


@dataclass(slots=True, eq=False)
class TransferProgress:
    """How far a transfer has come. `outstanding` maps the offset of each chunk inside the device to its length."""

    transfer: Transfer
    submitted_at: float
    dispatched: int = 0
    outstanding: dict[int, int] = field(default_factory=dict)
    error: PystachioError | None = None
    """Set once the transfer can no longer succeed; nothing more of it is dispatched."""

    @property
    def remaining(self) -> int:
        return self.transfer.extent.length - self.dispatched

    @property
    def waits(self) -> bool:
        """Whether something of it is still to be dispatched."""
        return self.error is None and self.remaining > 0


@dataclass(slots=True, eq=False)
class Flow:
    """The transfers of one plan that wait for one link. `start` is the virtual time at which its next chunk is due."""

    priority: PriorityClass
    weight: float
    start: float = 0.0
    backlogged: bool = False
    waiting: list[tuple[int, int, TransferProgress]] = field(default_factory=list)

    def head(self) -> TransferProgress | None:
        """The next transfer; entries that were cancelled or fully dispatched are dropped on the way."""
        while self.waiting:
            progress = self.waiting[0][2]
            if progress.waits:
                return progress
            heappop(self.waiting)
        return None


@dataclass(slots=True, eq=False)
class Lane:
    """One class inside a link: the backlogged flows, earliest virtual start first."""

    virtual_time: float = 0.0
    flows: list[tuple[float, int, Flow]] = field(default_factory=list)


class LinkQueue:
    """Everything that waits for one link, and the bytes inside its device."""

    def __init__(self, limits: LinkLimits) -> None:
        self.limits = limits
        self.outstanding_bytes = 0
        self._lanes = tuple(Lane() for _ in PriorityClass)
        self._flows: dict[str, Flow] = {}
        self._sequence = 0

    def push(self, progress: TransferProgress, priority: PriorityClass, weight: float) -> None:
        plan_id = progress.transfer.plan_id
        flow = self._flows.get(plan_id)
        if flow is None:
            flow = self._flows[plan_id] = Flow(priority, weight)
        self._sequence += 1
        heappush(flow.waiting, (-progress.transfer.criticality, self._sequence, progress))
        if not flow.backlogged:
            self._enter_lane(flow)

    def pop_chunk(self) -> tuple[TransferProgress, Extent] | None:
        """The chunk to dispatch now, accounted as outstanding; None when nothing waits or the window is full.

        A chunk that does not fit holds back lower classes as well: letting them pass would keep the window full.
        """
        for lane in self._lanes:
            flow = self._first_flow(lane)
            if flow is None:
                continue
            progress = flow.head()
            assert progress is not None, "a backlogged flow has a head"
            length = chunk_length(progress.remaining, self.limits.chunk_bytes)
            if self.outstanding_bytes and self.outstanding_bytes + length > self.limits.window_bytes:
                return None
            return progress, self._dispatch(lane, flow, progress, length)
        return None

    def settle(self, length: int) -> None:
        """A chunk has left the device."""
        self.outstanding_bytes -= length
        assert self.outstanding_bytes >= 0, "more bytes left the device than entered it"

    def move_plan(self, plan_id: str, priority: PriorityClass) -> None:
        """Continue the plan's queue in another class."""
        flow = self._flows.get(plan_id)
        if flow is None or flow.priority == priority:
            return
        if flow.backlogged:
            lane = self._lanes[flow.priority]
            lane.flows = [entry for entry in lane.flows if entry[2] is not flow]
            heapify(lane.flows)
        # A virtual time means nothing in another lane.
        flow.priority, flow.start = priority, 0.0
        if flow.backlogged:
            self._enter_lane(flow)

    def forget_plan(self, plan_id: str) -> None:
        flow = self._flows.pop(plan_id, None)
        if flow is not None:
            flow.waiting.clear()

    def waiting(self) -> list[TransferProgress]:
        """Every transfer of which something waits, in no particular order (for statistics and invariants)."""
        return [entry[2] for flow in self._flows.values() for entry in flow.waiting if entry[2].waits]

    def _enter_lane(self, flow: Flow) -> None:
        lane = self._lanes[flow.priority]
        flow.start = max(flow.start, lane.virtual_time)
        flow.backlogged = True
        self._sequence += 1
        heappush(lane.flows, (flow.start, self._sequence, flow))

    def _first_flow(self, lane: Lane) -> Flow | None:
        while lane.flows:
            flow = lane.flows[0][2]
            if flow.head() is not None:
                return flow
            flow.backlogged = False
            heappop(lane.flows)
        return None

    def _dispatch(self, lane: Lane, flow: Flow, progress: TransferProgress, length: int) -> Extent:
        chunk = Extent(progress.transfer.extent.offset + progress.dispatched, length)
        progress.dispatched += length
        progress.outstanding[chunk.offset] = length
        self.outstanding_bytes += length
        lane.virtual_time = flow.start
        flow.start += length / flow.weight
        self._sequence += 1
        heapreplace(lane.flows, (flow.start, self._sequence, flow))
        return chunk


def chunk_length(remaining: int, chunk_bytes: int) -> int:
    """A quarter of a chunk is not worth a request of its own, so it joins the last one."""
    return remaining if remaining <= chunk_bytes + chunk_bytes // 4 else chunk_bytes
