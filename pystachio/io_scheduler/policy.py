"""The order in which one link serves what waits for it, and when.

Between lanes: first a lane that is behind its reservation, then strictly by urgency. Inside the interactive lane by
deadline; inside the others start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996), in
bytes; inside a plan by criticality, then by arrival. A plan that was idle starts at the present virtual time: credit
for idling would let it flood the link when it returns.

On a network a plan has a flow for each peer, whose share of the plan's weight is its share of the plan's bytes: all
peers then finish together, which is the optimal schedule of an exchange in the fluid limit. Equal flows go by rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heapify, heappop, heappush, heapreplace
from types import MappingProxyType
from typing import Final

from pystachio.errors import PystachioError
from pystachio.io_scheduler.request import Extent, LinkLimits, PriorityClass, Transfer
from pystachio.io_scheduler.resources import AGEING_SECONDS, CreditBudget, ParkedFlow, PeerBudget, Resource, Waiters
from pystachio.io_scheduler.window import Window

INTERACTIVE_SECONDS = 1.0
"""An interactive plan without a deadline counts as due so long after its start."""
ALLOWANCE_SECONDS = 0.1
"""What an interactive plan may take of a link before it counts as later due, second by second."""

RESERVATION_SECONDS = 0.2
"""Service beyond its reservation in about this time counts against a lane: a short urgent burst is not interrupted."""

GATE_PATIENCE_SECONDS = 0.01
"""A chunk that is larger than others finds no room in a shared link while they take what is freed piece by piece. After
so long it is kept for that chunk.
"""

ASSUMED_RATE = 1e9
"""Bytes per second of a link that has not been measured."""


class LaneIndex(IntEnum):
    """The lanes of a link in their order: a lane for each class, and one for what frees memory."""

    INTERACTIVE = 0
    WRITE_BACK = 1
    NORMAL = 2
    BATCH = 3


# Plain numbers: the hash of an enumeration's member is computed in Python.
_INTERACTIVE: Final = int(LaneIndex.INTERACTIVE)
_WRITE_BACK: Final = int(LaneIndex.WRITE_BACK)
_NORMAL: Final = int(LaneIndex.NORMAL)
_LANE_OF_CLASS: Final = (_INTERACTIVE, _NORMAL, int(LaneIndex.BATCH))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is switched off exists to compare. Without `classes` there is one lane, without `fair` it goes by arrival.

    `window_bytes` of None lets each link calibrate its window. `reservations` are shares of a link by lane.
    """

    name: str
    classes: bool = True
    fair: bool = True
    window_bytes: int | None = None
    reservations: tuple[float, float, float, float] = (0.0, 0.25, 0.10, 0.05)


POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            Policy(name="pystachio"),
            Policy(name="strict", fair=False, window_bytes=32 << 20, reservations=(0.0, 0.0, 0.0, 0.0)),
            Policy(name="fair", classes=False, window_bytes=32 << 20),
            Policy(name="fifo", classes=False, fair=False, window_bytes=32 << 20),
        )
    }
)


@dataclass(slots=True, eq=False)
class Plan:
    """What the scheduler knows of a plan. `priority` and `weight` are those in force, which a lease may have set."""

    plan_id: str
    local_priority: PriorityClass
    local_weight: float
    deadline: float | None
    opened_at: float
    priority: PriorityClass = PriorityClass.NORMAL
    weight: float = 1.0
    cancelled: bool = False
    priority_is_local: bool = False
    """The priority was changed here, and the centre's leases have not yet followed."""
    transfers: dict[int, TransferProgress] = field(default_factory=dict)
    boosts: set[int] = field(default_factory=set)
    """Transfers of other plans that are queued as this one's."""


