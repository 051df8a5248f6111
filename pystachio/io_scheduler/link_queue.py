"""The order in which one link serves what waits for it, and when.

Between lanes: first a lane that is behind its reservation, then strictly by urgency. Inside the interactive lane by
deadline; inside the others start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996), in
bytes; inside a plan by criticality, then by arrival. A plan that was idle starts at the present virtual time: credit
for idling would let it flood the link when it returns.

On a network a plan has a flow for each peer, whose share of the plan's weight is its share of the plan's bytes that
wait: all peers then finish together, which is the optimal schedule of an exchange in the fluid limit. Equal flows go by
rank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush, heapreplace

from pystachio.io_scheduler.events import Action, StartChunk
from pystachio.io_scheduler.flow import Flow, Lane, Line, Share
from pystachio.io_scheduler.policy import (
    AGEING_SECONDS,
    ALLOWANCE_SECONDS,
    ASSUMED_RATE,
    INTERACTIVE,
    LANE_OF_CLASS,
    MOST_EARLY_SECONDS,
    MOST_LATE_SECONDS,
    NORMAL,
    RESERVATION_SECONDS,
    WRITE_BACK,
    LaneIndex,
    Policy,
)
from pystachio.io_scheduler.progress import Plan, TransferProgress
from pystachio.io_scheduler.request import Extent, LinkLimits
from pystachio.io_scheduler.resources import PeerBudget, Resource, Waiters
from pystachio.io_scheduler.window import Window


class Agenda:
    """What the queues of a scheduler share: `inside` are the transfers with chunks inside devices.

    What happens to one queue may concern others. They are noted here, and looked at before the event is done with:
    queues that something came back to are `unfilled`, and of what was `freed` others may take some.
    """

    __slots__ = ("_tickets", "freed", "inside", "unfilled")

    def __init__(self) -> None:
        self.inside: dict[TransferProgress, None] = {}
        self.unfilled: dict[LinkQueue, None] = {}
        self.freed: dict[Resource, None] = {}
        self._tickets = 0

    def next_ticket(self) -> int:
        """Who waits longer has the lower one."""
        self._tickets += 1
        return self._tickets


class LinkQueue:
    """Everything that waits for one link, and the bytes inside its device.

    As the gate of other links (`Transfer.through`) it also counts their chunks; `waiters` are lines parked on it.
    """

    def __init__(self, limits: LinkLimits, policy: Policy, agenda: Agenda) -> None:
        self.limits = limits
        self.window = Window(limits, policy.window_bytes)
        self.outstanding_bytes = 0
        self.stalled_bytes = 0
        """Inside the device, and not counted in `outstanding_bytes`."""
        self.written_off_bytes = 0
        self.waiters = Waiters()
        self.is_gate = False
        self.lanes = tuple(Lane(int(index), policy.reservations[index]) for index in LaneIndex)
        self.backlogged = 0
        """Flows that wait for this link itself, rather than for something else."""
        self._agenda = agenda
        self._has_classes = policy.classes
        self._is_fair = policy.fair
        self._shares: dict[Plan, Share] = {}
        self._peers: dict[str, PeerBudget] = {}
        self._sequence = 0
        self._total = 0

    def push(self, progress: TransferProgress, now: float) -> None:
        """Queue the transfer as its payer's."""
        line = self._line_of(progress)
        flow = line.flow
        waiting = line.waiting
        if line.ticket and line.head() is None:
            self._end_turn(line)
        entry = progress.entry = (-progress.criticality if self._is_fair else 0, progress.sequence, progress)
        progress.line = line
        if line.budget is not None and line.head() is not None:
            behind = max(waiting[0], entry)[2]
            if behind.has_credit:
                line.note_holder(behind)
        heappush(waiting, entry)
        if flow.of_peer:
            self._count(flow, progress.remaining)
        if line.parked_on is not None:
            if waiting[0] is entry or progress.has_credit:
                # It was parked for what another transfer needs.
                self.unpark(line, now)
        elif not flow.backlogged:
            self._enter_lane(flow, now)
        elif not self._is_fair:
            self._reorder(flow, now)

    def fill(self, actions: list[Action], now: float) -> None:
        """Start what can be started.

        A chunk that does not fit into the window holds back lower lanes as well: letting them pass would keep the
        window full. One that lacks anything else is parked, and the next line is looked at.
        """
        window = self.window
        while self.backlogged:
            lane = self._next_lane(now)
            flow = lane.flows[0][3]
            line = flow.ready[0] if len(flow.ready) == 1 else flow.next_line()
            progress = None if line is None else line.head()
            if progress is None or line is None:
                self._leave_lane(lane, flow)
                continue
            length = self._next_length(progress)
            outstanding = self.outstanding_bytes
            if outstanding and (
                window.is_measuring
                or outstanding + length > window.nbytes + (0 if lane.index else self.limits.urgent_bytes)
            ):
                return
            if self.is_gate and self._yields(lane, length, now):
                return
            if (progress.budget is not None or progress.gate is not None or flow.peer is not None) and self._lacks(
                line, progress, length, now
            ):
                continue
            chunk = self._take(line, progress, length, now)
            self._charge(lane, flow, line, progress, length, now)
            actions.append(StartChunk(progress.transfer.transfer_id, chunk, now - progress.submitted_at))
        # There is room and nothing to start.
        window.is_limited = True

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

    def may_take(self, line: Line, length: int, now: float) -> bool:
        """As a gate."""
        return not self.waiters.precede(line, now) and self.has_room(line, length, now)

    def has_room(self, line: Line, length: int, now: float) -> bool:
        """As a gate: by urgency, and in turns with what waits here itself."""
        own = self.first_lane()
        if own is not None and not self._precedes(line, own, now):
            return False
        extra = 0 if line.lane else self.limits.urgent_bytes
        outstanding = self.outstanding_bytes
        return not outstanding or self.window.has_room(outstanding + self.waiters.reserved_against(line), length, extra)

    def unpark(self, line: Line, now: float) -> None:
        """What the line waited for may be there; it returns to its flow, and others may take its place."""
        resource, flow = line.parked_on, line.flow
        assert resource is not None
        resource.waiters.remove(line)
        line.parked_on = None
        flow.ready.append(line)
        self._agenda.freed[resource] = None
        self._agenda.unfilled[self] = None
        if not flow.backlogged:
            self._enter_lane(flow, now)
        elif not self._is_fair:
            self._reorder(flow, now)

    def withdraw(self, progress: TransferProgress, now: float) -> None:
        """Out of its line, which may have been parked for what only this transfer needs."""
        line = progress.line
        if line is None or progress.entry is None:
            return
        was_head = line.head() is progress
        if line.flow.of_peer:
            self._count(line.flow, -progress.remaining)
        progress.entry = None
        if was_head:
            self._drop_reservations(line)
            if line.parked_on is not None:
                self.unpark(line, now)

    def add_redo(self, progress: TransferProgress, chunk: Extent, now: float) -> None:
        """A chunk of the transfer may be tried again."""
        # It may wait with other chunks, for credit that this one does not need.
        self.withdraw(progress, now)
        progress.redo = [*(progress.redo or ()), chunk]
        self.push(progress, now)

    def move_plan(self, plan: Plan, now: float) -> None:
        """Continue the plan's flows in the lane of its present class, by its present deadline."""
        share = self._shares.get(plan)
        if share is None or not self._has_classes:
            return
        moved = dict.fromkeys(flow for (write_back, _), flow in share.flows.items() if not write_back)
        self._detach(share, moved)
        target = self.lanes[LANE_OF_CLASS[plan.priority]]
        for flow in moved:
            if flow.lane is not target:
                # A virtual time means nothing in another lane.
                flow.lane, flow.start = target, 0.0
            if flow.next_line() is not None:
                self._enter_lane(flow, now)

    def forget_plan(self, plan: Plan) -> None:
        share = self._shares.pop(plan, None)
        if share is not None:
            self._detach(share, dict.fromkeys(share.flows.values()))

    def resources(self) -> Iterator[Resource]:
        """What lines may be parked on here: the link as a gate, and its peers."""
        yield self
        yield from self._peers.values()

    def shares(self) -> Iterator[Share]:
        yield from self._shares.values()

    def lines(self) -> Iterator[Line]:
        for share in self._shares.values():
            yield from share.lines.values()

    def waiting(self) -> list[TransferProgress]:
        """Every transfer of which something waits, in no particular order (for statistics and invariants)."""
        return [entry[2] for line in self.lines() for entry in line.waiting if entry[2].entry is entry]

    def could_start(self, now: float) -> bool:
        """Whether the chunk that is next could be started (for invariants: changes nothing)."""
        if self.first_lane() is None or any(
            lane.flows and lane.reservation and now - lane.served_at > AGEING_SECONDS for lane in self.lanes
        ):
            # Whose turn it is changes with time alone, and shows when time passes.
            return False
        books = [(lane.balance, lane.settled_at) for lane in self.lanes]
        lane = self._next_lane(now)
        for each, (balance, settled_at) in zip(self.lanes, books, strict=True):
            each.balance, each.settled_at = balance, settled_at
        line = lane.flows[0][3].next_line()
        if line is None:
            return False
        length = self._next_length(line.waiting[0][2])
        extra = 0 if lane.index else self.limits.urgent_bytes
        has_room = self.window.has_room(self.outstanding_bytes, length, extra)
        return has_room and not (self.is_gate and self._yields(lane, length, now))

    def first_lane(self) -> Lane | None:
        """The most urgent lane in which something waits for this link itself."""
        for lane in self.lanes:
            while lane.flows:
                flow = lane.flows[0][3]
                if flow.next_line() is not None:
                    return lane
                self._leave_lane(lane, flow)
        return None

    def rank(self) -> tuple[int, float]:
        """How urgent the first thing that waits here is; for the order between links that share a resource."""
        lane = self.first_lane()
        return (len(LaneIndex), 0.0) if lane is None else (lane.index, lane.served_at)

    def _next_length(self, progress: TransferProgress) -> int:
        if progress.redo is not None:
            return progress.redo[-1].length
        length, chunk_bytes = progress.length - progress.dispatched, self.window.chunk_bytes
        if length > chunk_bytes + chunk_bytes // 4:
            # A quarter of a chunk is not worth a request of its own, so it joins the last one.
            length = chunk_bytes
        if progress.by_chunk and progress.budget is not None and length > progress.budget.left:
            length = progress.budget.left // self.limits.alignment * self.limits.alignment
        return length

    def _line_of(self, progress: TransferProgress) -> Line:
        transfer, plan = progress.transfer, progress.payer
        share = self._shares.get(plan)
        if share is None:
            share = self._shares[plan] = Share(plan)
        peer = transfer.peer
        write_back = transfer.write_back and self._has_classes
        key = (write_back, peer, progress.budget, progress.gate)
        line = share.lines.get(key)
        if line is None:
            flow = share.flows.get((write_back, peer))
            if flow is None:
                index = WRITE_BACK if write_back else LANE_OF_CLASS[plan.priority] if self._has_classes else NORMAL
                budget = None if peer is None else self._peer_budget(peer)
                flow = Flow(self, share, self.lanes[index], budget, transfer.rank, of_peer=peer is not None)
                share.flows[write_back, peer] = flow
            line = share.lines[key] = Line(flow, progress.budget)
            flow.ready.append(line)
        return line

    def _peer_budget(self, peer: str) -> PeerBudget | None:
        if self.limits.peer_bytes is None:
            return None
        budget = self._peers.get(peer)
        if budget is None:
            budget = self._peers[peer] = PeerBudget(self.limits.peer_bytes)
        return budget

    def _count(self, flow: Flow, nbytes: int) -> None:
        flow.remaining += nbytes
        if flow.backlogged:
            flow.share.remaining += nbytes

    def _enter_lane(self, flow: Flow, now: float) -> None:
        lane = flow.lane
        if not lane.flows:
            lane.served_at = now
            lane.ticket = self._agenda.next_ticket()
            if lane.reservation:
                self._settle_reservation(lane)
                # No credit for the time without work.
                lane.balance = min(lane.balance, 0.0)
        flow.backlogged = True
        self.backlogged += 1
        if flow.of_peer:
            flow.share.remaining += flow.remaining
        self._sequence += 1
        heappush(lane.flows, (self._starts_at(lane, flow, now), flow.rank, self._sequence, flow))

    def _reorder(self, flow: Flow, now: float) -> None:
        """Where order is by arrival: an earlier transfer may have come back to the flow."""
        lane, before = flow.lane, flow.start
        if self._starts_at(lane, flow, now) < before:
            entries = [(each.start, rank, sequence, each) for _, rank, sequence, each in lane.flows]
            heapify(entries)
            lane.flows = entries

    def _starts_at(self, lane: Lane, flow: Flow, now: float) -> float:
        if not self._is_fair:
            line = flow.next_line()
            if line is not None:
                flow.start = float(line.waiting[0][1])
        elif lane.index == INTERACTIVE:
            taken = flow.share.taken / (self.window.rate or ASSUMED_RATE)
            due = flow.plan.due + (taken - ALLOWANCE_SECONDS if taken > ALLOWANCE_SECONDS else 0.0)
            # Neither a plan that is hopelessly late nor those before a distant deadline may starve the others.
            flow.start = min(max(due, now - MOST_LATE_SECONDS), now + MOST_EARLY_SECONDS)
        elif flow.start < lane.virtual_time:
            flow.start = lane.virtual_time
        return flow.start

    def _leave_lane(self, lane: Lane, flow: Flow) -> None:
        """The flow is the first of its lane."""
        heappop(lane.flows)
        self._note_left(flow)

    def _leave_lanes(self, flows: Collection[Flow]) -> None:
        for lane in self.lanes:
            if any(entry[3] in flows for entry in lane.flows):
                lane.flows = [entry for entry in lane.flows if entry[3] not in flows]
                heapify(lane.flows)
        for flow in flows:
            if flow.backlogged:
                self._note_left(flow)

    def _note_left(self, flow: Flow) -> None:
        flow.backlogged = False
        self.backlogged -= 1
        if flow.of_peer:
            flow.share.remaining -= flow.remaining

    def _detach(self, share: Share, flows: Collection[Flow]) -> None:
        """Out of the lanes, and of what its lines are parked on."""
        self._leave_lanes(flows)
        self._agenda.unfilled[self] = None
        for line in share.lines.values():
            if line.flow not in flows:
                continue
            self._drop_reservations(line)
            if line.parked_on is not None:
                line.parked_on.waiters.remove(line)
                self._agenda.freed[line.parked_on] = None
                line.parked_on = None
                line.flow.ready.append(line)

    def _next_lane(self, now: float) -> Lane:
        """The first lane with work, unless one behind it is overdue."""
        first: Lane | None = None
        for lane in self.lanes:
            if lane.flows:
                if first is None:
                    first = lane
                elif lane.reservation and self._is_overdue(lane, now):
                    if (
                        first.index == INTERACTIVE
                        and self.limits.urgent_bytes
                        and not self.window.has_room(self.outstanding_bytes, self.window.chunk_bytes, 0)
                    ):
                        # What is overdue waits for room; beyond the window is some for urgent transfers only.
                        return first
                    return lane
        assert first is not None
        return first

    def _is_overdue(self, lane: Lane, now: float) -> bool:
        self._settle_reservation(lane)
        chunk = self.window.chunk_bytes
        lane.balance = min(lane.balance, 2.0 * chunk)
        return lane.balance >= chunk or now - lane.served_at > AGEING_SECONDS

    def _settle_reservation(self, lane: Lane) -> None:
        lane.settle(self._total, RESERVATION_SECONDS * (self.window.rate or ASSUMED_RATE))

    def _yields(self, lane: Lane, length: int, now: float) -> bool:
        """Whether this link's own transfers of a lane leave their turn to lines that are parked here."""
        if lane is not self.first_lane():
            # An overdue lane goes first.
            return False
        first = self.waiters.first(now)
        if first is not None and self._precedes(first, lane, now):
            return True
        reserved_for = self.waiters.reserved_for
        if reserved_for is None or reserved_for.lane > lane.index or not self.outstanding_bytes:
            return False
        return not self.window.has_room(self.outstanding_bytes + self.waiters.reserved_bytes, length, 0)

    def _precedes(self, line: Line, own: Lane, now: float) -> bool:
        """Whether a line of another link goes before what waits here itself."""
        if line.lane != own.index:
            return line.lane < own.index or (line.ticket > 0 and now - line.waits_since > AGEING_SECONDS)
        return 0 < line.ticket < own.ticket

    def _lacks(self, line: Line, progress: TransferProgress, length: int, now: float) -> bool:
        """Park the line if its next chunk lacks anything but room on this link."""
        budget, gate, peer = progress.budget, progress.gate, line.flow.peer
        if budget is not None and not progress.has_credit:
            need = length if progress.by_chunk else progress.length
            if not budget.may_take(line, need, now):
                holder = line.take_holder()
                if holder is None:
                    return self._park(line, budget, need, now)
                # Others may wait for the credit that it holds: it must not wait for theirs.
                holder.entry = (line.waiting[0][0] - 1, holder.sequence, holder)
                heappush(line.waiting, holder.entry)
                return True
        if gate is not None:
            gate.is_gate = True
            if not gate.may_take(line, length, now):
                return self._park(line, gate, length, now)
        if peer is not None and not peer.may_take(line, length, now):
            return self._park(line, peer, length, now)
        return False

    def _park(self, line: Line, resource: Resource, needs: int, now: float) -> bool:
        """The line is that of the first flow of its lane."""
        flow = line.flow
        # Credit may be kept while waiting for what devices give back by themselves, but not the other way round.
        self._drop_reservations(line, keep=None if resource is line.budget else line.budget)
        flow.ready.remove(line)
        if flow.next_line() is None:
            self._leave_lane(flow.lane, flow)
        line.parked_on, line.needs = resource, needs
        if not line.ticket:
            line.ticket, line.waits_since = self._agenda.next_ticket(), now
        resource.waiters.add(line)
        return True

    def _take(self, line: Line, progress: TransferProgress, length: int, now: float) -> Extent:
        """Account for a chunk that goes into the device."""
        budget, gate, peer = progress.budget, progress.gate, line.flow.peer
        if budget is not None and not progress.has_credit:
            need = length if progress.by_chunk else progress.length
            budget.take(progress.plan, need)
            progress.credited += need
            if budget.waiters.count:
                # Plans that now hold less than this one go first.
                self._agenda.freed[budget] = None
        if gate is not None:
            gate.enter(length, now)
        if peer is not None:
            peer.take(length)
        if line.ticket:
            self._end_turn(line)
        extent = progress.transfer.extent
        if progress.redo is not None:
            chunk = progress.redo.pop()
            progress.redo = progress.redo or None
        elif length == progress.length:
            chunk = extent
            progress.dispatched = length
        else:
            chunk = Extent(extent[0] + progress.dispatched, length)
            progress.dispatched += length
        if not progress.outstanding:
            self._agenda.inside[progress] = None
        progress.outstanding[chunk[0]] = (length, now)
        self.window.note_start(now, self.outstanding_bytes)
        self.outstanding_bytes += length
        return chunk

    def _charge(self, lane: Lane, flow: Flow, line: Line, progress: TransferProgress, length: int, now: float) -> None:
        self._total += length
        lane.balance -= length
        lane.served_at = now
        share = flow.share
        share.taken += length
        if self.is_gate:
            lane.ticket = self._agenda.next_ticket()
        if self._is_fair and lane.index != INTERACTIVE:
            lane.virtual_time = flow.start
            weight = share.plan.weight
            if flow.of_peer:
                weight *= flow.remaining / share.remaining
            flow.start += length / weight
        if flow.of_peer:
            self._count(flow, -length)
        if progress.dispatched == progress.length and progress.redo is None:
            progress.entry = None
            heappop(line.waiting)
            if not line.waiting and flow.next_line() is None:
                self._leave_lane(lane, flow)
                return
        self._sequence += 1
        heapreplace(lane.flows, (self._starts_at(lane, flow, now), flow.rank, self._sequence, flow))

    def _end_turn(self, line: Line) -> None:
        """It was served, or nothing waits in it: it has no place to keep."""
        line.ticket = 0
        line.was_missed = False
        self._drop_reservations(line)

    def _drop_reservations(self, line: Line, keep: Resource | None = None) -> None:
        kept: tuple[Resource, ...] = ()
        for resource in line.reserved:
            if resource is keep:
                kept = (resource,)
                continue
            waiters = resource.waiters
            waiters.reserved_for, waiters.reserved_bytes = None, 0
            self._agenda.freed[resource] = None
        line.reserved = kept
