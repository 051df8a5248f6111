"""What waits on a link: lines of transfers, flows of a plan, lanes of flows.

A line is what can be parked: the transfers of one plan that need the same things besides room on the link. Another
stage of the plan, with a pool of its own, must not wait behind it: what a stage waits for may depend on later stages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop
from typing import TYPE_CHECKING

from pystachio.io_scheduler.progress import Plan, TransferProgress
from pystachio.io_scheduler.resources import CreditBudget, PeerBudget, Resource

if TYPE_CHECKING:
    from pystachio.io_scheduler.link_queue import LinkQueue


class Line:
    """Transfers that wait for the same things, most critical first.

    `ticket` and `waits_since` are set while it has been parked since it was last served, and keep its place when it is
    parked again; `was_missed` says that it had its turn in the meantime, and no room on its link.
    """

    __slots__ = (
        "budget",
        "flow",
        "holding",
        "needs",
        "parked_on",
        "reserved",
        "ticket",
        "waiting",
        "waits_since",
        "was_missed",
    )

    def __init__(self, flow: Flow, budget: CreditBudget | None) -> None:
        self.flow = flow
        self.budget = budget
        self.waiting: list[tuple[int, int, TransferProgress]] = []
        self.holding: list[TransferProgress] = []
        """Transfers that hold credit and stand behind others."""
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
    """The lines of one plan (with one peer) on one link, which is served between them in a fair share.

    `ready` are the lines that are not parked. `start` is the virtual time at which its next chunk is due, a deadline in
    the interactive lane. `remaining` bytes wait in it, if it is one of several `of_peer`.
    """

    __slots__ = (
        "backlogged",
        "lane",
        "of_peer",
        "peer",
        "plan",
        "queue",
        "rank",
        "ready",
        "remaining",
        "share",
        "start",
    )

    def __init__(
        self, queue: LinkQueue, share: Share, lane: Lane, peer: PeerBudget | None, rank: int, *, of_peer: bool
    ) -> None:
        self.queue = queue
        self.share = share
        self.plan = share.plan
        self.lane = lane
        self.peer = peer
        self.rank = rank
        self.of_peer = of_peer
        self.start = 0.0
        self.remaining = 0
        self.backlogged = False
        self.ready: list[Line] = []

    def next_line(self) -> Line | None:
        """The line whose head is the most critical; None when nothing waits that is not parked."""
        found: Line | None = None
        for line in self.ready:
            if line.head() is not None and (found is None or line.waiting[0] < found.waiting[0]):
                found = line
        return found


@dataclass(slots=True, eq=False)
class Share:
    """What a plan has on one link. `taken` bytes it was served; `remaining` bytes wait in its backlogged flows."""

    plan: Plan
    taken: int = 0
    remaining: int = 0
    flows: dict[tuple[bool, str | None], Flow] = field(default_factory=dict)
    lines: dict[tuple[bool, str | None, CreditBudget | None, LinkQueue | None], Line] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Lane:
    """The backlogged flows, earliest first. `balance` is how many bytes it is behind its reservation.

    `served_at` is when it was last served or began to wait; `ticket` tells the same by the order of events.
    """

    index: int
    reservation: float
    virtual_time: float = 0.0
    flows: list[tuple[float, int, int, Flow]] = field(default_factory=list)
    balance: float = 0.0
    settled_at: int = 0
    served_at: float = 0.0
    ticket: int = 0

    def settle(self, total: int, most_ahead: float) -> None:
        """Credit the reservation for what the link has served since, up to `total` bytes.

        What the lane was served beyond its reservation counts for so many bytes at most.
        """
        balance = self.balance + self.reservation * (total - self.settled_at)
        self.settled_at = total
        self.balance = max(balance, -self.reservation * most_ahead)
