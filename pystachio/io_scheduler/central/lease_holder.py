"""A node's side of the central service: what it reports, and what it makes of the leases that arrive.

Nothing here waits for the centre. The node's own word on a plan goes before a lease that was published before the
centre had heard of it; a lease from the past or without sense is counted and dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite
from typing import NamedTuple, assert_never

from pystachio.io_scheduler.central.events import (
    CentralMessage,
    JoinRequested,
    LeasePublished,
    LeaseRenewed,
    NodeFact,
    NodeJoined,
    NodeMessage,
    NodeReported,
    PlanAdmitted,
    PlanEnded,
    PlanRank,
    PlanReranked,
    PlanUsage,
)
from pystachio.io_scheduler.central.fairness import LinkClass
from pystachio.io_scheduler.core.request import Lease, PlanOrder, PriorityClass

REPORT_SECONDS = 1.0
"""Between reports while plans run."""
SOON_SECONDS = 0.1
"""What comes up in this time goes into one report. Plans that end sooner are no business of the centre."""
WAITING_CHUNKS = 0.5
"""A plan with so many chunks in queues on average (Little: queue seconds per second) wants more than it gets."""

LONGEST_LEASE_SECONDS = 60.0
MOST_ORDERS = 4096
"""A lease that names more plans, or is valid for longer, is a mistake."""

_SAME_DEADLINE_SECONDS = 0.1
_CLASSES = frozenset(PriorityClass)


class Served(NamedTuple):
    """What a plan has moved through the node's links of a class so far, and how long its chunks have queued there."""

    plan_id: str
    link_class: LinkClass
    nbytes: int
    queue_seconds: float


class Reranking(NamedTuple):
    """The plan's class or deadline was changed on another node; `due_at` is in this node's time."""

    plan_id: str
    priority: PriorityClass
    due_at: float | None