@dataclass(slots=True, eq=False)
class TransferProgress:
    """How far a transfer has come. `outstanding` maps the offset of each chunk inside the device to its length and when
    it was started; `redo` holds chunks that failed and may be started again, None when there are none.
    """

    transfer: Transfer
    queue: LinkQueue
    plan: Plan
    submitted_at: float
    criticality: int
    length: int
    payer: Plan
    """Whose flow it waits in: its own plan's, or a more urgent one's that waits for it."""
    budget: CreditBudget | None
    gate: LinkQueue | None
    dispatched: int = 0
    outstanding: dict[int, tuple[int, float]] = field(default_factory=dict)
    redo: list[Extent] | None = None
    backing_off: int = 0
    """Chunks that wait for their time to be tried again."""
    attempts: dict[int, int] | None = None
    credited: int = 0
    error: PystachioError | None = None
    """Set once the transfer can no longer succeed; nothing more of it is dispatched."""
    flow: Flow | None = None

    @property
    def waits(self) -> bool:
        """Whether something of it could be dispatched now."""
        return self.error is None and (self.dispatched < self.length or self.redo is not None)

    def credit_for(self, length: int) -> int:
        """Bytes of credit that a chunk of `length` needs to start."""
        if self.transfer.by_chunk:
            return length
        return 0 if self.credited else self.length

    @property
    def remaining(self) -> int:
        """Bytes of it that have not been dispatched, or must be again."""
        return self.length - self.dispatched + sum(chunk.length for chunk in self.redo or ())


@dataclass(slots=True, eq=False)
class Flow:
    """The transfers of one plan (with one peer) that wait for one link, most critical first."""

    queue: LinkQueue
    plan: Plan
    lane: Lane
    peer: PeerBudget | None
    rank: int
    is_of_peer: bool = False
    """The plan has a flow for each peer on this link."""
    start: float = 0.0
    """The virtual time at which its next chunk is due; a deadline in the interactive lane."""
    submitted: int = 0
    taken: int = 0
    backlogged: bool = False
    waiting: list[tuple[int, int, TransferProgress]] = field(default_factory=list)
    parked_on: Resource | None = None
    parked_at: float = 0.0
    needs: int = 0

    @property
    def urgency(self) -> PriorityClass:
        return self.plan.priority

    def head(self) -> TransferProgress | None:
        """The next transfer; entries that were cancelled, moved or fully dispatched are dropped on the way."""
        waiting = self.waiting
        while waiting:
            progress = waiting[0][2]
            if progress.flow is self and progress.error is None:
                if progress.dispatched < progress.length or progress.redo is not None:
                    return progress
                progress.flow = None
            heappop(waiting)
        return None


@dataclass(slots=True, eq=False)
class Lane:
    """The backlogged flows, earliest first. `balance` is how many bytes it is behind its reservation."""

    index: int
    reservation: float
    virtual_time: float = 0.0
    flows: list[tuple[float, int, int, Flow]] = field(default_factory=list)
    balance: float = 0.0
    settled_at: int = 0
    served_at: float = 0.0

    def settle(self, total: int, rate: float) -> None:
        """Credit the reservation for what the link has served since, up to `total` bytes."""
        balance = self.balance + self.reservation * (total - self.settled_at)
        self.settled_at = total
        self.balance = max(balance, -self.reservation * rate * RESERVATION_SECONDS)


