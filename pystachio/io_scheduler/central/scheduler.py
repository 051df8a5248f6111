"""The central service's core: from what nodes report to the order of plans in the whole cluster, published as leases.

One per cluster, on any node. It decides nothing that anybody waits for: plans start by their own class, and chunks go
by the last lease, or by local fairness when there is none. What it adds is what no node can see by itself: a change of
class or deadline reaches every node, and weights follow what plans got everywhere (`fairness`).

A node hears from it once a second while it runs plans: a lease, or a renewal where nothing changed. Changes of class
and deadline are sent at once, but at most every `CHANGE_SECONDS`. That makes two messages a second and node, reports
included, where one GPU alone moves 3,000 chunks.

Whoever takes over is given a higher epoch, and asks every node to join it. Nodes tell with their messages which lease
they keep: the new centre goes on from its weights, the old one falls silent when it hears of a higher epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pystachio.io_scheduler.central.cluster_plans import ClusterPlans
from pystachio.io_scheduler.central.events import (
    JoinRequested,
    LeasePublished,
    LeaseRenewed,
    NodeJoined,
    NodeLost,
    NodeReported,
    Publish,
)
from pystachio.io_scheduler.core.events import TimePassed
from pystachio.io_scheduler.core.request import Lease, PlanOrder

LEASE_SECONDS = 3.0
RENEWAL_SECONDS = 1.0
CHANGE_SECONDS = 0.1

LEASE_PLANS = 256
"""Plans that one lease names."""
PLANS = 16_384
"""Plans that a centre knows of. More of them run by their own class and weight, and so do those no lease names."""

_SAME_WEIGHT = 0.02
"""Weights that differ by less are not worth a lease of their own."""

CentralEvent = NodeReported | NodeJoined | NodeLost | TimePassed


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralStatistics:
    """`unnamed_plans` found no place in the latest leases, `refused_plans` none in the centre's books: both run by
    their own rank. `refused_facts` were nonsense. A `superseded` centre is silent: there is one of a higher epoch.
    """

    epoch: int
    nodes: int
    plans: int
    leases: int
    renewals: int
    unnamed_plans: int
    refused_plans: int
    refused_facts: int
    superseded: bool


@dataclass(slots=True, eq=False)
class _Holder:
    """A node as the publisher sees it: `heard` is its last message, `held` what it says to keep.

    `full` is the last lease that named plans, published at `full_at`; renewals came after it.
    """

    heard: int
    held: tuple[int, int] | None
    full: Lease | None = None
    full_at: float = 0.0
    published_at: float | None = None
    unnamed: int = 0


class Central:
    """`handle` what nodes report and return what to send; call it with `TimePassed` when `next_wake` has come."""

    def __init__(self, epoch: int, *, plans: int = PLANS, lease_plans: int = LEASE_PLANS) -> None:
        self.epoch = epoch
        self._lease_plans = lease_plans
        self._plans = ClusterPlans(plans)
        self._holders: dict[str, _Holder] = {}
        self._renew_at: float | None = None
        self._now = 0.0
        self._sequence = 0
        self._leases = 0
        self._renewals = 0
        self._superseded = False

    def handle(self, event: CentralEvent, now: float) -> list[Publish]:
        """`now` in seconds of any clock; one that goes backwards stands still."""
        self._now = now = max(now, self._now)
        published: list[Publish] = []
        match event:
            case NodeReported():
                self._take_report(event, published)
            case NodeJoined():
                self._join(event)
            case NodeLost(node):
                self._holders.pop(node, None)
                self._plans.remove_node(node)
            case TimePassed():
                pass
            case _:
                assert_never(event)
        if not self._superseded:
            self._renew(published)
            self._publish_changes(published)
        return published

    def next_wake(self) -> float | None:
        """When `TimePassed` is due; None while no node runs a plan."""
        if self._superseded:
            return None
        times = [self._change_time(self._holders[name]) for name in self._plans.changed]
        if self._renew_at is not None:
            times.append(self._renew_at)
        return min(times, default=None)

    def statistics(self) -> CentralStatistics:
        return CentralStatistics(
            epoch=self.epoch,
            nodes=len(self._holders),
            plans=len(self._plans),
            leases=self._leases,
            renewals=self._renewals,
            unnamed_plans=sum(holder.unnamed for holder in self._holders.values()),
            refused_plans=self._plans.refused_plans,
            refused_facts=self._plans.refused_facts,
            superseded=self._superseded,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when the books do not agree."""
        self._plans.check_invariants()
        busy = set(self._plans.nodes())
        assert busy <= self._holders.keys()
        assert self._superseded or not busy or self._renew_at is not None, "whoever runs plans is renewed"

    def _take_report(self, report: NodeReported, published: list[Publish]) -> None:
        holder = self._holders.get(report.node)
        if holder is None or report.sequence > holder.heard + 1:
            # Facts were missed.
            published.append(Publish(report.node, JoinRequested()))
        elif report.sequence == holder.heard + 1:
            holder.heard, holder.held = report.sequence, report.held
            self._note_epoch(report.held)
            self._plans.take(report.node, report.facts, report.seconds, self._now)
            self._expect_renewals()

    def _join(self, event: NodeJoined) -> None:
        known = self._holders.get(event.node)
        if known is not None and event.sequence <= known.heard:
            return
        held = None if event.held is None else (event.held.epoch, event.held.sequence)
        holder = self._holders[event.node] = _Holder(event.sequence, held)
        if known is not None:
            holder.published_at = known.published_at
        self._note_epoch(held)
        self._plans.add_node(event.node)
        self._plans.take(event.node, event.facts, 0.0, self._now)
        if event.held is not None:
            self._plans.adopt(event.node, event.held)
        if event.node in self._plans.nodes():
            self._plans.changed.add(event.node)
        self._expect_renewals()

    def _note_epoch(self, held: tuple[int, int] | None) -> None:
        self._superseded |= held is not None and held[0] > self.epoch

    def _expect_renewals(self) -> None:
        if self._renew_at is None and len(self._plans):
            self._renew_at = self._now + RENEWAL_SECONDS

    def _renew(self, published: list[Publish]) -> None:
        if self._renew_at is None or self._now < self._renew_at:
            return
        self._plans.balance(self._now)
        busy = self._plans.nodes()
        published.extend(self._renewal(name, self._holders[name]) for name in busy)
        self._renew_at = self._now + RENEWAL_SECONDS if busy else None

    def _publish_changes(self, published: list[Publish]) -> None:
        for name in sorted(self._plans.changed):
            holder = self._holders[name]
            if self._change_time(holder) <= self._now:
                published.append(self._publication(name, holder))

    def _change_time(self, holder: _Holder) -> float:
        return self._now if holder.published_at is None else max(self._now, holder.published_at + CHANGE_SECONDS)

    def _renewal(self, name: str, holder: _Holder) -> Publish:
        """The whole lease again if something changed, or if it seems not to have arrived."""
        full = holder.full
        if full is None or holder.held != (self.epoch, full.sequence) or not self._is_valid(name, full, holder.full_at):
            return self._publication(name, holder)
        self._sequence += 1
        holder.published_at = self._now
        self._renewals += 1
        return Publish(name, LeaseRenewed(self.epoch, self._sequence, full.sequence, LEASE_SECONDS, holder.heard))

    def _is_valid(self, name: str, lease: Lease, published_at: float) -> bool:
        orders, _ = self._plans.orders(name, self._lease_plans, self._now)
        return name not in self._plans.changed and says_the_same(lease.plans, orders, self._now - published_at)

    def _publication(self, name: str, holder: _Holder) -> Publish:
        orders, holder.unnamed = self._plans.orders(name, self._lease_plans, self._now)
        self._sequence += 1
        holder.full = Lease(self.epoch, self._sequence, LEASE_SECONDS, orders)
        holder.full_at = holder.published_at = self._now
        self._plans.changed.discard(name)
        self._leases += 1
        return Publish(name, LeasePublished(holder.full, holder.heard))


def says_the_same(before: tuple[PlanOrder, ...], after: tuple[PlanOrder, ...], seconds: float) -> bool:
    """Whether orders of `seconds` ago still hold; that they name plans which have ended does no harm."""
    known = {order.plan_id: order for order in before}
    for order in after:
        old = known.get(order.plan_id)
        if old is None or old.priority != order.priority or abs(old.weight / order.weight - 1.0) > _SAME_WEIGHT:
            return False
        if old.due_seconds is None or order.due_seconds is None:
            if old.due_seconds is not order.due_seconds:
                return False
        elif abs(old.due_seconds - seconds - order.due_seconds) > CHANGE_SECONDS:
            return False
    return True