class Taken(NamedTuple):
    """`lease` is for the scheduler; what was changed elsewhere is to last beyond the lease."""

    lease: Lease | None
    rerankings: tuple[Reranking, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseHolderStatistics:
    """`reports` were sent. Leases and renewals were `granted`, came too late (`stale`) or made no sense (`refused`)."""

    plans: int
    reports: int
    granted: int
    stale: int
    refused: int


@dataclass(slots=True, eq=False)
class _Plan:
    """`changed_in` is the number of the report with a change of rank that no lease has answered yet; `unsent` if it is
    still to be made.
    """

    priority: PriorityClass
    weight: float
    due_at: float | None
    announced: bool = False
    unsent: bool = False
    changed_in: int | None = None

    def rank(self, plan_id: str, now: float) -> PlanRank:
        return PlanRank(plan_id, self.priority, self.weight, None if self.due_at is None else self.due_at - now)

    def is_unheard(self) -> bool:
        return self.unsent or self.changed_in is not None


class LeaseHolder:
    """Sans-io: `report` when `next_wake` has come, `take` what arrives; `now` in seconds of the node's clock."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._plans: dict[str, _Plan] = {}
        self._ended: list[str] = []
        self._served: dict[tuple[str, LinkClass], tuple[int, float]] = {}
        self._must_join = True
        self._sequence = 0
        self._sent_at: float | None = None
        self._since = 0.0
        self._due_at: float | None = None
        self._lease: Lease | None = None
        self._lease_at = 0.0
        self._latest = (-1, -1)
        self._granted = 0
        self._stale = 0
        self._refused = 0

    def plan_started(
        self, plan_id: str, priority: PriorityClass, now: float, *, weight: float = 1.0, due_at: float | None = None
    ) -> None:
        """The plan runs already, by its own rank."""
        if not self._plans:
            self._since = now
        self._plans[plan_id] = _Plan(priority, weight, due_at)
        self._send_within(now, SOON_SECONDS, REPORT_SECONDS)

    def plan_reranked(self, plan_id: str, priority: PriorityClass, now: float, *, due_at: float | None = None) -> None:
        """Somebody changed the plan's rank on this node. A `due_at` of None leaves the deadline as it is."""
        plan = self._plans.get(plan_id)
        if plan is None or (plan.priority == priority and due_at in (None, plan.due_at)):
            return
        plan.priority = priority
        plan.due_at = plan.due_at if due_at is None else due_at
        plan.unsent = True
        self._send_within(now, 0.0, SOON_SECONDS)

    def plan_ended(self, plan_id: str) -> None:
        plan = self._plans.pop(plan_id, None)
        if plan is not None and plan.announced:
            self._ended.append(plan_id)
        elif not self._plans and not self._ended:
            self._due_at = None

    def centre_changed(self, now: float) -> None:
        """Another centre took over, or the way to it is there again: it knows nothing of this node."""
        self._must_join = True
        if self._plans:
            self._send_within(now, 0.0, SOON_SECONDS)

    def plans(self) -> tuple[str, ...]:
        """Of which the next report tells the usage."""
        return tuple(self._plans)

    def next_wake(self) -> float | None:
        """When a report is due; None while the node runs no plan that lasts."""
        return self._due_at

    def report(self, served: Iterable[Served], now: float) -> NodeMessage:
        """What to send to the centre now."""
        seconds = now - self._since
        self._sequence += 1
        facts = (*self._ranks(now), *(PlanEnded(plan_id) for plan_id in self._ended))
        usages = self._usages(served, seconds)
        message: NodeMessage
        if self._must_join:
            # Plans that ended are simply not among those that it has.
            facts = tuple(fact for fact in facts if not isinstance(fact, PlanEnded))
            message = NodeJoined(self.node, self._sequence, facts, self._lease)
        else:
            held = None if self._lease is None else (self._lease.epoch, self._lease.sequence)
            message = NodeReported(self.node, self._sequence, seconds, (*facts, *usages), held)
        self._ended.clear()
        self._must_join = False
        self._sent_at = self._since = now
        self._due_at = now + REPORT_SECONDS if self._plans else None
        return message

    def take(self, message: CentralMessage, now: float) -> Taken:
        """What a message of the centre, however old, changes here."""
        match message:
            case LeasePublished(lease, heard):
                return self._take_lease(lease, heard, now)
            case LeaseRenewed():
                return self._take_renewal(message, now)
            case JoinRequested():
                self.centre_changed(now)
                return Taken(None)
            case _:
                assert_never(message)

    def statistics(self) -> LeaseHolderStatistics:
        return LeaseHolderStatistics(len(self._plans), self._sequence, self._granted, self._stale, self._refused)

    def _send_within(self, now: float, first: float, between: float) -> None:
        """Have a report sent `first` seconds from now, but not sooner than `between` after the last."""
        due_at = now + first if self._sent_at is None else max(now + first, self._sent_at + between)
        self._due_at = due_at if self._due_at is None else min(self._due_at, due_at)

    def _ranks(self, now: float) -> list[NodeFact]:
        facts: list[NodeFact] = []
        for plan_id, plan in self._plans.items():
            if self._must_join or not plan.announced:
                plan.announced = True
                facts.append(PlanAdmitted(plan.rank(plan_id, now)))
            if plan.unsent or (self._must_join and plan.is_unheard()):
                plan.unsent, plan.changed_in = False, self._sequence
                facts.append(PlanReranked(plan.rank(plan_id, now)))
        return facts

    def _usages(self, served: Iterable[Served], seconds: float) -> list[PlanUsage]:
        """What was moved since the last report. A plan that moves nothing is told of while it waits."""
        before, self._served = self._served, {}
        usages = []
        for plan_id, link_class, nbytes, queue_seconds in served:
            if plan_id not in self._plans:
                continue
            key = (plan_id, link_class)
            self._served[key] = (nbytes, queue_seconds)
            bytes_before, seconds_before = before.get(key, (0, 0.0))
            waits = queue_seconds - seconds_before > WAITING_CHUNKS * seconds
            if nbytes > bytes_before or waits:
                usages.append(PlanUsage(plan_id, link_class, nbytes - bytes_before, waits))
        return usages

    def _take_lease(self, lease: Lease, heard: int, now: float) -> Taken:
        if not is_sound(lease):
            self._refused += 1
            return Taken(None)
        if not self._is_news(lease.epoch, lease.sequence):
            return Taken(None)
        self._lease, self._lease_at = lease, now
        self._note_heard(heard)
        return Taken(self._own_word(lease), self._rerankings(lease, now))

    def _take_renewal(self, renewed: LeaseRenewed, now: float) -> Taken:
        lease = self._lease
        if lease is None or (lease.epoch, lease.sequence) != (renewed.epoch, renewed.renews):
            # The next report says what is held here, and the centre sends the whole.
            self._stale += 1
            return Taken(None)
        passed = now - self._lease_at
        orders = tuple(_later(order, passed) for order in lease.plans)
        renewal = Lease(renewed.epoch, renewed.sequence, renewed.seconds, orders)
        if not is_sound(renewal):
            self._refused += 1
            return Taken(None)
        if not self._is_news(renewed.epoch, renewed.sequence):
            return Taken(None)
        self._note_heard(renewed.heard)
        return Taken(self._own_word(renewal))

    def _is_news(self, epoch: int, sequence: int) -> bool:
        if (epoch, sequence) <= self._latest:
            self._stale += 1
            return False
        self._latest = (epoch, sequence)
        self._granted += 1
        return True

    def _note_heard(self, heard: int) -> None:
        for plan in self._plans.values():
            if plan.changed_in is not None and plan.changed_in <= heard:
                plan.changed_in = None

    def _own_word(self, lease: Lease) -> Lease:
        if not any(plan.is_unheard() for plan in self._plans.values()):
            return lease
        return replace(lease, plans=tuple(self._corrected(order) for order in lease.plans))

    def _corrected(self, order: PlanOrder) -> PlanOrder:
        plan = self._plans.get(order.plan_id)
        if plan is None or not plan.is_unheard():
            return order
        return PlanOrder(order.plan_id, plan.priority, plan.weight)

    def _rerankings(self, lease: Lease, now: float) -> tuple[Reranking, ...]:
        rerankings = []
        for plan_id, priority, _, due_seconds in lease.plans:
            plan = self._plans.get(plan_id)
            if plan is None or plan.is_unheard():
                continue
            due_at = plan.due_at if due_seconds is None else now + due_seconds
            if plan.priority == priority and _is_same_time(plan.due_at, due_at):
                continue
            plan.priority, plan.due_at = priority, due_at
            rerankings.append(Reranking(plan_id, priority, due_at))
        return tuple(rerankings)


def is_sound(lease: Lease) -> bool:
    """Whether a lease can be meant: it ends, its classes exist and its weights are positive numbers."""
    return (
        0.0 < lease.seconds <= LONGEST_LEASE_SECONDS
        and len(lease.plans) <= MOST_ORDERS
        and all(
            order.priority in _CLASSES
            and isfinite(order.weight)
            and order.weight > 0.0
            and (order.due_seconds is None or isfinite(order.due_seconds))
            for order in lease.plans
        )
    )


def _later(order: PlanOrder, seconds: float) -> PlanOrder:
    """The same order, told `seconds` later."""
    return order if order.due_seconds is None else order._replace(due_seconds=order.due_seconds - seconds)


def _is_same_time(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _SAME_DEADLINE_SECONDS