class LinkQueue:
    """Everything that waits for one link, and the bytes inside its device.

    As the gate of other links (`Transfer.through`) it also counts their chunks; `waiters` are flows parked on it.
    """

    def __init__(self, limits: LinkLimits, policy: Policy) -> None:
        self.limits = limits
        self._urgent_bytes = limits.urgent_bytes
        self.policy = policy
        self.window = Window(limits, policy.window_bytes)
        self.outstanding_bytes = 0
        self.stalled_bytes = 0
        """Inside the device, and not counted in `outstanding_bytes`."""
        self.written_off_bytes = 0
        self.waiters = Waiters(GATE_PATIENCE_SECONDS)
        self._waiters_go_first = False
        self.lanes = tuple(Lane(int(index), policy.reservations[index]) for index in LaneIndex)
        self.backlogged = 0
        """Flows that wait for this link itself, rather than for something else."""
        self._flows: dict[str, dict[tuple[int, str | None], Flow]] = {}
        self._submitted: dict[str, int] = {}
        self._peers: dict[str, PeerBudget] = {}
        self.has_peers = False
        self._sequence = 0
        self._total = 0

    def push(self, progress: TransferProgress, now: float) -> None:
        """Queue the transfer as its payer's."""
        flow = self._flow_of(progress)
        length = progress.length
        flow.submitted += length
        progress.flow = flow
        self._sequence += 1
        criticality = progress.criticality if self.policy.fair else 0
        heappush(flow.waiting, (-criticality, self._sequence, progress))
        if flow.parked_on is not None and flow.waiting[0][2] is progress:
            # It was parked for what another transfer needs.
            self.unpark(flow, now)
        elif not flow.backlogged and flow.parked_on is None:
            self._enter_lane(flow, now)

    def next_chunk(self, now: float) -> tuple[TransferProgress, Extent] | None:
        """The chunk to start now, accounted for; None when nothing can be started.

        A chunk that does not fit into the window holds back lower lanes as well: letting them pass would keep the
        window full. One that lacks anything else is parked, and the next flow is looked at.
        """
        while self.backlogged:
            lane = self._next_lane(now)
            if lane is None:
                break
            flow = lane.flows[0][3]
            progress = flow.head()
            if progress is None:
                self._leave_lane(lane, flow)
                continue
            if progress.redo is None:
                length = chunk_length(progress.length - progress.dispatched, self.window.chunk_bytes)
            else:
                length = progress.redo[-1].length
            extra = self._urgent_bytes if lane.index == _INTERACTIVE else 0
            if self.outstanding_bytes and not self.window.has_room(self.outstanding_bytes, length, extra):
                return None
            if (
                progress.budget is not None or progress.gate is not None or flow.peer is not None
            ) and self._park_if_lacking(flow, lane, progress, length, now):
                continue
            return progress, self._dispatch(lane, flow, progress, length, now)
        return None

    def enter(self, length: int, now: float) -> None:
        """A chunk of another link goes through this one's device."""
        self.window.note_start(now, self.outstanding_bytes)
        self.outstanding_bytes += length

    def settle(self, length: int, started_at: float, now: float) -> None:
        """A chunk has left the device."""
        self.outstanding_bytes -= length
        assert self.outstanding_bytes >= 0, "more bytes left the device than entered it"
        self.window.note_end(now, length, started_at, self.outstanding_bytes)

    def set_aside(self, length: int, now: float) -> None:
        """A chunk is stuck in the device: others need not wait for it to leave."""
        self.outstanding_bytes -= length
        self.stalled_bytes += length
        self.window.give_up_measuring(now)

    def bring_back(self, length: int) -> None:
        """It leaves after all."""
        self.stalled_bytes -= length
        self.outstanding_bytes += length

    def has_room(self, flow: ParkedFlow, length: int) -> bool:
        """As a gate."""
        if self.waiters.count and not self.waiters.let_pass(flow):
            return False
        return self.window.has_room(self.outstanding_bytes, length, 0)

    def waiters_come_first(self, now: float) -> bool:
        """Whether flows of other links go before this one's own: by urgency, and in turns."""
        first = self.waiters.first(now)
        own = self.rank()[0]
        if first is None:
            return False
        if _LANE_OF_CLASS[first.urgency] != own:
            return _LANE_OF_CLASS[first.urgency] < own
        self._waiters_go_first = not self._waiters_go_first
        return self._waiters_go_first

    def peer(self, transfer: Transfer) -> PeerBudget | None:
        return None if transfer.peer is None else self._peers.get(transfer.peer)

    def unpark(self, flow: Flow, now: float) -> None:
        """What the flow waited for may be there; it returns to its lane."""
        assert flow.parked_on is not None
        flow.parked_on.waiters.remove(flow)
        flow.parked_on = None
        if flow.head() is not None:
            self._enter_lane(flow, now)

    def move_plan(self, plan: Plan, now: float) -> list[Resource]:
        """Continue the plan's flows in the lane of its present class, by its present deadline.

        Returns what they no longer wait for.
        """
        flows = self._flows.get(plan.plan_id)
        if flows is None or not self.policy.classes:
            return []
        left: list[Resource] = []
        target = self.lanes[_LANE_OF_CLASS[plan.priority]]
        for (index, peer), flow in tuple(flows.items()):
            left += self._detach(flow)
            if index != _WRITE_BACK:
                del flows[index, peer]
                if flow.lane is not target:
                    # A virtual time means nothing in another lane.
                    flow.lane, flow.start = target, 0.0
                flows[target.index, peer] = flow
            if flow.head() is not None:
                self._enter_lane(flow, now)
        return left

    def forget_plan(self, plan_id: str) -> list[Resource]:
        """Returns what its flows no longer wait for."""
        self._submitted.pop(plan_id, None)
        left: list[Resource] = []
        for flow in self._flows.pop(plan_id, {}).values():
            left += self._detach(flow)
            flow.waiting.clear()
        return left

    def flows(self) -> Iterator[Flow]:
        for flows in self._flows.values():
            yield from flows.values()

    def waiting(self) -> list[TransferProgress]:
        """Every transfer of which something waits, in no particular order (for statistics and invariants)."""
        return [entry[2] for flow in self.flows() for entry in flow.waiting if entry[2].flow is flow and entry[2].waits]

    def rank(self) -> tuple[int, float]:
        """How urgent the first thing that waits here is; for the order between links that share a resource."""
        for lane in self.lanes:
            if lane.flows:
                return lane.index, lane.served_at
        return len(LaneIndex), 0.0

    def _flow_of(self, progress: TransferProgress) -> Flow:
        transfer, plan = progress.transfer, progress.payer
        policy = self.policy
        index = _LANE_OF_CLASS[plan.priority] if policy.classes else _NORMAL
        if transfer.write_back and policy.classes:
            index = _WRITE_BACK
        owner, peer = (plan.plan_id, transfer.peer) if policy.fair else ("", None)
        flows = self._flows.get(owner)
        if flows is None:
            flows = self._flows[owner] = {}
        flow = flows.get((index, peer))
        if flow is None:
            # One flow for all peers cannot wait for one of them.
            flow = Flow(
                self, plan, self.lanes[index], self._peer_budget(peer), transfer.rank, is_of_peer=peer is not None
            )
            flows[index, peer] = flow
        if peer is not None:
            self._submitted[owner] = self._submitted.get(owner, 0) + progress.length
        return flow

    def _peer_budget(self, peer: str | None) -> PeerBudget | None:
        if peer is None or self.limits.peer_bytes is None:
            return None
        budget = self._peers.get(peer)
        if budget is None:
            budget = self._peers[peer] = PeerBudget(self.limits.peer_bytes)
            self.has_peers = True
        return budget

    def _enter_lane(self, flow: Flow, now: float) -> None:
        lane = flow.lane
        if not lane.flows:
            lane.served_at = now
            if lane.reservation:
                lane.settle(self._total, self.window.rate or ASSUMED_RATE)
                # No credit for the time without work.
                lane.balance = min(lane.balance, 0.0)
        if lane.index == _INTERACTIVE:
            flow.start = self._due(flow)
        elif flow.start < lane.virtual_time:
            flow.start = lane.virtual_time
        flow.backlogged = True
        self.backlogged += 1
        self._sequence += 1
        heappush(lane.flows, (flow.start, flow.rank, self._sequence, flow))

    def _leave_lane(self, lane: Lane, flow: Flow) -> None:
        """The flow is the first of its lane."""
        flow.backlogged = False
        self.backlogged -= 1
        heappop(lane.flows)

    def _detach(self, flow: Flow) -> list[Resource]:
        left: list[Resource] = []
        if flow.parked_on is not None:
            left.append(flow.parked_on)
            flow.parked_on.waiters.remove(flow)
            flow.parked_on = None
        if flow.backlogged:
            flow.backlogged = False
            self.backlogged -= 1
            flow.lane.flows = [entry for entry in flow.lane.flows if entry[3] is not flow]
            heapify(flow.lane.flows)
        return left

    def _due(self, flow: Flow) -> float:
        plan = flow.plan
        taken = flow.taken / (self.window.rate or ASSUMED_RATE)
        base = plan.deadline if plan.deadline is not None else plan.opened_at + INTERACTIVE_SECONDS
        return base + max(0.0, taken - ALLOWANCE_SECONDS)

    def _next_lane(self, now: float) -> Lane | None:
        """The first lane with work, unless one behind it is overdue."""
        first: Lane | None = None
        for lane in self.lanes:
            if not lane.flows:
                continue
            if first is None:
                first = lane
            elif self._is_overdue(lane, now):
                return lane
        return first

    def _is_overdue(self, lane: Lane, now: float) -> bool:
        if not lane.reservation:
            return False
        lane.settle(self._total, self.window.rate or ASSUMED_RATE)
        chunk = self.window.chunk_bytes
        lane.balance = min(lane.balance, 2.0 * chunk)
        return lane.balance >= chunk or now - lane.served_at > AGEING_SECONDS

    def _park_if_lacking(self, flow: Flow, lane: Lane, progress: TransferProgress, length: int, now: float) -> bool:
        budget = progress.budget
        if budget is not None:
            need = progress.credit_for(length)
            if need and not budget.has_room(flow, need):
                return self._park(flow, lane, budget, need, now)
        if progress.gate is not None and not progress.gate.has_room(flow, length):
            return self._park(flow, lane, progress.gate, length, now)
        if flow.peer is not None and not flow.peer.has_room(flow, length):
            return self._park(flow, lane, flow.peer, length, now)
        return False

    def _park(self, flow: Flow, lane: Lane, resource: Resource, needs: int, now: float) -> bool:
        self._leave_lane(lane, flow)
        flow.parked_on, flow.parked_at, flow.needs = resource, now, needs
        resource.waiters.add(flow)
        return True

    def _dispatch(self, lane: Lane, flow: Flow, progress: TransferProgress, length: int, now: float) -> Extent:
        if progress.redo:
            chunk = progress.redo.pop()
            progress.redo = progress.redo or None
        else:
            chunk = Extent(progress.transfer.extent.offset + progress.dispatched, length)
            progress.dispatched += length
        progress.outstanding[chunk[0]] = (length, now)
        if progress.budget is not None:
            need = progress.credit_for(length)
            progress.budget.take(need)
            progress.credited += need
        if progress.gate is not None:
            progress.gate.enter(length, now)
        if flow.peer is not None:
            flow.peer.take(length)
        self.window.note_start(now, self.outstanding_bytes)
        self.outstanding_bytes += length
        self._charge(lane, flow, progress, length, now)
        return chunk

    def _charge(self, lane: Lane, flow: Flow, progress: TransferProgress, length: int, now: float) -> None:
        self._total += length
        lane.balance -= length
        lane.served_at = now
        flow.taken += length
        if lane.index == _INTERACTIVE:
            flow.start = self._due(flow)
        elif self.policy.fair:
            lane.virtual_time = flow.start
            flow.start += length / self._weight(flow)
        if not progress.waits:
            progress.flow = None
            heappop(flow.waiting)
            if not flow.waiting:
                self._leave_lane(lane, flow)
                return
        self._sequence += 1
        heapreplace(lane.flows, (flow.start, flow.rank, self._sequence, flow))

    def _weight(self, flow: Flow) -> float:
        if not flow.is_of_peer:
            return flow.plan.weight
        return flow.plan.weight * flow.submitted / self._submitted[flow.plan.plan_id]


def chunk_length(remaining: int, chunk_bytes: int) -> int:
    """A quarter of a chunk is not worth a request of its own, so it joins the last one."""
    return remaining if remaining <= chunk_bytes + chunk_bytes // 4 else chunk_bytes
