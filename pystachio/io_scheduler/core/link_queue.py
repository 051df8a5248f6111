"""What waits for one link, and what is inside its device."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from pystachio.io_scheduler.core.agenda import Agenda
from pystachio.io_scheduler.core.events import Action, StartChunk
from pystachio.io_scheduler.core.flow import Flow, Line
from pystachio.io_scheduler.core.lanes import Lane, Lanes
from pystachio.io_scheduler.core.policy import LANE_OF_CLASS, NORMAL, WRITE_BACK, LaneIndex, Policy
from pystachio.io_scheduler.core.progress import Plan, TransferProgress
from pystachio.io_scheduler.core.request import CHUNK_SECONDS, Extent, LinkLimits
from pystachio.io_scheduler.core.resources import PeerBudget, Resource, Waiters
from pystachio.io_scheduler.core.window import Window

EXPECTED_SECONDS = 0.25
"""Whoever was served so lately is expected again."""


class LinkQueue:
    """Everything that waits for one link, and the bytes inside its device.

    As the gate of other links (`Transfer.through`) it also counts their chunks; `waiters` are lines parked on it.
    """

    def __init__(self, limits: LinkLimits, policy: Policy, agenda: Agenda) -> None:
        self.limits = limits
        self.window = Window(limits, policy.window_bytes)
        self.lanes = Lanes(policy, self.window, limits.urgent_bytes)
        self.outstanding_bytes = 0
        self.stalled_bytes = 0
        """Inside the device, and not counted in `outstanding_bytes`."""
        self.written_off_bytes = 0
        self.waiters = Waiters(self.lanes)
        self.is_gate = False
        self.is_shared = limits.peer_bytes is not None
        """Others may wait for what its chunks take."""
        self._agenda = agenda
        self._has_classes = policy.classes
        self._has_long_chunks = limits.device_seconds > CHUNK_SECONDS
        self._is_fair = policy.fair
        self._flows: dict[Plan, dict[bool, Flow]] = {}
        self._peers: dict[str, PeerBudget] = {}

    # What waits

    def push(self, progress: TransferProgress, now: float) -> None:
        """Queue the transfer as its payer's."""
        line = progress.line = self._line_of(progress)
        flow, waiting = line.flow, line.waiting
        entry = progress.entry = (-progress.criticality if self._is_fair else 0, progress.sequence, progress)
        if not line.is_plain:
            self._note_arrival(line, progress, entry)
        heappush(waiting, entry)
        if line.peer_name is not None:
            flow.count(line, progress.remaining)
        if flow.sole is None and waiting[0] is entry:
            flow.note_ready(line)
        if line.parked_on is not None:
            if waiting[0] is entry or (line.budget is not None and progress.has_credit):
                # It was parked for what another transfer needs.
                self.unpark(line, now)
        elif not flow.backlogged or not self._is_fair:
            self._enter(flow, now)

    def _note_arrival(self, line: Line, progress: TransferProgress, entry: tuple[int, int, TransferProgress]) -> None:
        """The transfer is about to join a line that may be parked."""
        head = line.head()
        if head is None:
            if line.ticket:
                self._end_turn(line)
        elif line.budget is not None:
            behind = head if entry < line.waiting[0] else progress
            if behind.has_credit:
                line.note_holder(behind)

    def withdraw(self, progress: TransferProgress, now: float) -> None:
        """Out of its line, which may have been parked for what only this transfer needs."""
        line = progress.line
        if line is None or progress.entry is None:
            return
        was_head = line.head() is progress
        if line.peer_name is not None:
            line.remaining -= progress.remaining
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

    def unpark(self, line: Line, now: float) -> None:
        """What the line waited for may be there; it returns to its flow, and others may take its place."""
        resource = line.parked_on
        assert resource is not None
        resource.waiters.remove(line)
        line.parked_on = None
        self._agenda.freed[resource] = None
        self._agenda.unfilled[self] = None
        line.flow.note_ready(line)
        self._enter(line.flow, now)

    def move_plan(self, plan: Plan, now: float) -> None:
        """Continue the plan's flow in the lane of its present class, by its present deadline."""
        flow = self._flows.get(plan, {}).get(False)
        if flow is None or not self._has_classes:
            return
        self._detach(flow)
        target = self.lanes.all[LANE_OF_CLASS[plan.priority]]
        if flow.lane is not target:
            # A virtual time means nothing in another lane.
            flow.lane, flow.start = target, 0.0
        for line in flow.lines.values():
            flow.note_ready(line)
        if flow.next_line() is not None:
            self._enter(flow, now)

    def reweigh_plan(self, plan: Plan, before: float, now: float) -> None:
        """The plan's weight was another one `before`. Another flow may be first now, for which there is room."""
        for flow in self._flows.get(plan, {}).values():
            self.lanes.reweigh(flow, before, now)
            self._agenda.unfilled[self] = None

    def forget_plan(self, plan: Plan) -> None:
        for flow in self._flows.pop(plan, {}).values():
            self._detach(flow)

    # What goes in and out

    def fill(self, actions: list[Action], now: float) -> None:
        """Start what can be started.

        A chunk that does not fit into the window holds back lower lanes as well: letting them pass would keep the
        window full. One that lacks anything else is parked, and the next line is looked at.
        """
        lanes, window = self.lanes, self.window
        chunk_bytes, room = window.chunk_bytes, window.nbytes
        while lanes.backlogged:
            lane = lanes.next(self.outstanding_bytes, now)
            flow = lane.flows[0][2]
            line = flow.next_line()
            if line is None:
                lanes.leave_first(lane, flow)
                continue
            progress = line.waiting[0][2]
            length = progress.length - progress.dispatched
            if self._has_long_chunks:
                chunk_bytes, room = self._lengths(lane, now)
            # A quarter of a chunk is not worth a request of its own, so it joins the last one.
            if length > chunk_bytes + chunk_bytes // 4 or progress.redo is not None or progress.budget is not None:
                length = self._next_length(progress, chunk_bytes)
            outstanding = self.outstanding_bytes
            if outstanding and (
                window.is_measuring or outstanding + length > room + (0 if lane.index else self.limits.urgent_bytes)
            ):
                return
            if self.is_gate and self._yields(lane, length, now):
                return
            if line.is_plain or not self._lacks(line, progress, length, now):
                chunk = self._take(line, progress, length, now)
                lanes.charge(lane, flow, length, now)
                actions.append(StartChunk(progress.transfer_id, chunk, now - progress.submitted_at))
        # There is room and nothing to start.
        window.is_limited = True

    def let_through(self, lane: int, length: int, now: float) -> None:
        """A chunk of another link, from a line in the lane, goes through this one's device."""
        self.window.note_start(now, self.outstanding_bytes)
        self.outstanding_bytes += length
        self.lanes.note_passing(lane, length, now)

    def settle(self, length: int, started_at: float, now: float) -> None:
        """A chunk has left the device, with its bytes moved."""
        self._let_out(length)
        self.window.note_end(now, length, started_at, self.outstanding_bytes)

    def drop(self, length: int, now: float) -> None:
        """A chunk has left the device that has failed or been given up."""
        self._let_out(length)
        self.window.note_dropped(now)

    def _let_out(self, length: int) -> None:
        self.outstanding_bytes -= length
        assert self.outstanding_bytes >= 0, "more bytes left the device than entered it"

    def set_aside(self, length: int, now: float) -> None:
        """A chunk is stuck in the device: others need not wait for it to leave."""
        self.outstanding_bytes -= length
        self.stalled_bytes += length
        self.window.give_up_measuring(now)

    def bring_back(self, length: int) -> None:
        """It leaves after all."""
        self.stalled_bytes -= length
        self.outstanding_bytes += length

    # As a gate

    def may_take(self, line: Line, length: int, now: float) -> bool:
        """As a gate."""
        return not self.waiters.precede(line, now) and self.has_room(line, length, now)

    def has_room(self, line: Line, length: int, now: float) -> bool:
        """As a gate: by urgency, and in turns with what waits here itself."""
        own = self.lanes.first()
        if own is not None and not self._precedes(line, own, now):
            return False
        extra = 0 if line.lane else self.limits.urgent_bytes
        reserved = self.waiters.reserved_against(line, line.lane)
        return self.window.has_room(self.outstanding_bytes + reserved, length, extra)

    def note_waiter(self, line: Line, now: float) -> None:
        """The line is about to be parked here."""
        lane = self.lanes.all[line.lane]
        if not lane.flows and not self.waiters.has(line.lane):
            self.lanes.begin(lane, now)

    def _yields(self, lane: Lane, length: int, now: float) -> bool:
        """Whether this link's own transfers of a lane leave their turn to lines that are parked here."""
        if lane is not self.lanes.first():
            # An overdue lane goes first.
            return False
        first = self.waiters.turn or self.waiters.first(now)
        if first is not None and self._precedes(first, lane, now):
            return True
        reserved = self.waiters.reserved_against(None, lane.index)
        return reserved > 0 and not self.window.has_room(self.outstanding_bytes + reserved, length, 0)

    def _precedes(self, line: Line, own: Lane, now: float) -> bool:
        """Whether a line of another link goes before what waits here itself."""
        if line.lane != own.index:
            return line.lane < own.index or self.lanes.overtakes(line, now)
        return 0 < line.ticket < own.ticket

    # What is known (for statistics, invariants and the order between links)

    def resources(self) -> Iterator[Resource]:
        """What lines may be parked on here: the link as a gate, and its peers."""
        yield self
        yield from self._peers.values()

    def flows(self) -> Iterator[Flow]:
        for flows in self._flows.values():
            yield from flows.values()

    def waiting(self) -> list[TransferProgress]:
        """Every transfer of which something waits, in no particular order."""
        return [progress for flow in self.flows() for line in flow.lines.values() for progress in line.live()]

    def rank(self) -> tuple[int, float]:
        """How urgent the first thing that waits here is; for the order between links that share a resource."""
        lane = self.lanes.first()
        return (len(LaneIndex), 0.0) if lane is None else (lane.index, lane.served_at)

    def could_start(self, now: float) -> bool:
        """Whether the chunk that is next could be started."""
        if self.lanes.first() is None or self.lanes.somebody_aged(now):
            # Whose turn it is changes with time alone, and shows when time passes.
            return False
        lane = self.lanes.next(self.outstanding_bytes, now)
        line = lane.flows[0][2].next_line()
        if line is None:
            return False
        chunk_bytes, room = self._lengths(lane, now)
        length = self._next_length(line.waiting[0][2], chunk_bytes)
        extra = room - self.window.nbytes + (0 if lane.index else self.limits.urgent_bytes)
        has_room = self.window.has_room(self.outstanding_bytes, length, extra)
        return has_room and not (self.is_gate and self._yields(lane, length, now))

    # Lines

    def _line_of(self, progress: TransferProgress) -> Line:
        transfer, plan = progress.transfer, progress.payer
        write_back = transfer.write_back and self._has_classes
        flows = self._flows.get(plan)
        if flows is None:
            flows = self._flows[plan] = {}
        flow = flows.get(write_back)
        if flow is None:
            index = WRITE_BACK if write_back else LANE_OF_CLASS[plan.priority] if self._has_classes else NORMAL
            flow = flows[write_back] = Flow(self, plan, self.lanes.all[index])
        key = (transfer.peer, progress.budget, progress.gate)
        line = flow.lines.get(key)
        if line is None:
            line = self._open_line(flow, progress)
            flow.add(key, line)
        return line

    def _open_line(self, flow: Flow, progress: TransferProgress) -> Line:
        transfer = progress.transfer
        peer = None
        if transfer.peer is not None and self.limits.peer_bytes is not None:
            peer = self._peers.get(transfer.peer)
            if peer is None:
                peer = self._peers[transfer.peer] = PeerBudget(self._peer_bytes())
        is_plain = progress.budget is None and progress.gate is None and peer is None
        name, rank = (transfer.peer, transfer.rank) if self._is_fair else (None, 0)
        return Line(flow, name, peer, progress.budget, rank, is_plain=is_plain)

    def _peer_bytes(self) -> int:
        """As many chunks for each peer, whatever their length: one that is slow must not fill a small window."""
        limits = self.limits
        assert limits.peer_bytes is not None, "the link has peers"
        return limits.peer_bytes * self.window.chunk_bytes // limits.chunk_bytes

    def _enter(self, flow: Flow, now: float) -> None:
        """Something in the flow may be started."""
        if not flow.backlogged:
            lane = flow.lane
            if not lane.flows:
                lane.ticket = self._agenda.next_ticket()
                if not self.waiters.has(lane.index):
                    self.lanes.begin(lane, now)
            self.lanes.enter(flow, now)
        elif not self._is_fair:
            self.lanes.reorder(flow, now)

    def _detach(self, flow: Flow) -> None:
        """Out of its lane, and of what its lines are parked on."""
        self.lanes.leave((flow,))
        self._agenda.unfilled[self] = None
        for line in flow.lines.values():
            self._drop_reservations(line)
            if line.parked_on is not None:
                line.parked_on.waiters.remove(line)
                self._agenda.freed[line.parked_on] = None
                line.parked_on = None

    # Chunks

    def _lengths(self, lane: Lane, now: float) -> tuple[int, int]:
        """Of a chunk and of what may be inside the device. Long chunks are cut short while something more urgent is
        expected, which would wait for them; where it has no room of its own, fewer bytes are let in, too."""
        window, limits = self.window, self.limits
        chunk_bytes, shortest = window.chunk_bytes, limits.smallest_chunk_bytes
        if self._has_long_chunks and chunk_bytes > shortest:
            for other in self.lanes.all[: lane.index]:
                if other.flows or 0.0 < other.served_at > now - EXPECTED_SECONDS:
                    return shortest, window.nbytes if limits.urgent_bytes else window.short_nbytes
        return chunk_bytes, window.nbytes

    def _next_length(self, progress: TransferProgress, chunk_bytes: int) -> int:
        if progress.redo is not None:
            return progress.redo[-1].length
        length = progress.length - progress.dispatched
        if length > chunk_bytes + chunk_bytes // 4:
            length = chunk_bytes
        if progress.by_chunk and progress.budget is not None and length > progress.budget.left:
            length = progress.budget.left // self.limits.alignment * self.limits.alignment
        return length

    def _lacks(self, line: Line, progress: TransferProgress, length: int, now: float) -> bool:
        """Park the line if its next chunk lacks anything but room on this link."""
        budget, gate, peer = progress.budget, progress.gate, line.peer
        if budget is not None and not progress.has_credit:
            line.needs = length if progress.by_chunk else progress.length
            if not budget.may_take(line, line.needs, now):
                holder = line.take_holder()
                if holder is None:
                    return self._park(line, budget, now)
                # Others may wait for the credit that it holds: it must not wait for theirs.
                holder.entry = (line.waiting[0][0] - 1, holder.sequence, holder)
                heappush(line.waiting, holder.entry)
                line.flow.note_ready(line)
                return True
        line.needs = length
        if gate is not None:
            gate.is_gate = gate.is_shared = True
            if not gate.may_take(line, length, now):
                return self._park(line, gate, now)
        if peer is not None:
            peer.nbytes = self._peer_bytes()
            if not peer.may_take(line, length, now):
                return self._park(line, peer, now)
        return False

    def _park(self, line: Line, resource: Resource, now: float) -> bool:
        """The line is the next one of the first flow of its lane."""
        flow = line.flow
        # Credit may be kept while waiting for what devices give back by themselves, but not the other way round.
        if line.reserved:
            self._drop_reservations(line, keep=None if resource is line.budget else line.budget)
        line.parked_on = resource
        if flow.next_line() is None:
            self.lanes.leave_first(flow.lane, flow)
        if line.ticket:
            # It takes its old place, before others that may have gone before somebody themselves.
            self._agenda.freed[resource] = None
        else:
            line.ticket, line.waits_since = self._agenda.next_ticket(), now
            if isinstance(resource, LinkQueue):
                resource.note_waiter(line, now)
        resource.waiters.add(line)
        return True

    def _take(self, line: Line, progress: TransferProgress, length: int, now: float) -> Extent:
        """Account for a chunk that goes into the device."""
        if not line.is_plain:
            self._take_others(line, progress, length, now)
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
        flow = line.flow
        if line.peer_name is not None:
            flow.charge(line, length)
        if progress.dispatched == progress.length and progress.redo is None:
            progress.entry = None
            heappop(line.waiting)
        if flow.sole is None:
            flow.note_served(line)
        if self.is_gate:
            flow.lane.ticket = self._agenda.next_ticket()
            if self.waiters.count:
                self._agenda.freed[self] = None
        return chunk

    def _take_others(self, line: Line, progress: TransferProgress, length: int, now: float) -> None:
        """What the chunk takes besides room on this link."""
        budget = progress.budget
        if budget is not None and not progress.has_credit:
            need = length if progress.by_chunk else progress.length
            budget.take(progress.plan, need)
            progress.credited += need
            if budget.waiters.count:
                # Plans that now hold less than this one go first.
                self._agenda.freed[budget] = None
        gate = progress.gate
        if gate is not None:
            gate.let_through(line.lane, length, now)
            if gate.waiters.count:
                # A lane may be behind its reservation now.
                self._agenda.freed[gate] = None
        if line.peer is not None:
            line.peer.take(length)
        if line.ticket:
            self._end_turn(line)

    def _end_turn(self, line: Line) -> None:
        """It was served, or nothing waits in it: it has no place to keep."""
        line.ticket = 0
        line.was_missed = False
        if line.reserved:
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
