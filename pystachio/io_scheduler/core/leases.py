"""What the centre's leases change on a node: classes and weights of the plans they name, until they end.

A lease may come late, twice, from a centre that was replaced, or be nonsense; none of that stops a plan. What was
changed on this node itself goes before a lease that has not followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pystachio.io_scheduler.core.progress import Plan
from pystachio.io_scheduler.core.request import Lease, PlanOrder, PriorityClass

LONGEST_LEASE_SECONDS = 60.0
LARGEST_CORRECTION = 64.0
"""By which a lease may multiply or divide a plan's own weight: no lease can starve a plan."""
LONGEST_DEADLINE_SECONDS = 86_400.0
"""An interactive plan that is due later than all others waits for them: no lease may have it wait for ever."""
SAME_DEADLINE_SECONDS = 0.05
"""Deadlines in leases are relative to their arrival, which differs from message to message."""

_CLASSES = frozenset(PriorityClass)


class Rank(NamedTuple):
    """The weight of a plan from now on, and the class in which it must be queued anew: None leaves it where it is."""

    plan: Plan
    weight: float
    priority: PriorityClass | None


class Leases:
    """`ends` is when the lease in force does, None without one."""

    __slots__ = ("_latest", "ends")

    def __init__(self) -> None:
        self.ends: float | None = None
        self._latest: tuple[int, int] | None = None

    def in_force(self) -> tuple[int, int] | None:
        """Epoch and sequence."""
        return self._latest if self.ends is not None else None

    def take(self, lease: Lease, plans: Mapping[str, Plan], now: float) -> list[Rank]:
        """Leases that are superseded or make no sense change nothing."""
        if not 0.0 < lease.seconds <= LONGEST_LEASE_SECONDS:
            return []
        if self._latest is not None and (lease.epoch, lease.sequence) <= self._latest:
            return []
        self._latest = (lease.epoch, lease.sequence)
        self.ends = now + lease.seconds
        orders = {order.plan_id: order for order in lease.plans if _is_sound(order)}
        ranks = []
        for plan in plans.values():
            order = orders.get(plan.plan_id)
            ranks.append(_fall_back(plan) if order is None else _follow(plan, order, now))
        return ranks

    def end(self, plans: Iterable[Plan]) -> list[Rank]:
        """Fall back to what the plans brought along."""
        self.ends = None
        return [_fall_back(plan) for plan in plans]


def _is_sound(order: PlanOrder) -> bool:
    return math.isfinite(order.weight) and order.weight > 0.0 and order.priority in _CLASSES


def _follow(plan: Plan, order: PlanOrder, now: float) -> Rank:
    correction = order.weight / plan.local_weight
    weight = plan.local_weight * max(1.0 / LARGEST_CORRECTION, min(LARGEST_CORRECTION, correction))
    if order.priority == plan.local_priority:
        plan.priority_is_local = False
    if plan.priority_is_local:
        return Rank(plan, weight, None)
    is_due_otherwise = False
    if order.due_seconds is not None and abs(order.due_seconds) <= LONGEST_DEADLINE_SECONDS:
        due = now + order.due_seconds
        is_due_otherwise = plan.deadline is None or abs(plan.deadline - due) > SAME_DEADLINE_SECONDS
        plan.deadline = due if is_due_otherwise else plan.deadline
    moves = is_due_otherwise or order.priority != plan.priority
    return Rank(plan, weight, PriorityClass(order.priority) if moves else None)


def _fall_back(plan: Plan) -> Rank:
    moves = plan.priority != plan.local_priority
    return Rank(plan, plan.local_weight, plan.local_priority if moves else None)
