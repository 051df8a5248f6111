"""What waits on a link: lines of transfers, and the flow of each plan.

A line is what can be parked: the transfers of one plan that need the same things besides room on the link. Another
stage of the plan, with a pool of its own, must not wait behind it: what a stage waits for may depend on later stages.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from pystachio.io_scheduler.core.progress import Plan, TransferProgress
from pystachio.io_scheduler.core.resources import CreditBudget, PeerBudget, Resource

if TYPE_CHECKING:
    from pystachio.io_scheduler.core.lanes import Lane
    from pystachio.io_scheduler.core.link_queue import LinkQueue

Entry = tuple[int, float, int, int, int, "Line"]
"""Criticality (the highest first), start, rank and arrival of the first transfer, and a number of its own."""


class Line:
    """Transfers that wait for the same things, most critical first.

    On a network, `start` is the virtual time of the line in its flow; `remaining` bytes wait in it, and `share` did
    when something was last added. `ticket` and `waits_since` are set while it has been parked since it was last served,
    and keep its place when it is parked again; `was_missed` says that it had its turn in the meantime, and no room on
    its link.
    """

    __slots__ = (
        "budget",
        "entry",
        "flow",
        "holding",
        "is_plain",
        "needs",
        "parked_on",
        "peer",
        "peer_name",
        "rank",
        "remaining",
        "reserved",
        "share",
        "start",
        "ticket",
        "waiting",
        "waits_since",
        "was_missed",
    )

    def __init__(
        self,
        flow: Flow,
        peer_name: str | None,
        peer: PeerBudget | None,
        budget: CreditBudget | None,
        rank: int,
        *,
        is_plain: bool,
    ) -> None:
        self.flow = flow
        self.peer_name = peer_name
        self.is_plain = is_plain
        """It needs nothing but room on the link."""
        self.peer = peer
        self.budget = budget
        self.rank = rank
        self.waiting: list[tuple[int, int, TransferProgress]] = []
        self.holding: list[TransferProgress] = []
        """Transfers that hold credit and stand behind others."""
        self.entry: Entry | None = None
        """Its place among the lines of its flow."""
        self.start = 0.0
        self.remaining = 0
        self.share = 0
        self.parked_on: Resource | None = None
        self.needs = 0
        self.ticket = 0
        self.waits_since = 0.0
        self.was_missed = False
        self.reserved: tuple[Resource, ...] = ()
        """Resources that keep what it needs of them until there is room on its link."""

    @property
    def lane(self) -> int:
        return self.flow.lane.index

    @property
    def plan_id(self) -> str:
        return self.flow.plan.plan_id

    def head(self) -> TransferProgress | None:
        """The next transfer; entries that were cancelled or moved are dropped on the way."""
        waiting = self.waiting
        while waiting:
            entry = waiting[0]
            progress = entry[2]
            if progress.entry is entry:
                return progress
            heappop(waiting)
        return None

    def live(self) -> list[TransferProgress]:
        """What really waits, in no particular order."""
        return [entry[2] for entry in self.waiting if entry[2].entry is entry]

    def take_holder(self) -> TransferProgress | None:
        """A transfer behind the head that needs no more credit: others may wait for what it holds."""
        while self.holding:
            progress = self.holding.pop()
            if progress.line is self and progress.entry is not None and progress.has_credit:
                return progress
        return None

    def note_holder(self, progress: TransferProgress) -> None:
        self.holding = [each for each in self.holding if each.line is self and each.entry is not None]
        self.holding.append(progress)


class Flow:
    """The lines of one plan on one link; flows have their shares of the link by their plans' weights.

    `start` is the virtual time at which its next chunk is due, a deadline in the interactive lane; `taken` bytes it was
    served. Between its lines, the most critical goes first. Lines of several peers are served in proportion to what
    waits in them: all peers then finish together, which is the optimal schedule of an exchange in the fluid limit.
    """

    __slots__ = (
        "_entries",
        "_order",
        "_virtual_time",
        "backlogged",
        "lane",
        "lines",
        "plan",
        "queue",
        "sole",
        "start",
        "taken",
    )

    def __init__(self, queue: LinkQueue, plan: Plan, lane: Lane) -> None:
        self.queue = queue
        self.plan = plan
        self.lane = lane
        self.start = 0.0
        self.taken = 0
        self.backlogged = False
        self.lines: dict[object, Line] = {}
        self.sole: Line | None = None
        """The only line, as long as there is but one: it needs no order."""
        self._order: list[Entry] = []
        self._entries = 0
        self._virtual_time = 0.0

    def add(self, key: object, line: Line) -> None:
        self.lines[key] = line
        if len(self.lines) == 1:
            self.sole = line
        elif self.sole is not None:
            first, self.sole = self.sole, None
            self.note_ready(first)

    def next_line(self) -> Line | None:
        """The line that is next; None when nothing waits that is not parked."""
        line = self.sole
        if line is not None:
            return line if line.parked_on is None and line.head() is not None else None
        order = self._order
        while order:
            entry = order[0]
            line = entry[5]
            if line.entry is entry and line.parked_on is None and line.head() is not None:
                criticality, arrival, _ = line.waiting[0]
                if criticality == entry[0] and arrival == entry[3]:
                    return line
                # What it was put in order by has been cancelled.
                heapreplace(order, self._enter(line))
            else:
                if line.entry is entry:
                    line.entry = None
                heappop(order)
        return None

    def note_ready(self, line: Line) -> None:
        """The line has a new head, or is not parked any more."""
        if self.sole is None and line.parked_on is None and line.head() is not None:
            heappush(self._order, self._enter(line))

    def count(self, line: Line, nbytes: int) -> None:
        """So many bytes more wait in the line of a peer. It has no credit for the time without."""
        if not line.remaining:
            line.start = max(line.start, self._virtual_time)
        line.remaining += nbytes
        line.share = line.remaining

    def charge(self, line: Line, length: int) -> None:
        """The line of a peer, which was next, has been served."""
        self._virtual_time = max(self._virtual_time, line.start)
        line.start += length / line.share
        line.remaining -= length

    def note_served(self, line: Line) -> None:
        """The line, which was next and is not the only one, may come after others now."""
        if line.head() is None:
            line.entry = None
            heappop(self._order)
        else:
            heapreplace(self._order, self._enter(line))

    def _enter(self, line: Line) -> Entry:
        self._entries += 1
        criticality, arrival, _ = line.waiting[0]
        line.entry = (criticality, line.start, line.rank, arrival, self._entries, line)
        return line.entry
