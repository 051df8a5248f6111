"""The central service's books: which plans there are, which nodes run them, and what they got lately."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite, log, prod
from typing import assert_never

from pystachio.io_scheduler.central.events import (
    NodeFact,
    PlanAdmitted,
    PlanEnded,
    PlanRank,
    PlanReranked,
    PlanUsage,
)
from pystachio.io_scheduler.central.fairness import (
    LARGEST_FACTOR,
    SMALLEST_FACTOR,
    LinkClass,
    SharedLink,
    balance,
    forget,
)
from pystachio.io_scheduler.core.request import Lease, PlanOrder, PriorityClass

LARGEST_WEIGHT = 1e6
STALE_SECONDS = 3.0
"""Usage that was reported longer ago says nothing of the present."""

_BALANCED = (PriorityClass.NORMAL, PriorityClass.BATCH)
"""Interactive plans are served by deadline, not by weight."""


@dataclass(slots=True, eq=False)
class _Plan:
    """`due_at` is in the centre's own time."""

    priority: PriorityClass
    weight: float
    due_at: float | None
    nodes: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Node:
    """By plan: `factors` correct its own weight here, and `usage` is bytes per second by link class with whether it
    wanted more.
    """

    factors: dict[str, float] = field(default_factory=dict)
    usage: dict[str, dict[LinkClass, tuple[float, bool]]] = field(default_factory=dict)
    reported_at: float = 0.0


class ClusterPlans:
    """`changed` are the nodes whose latest lease is wrong about a class or a deadline; the publisher clears it."""

    def __init__(self, most_plans: int) -> None:
        self.changed: set[str] = set()
        self.refused_plans = 0
        self.refused_facts = 0
        self._most_plans = most_plans
        self._plans: dict[str, _Plan] = {}
        self._nodes: dict[str, _Node] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def add_node(self, name: str) -> None:
        """A node that runs nothing yet, in place of what was known of it."""
        self.remove_node(name)
        self._nodes[name] = _Node()

    def remove_node(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is not None:
            for plan_id in tuple(node.factors):
                self._end(name, node, plan_id)
            del self._nodes[name]

    def take(self, name: str, facts: Iterable[NodeFact], seconds: float, now: float) -> None:
        """What happened on the node in the last `seconds`; the usage told before is void."""
        node = self._nodes[name]
        node.usage.clear()
        node.reported_at = now
        for fact in facts:
            match fact:
                case PlanAdmitted(rank):
                    self._admit(name, node, rank, now)
                case PlanReranked(rank):
                    self._rerank(node, rank, now)
                case PlanEnded(plan_id):
                    self._end(name, node, plan_id)
                case PlanUsage():
                    self._use(node, fact, seconds)
                case _:
                    assert_never(fact)

    def adopt(self, name: str, lease: Lease) -> None:
        """Go on from the weights that the node has, perhaps from an earlier centre."""
        factors = self._nodes[name].factors
        for order in lease.plans:
            if order.plan_id in factors and _is_weight(order.weight):
                factor = order.weight / self._plans[order.plan_id].weight
                factors[order.plan_id] = max(SMALLEST_FACTOR, min(LARGEST_FACTOR, factor))

    def balance(self, now: float) -> None:
        """Correct the weights by what plans got in the whole cluster since the last time."""
        nodes = [node for node in self._nodes.values() if now - node.reported_at <= STALE_SECONDS]
        for priority in _BALANCED:
            corrections: dict[tuple[int, str], list[float]] = {}
            for link_class in {link_class for node in nodes for usage in node.usage.values() for link_class in usage}:
                self._balance_class(nodes, priority, link_class, corrections)
            for number, node in enumerate(nodes):
                for plan_id, factor in node.factors.items():
                    if self._plans[plan_id].priority == priority:
                        found = corrections.get((number, plan_id))
                        node.factors[plan_id] = _mean(found) if found else forget(factor)

    def nodes(self) -> list[str]:
        """Those that run plans."""
        return [name for name, node in self._nodes.items() if node.factors]

    def orders(self, name: str, most: int, now: float) -> tuple[tuple[PlanOrder, ...], int]:
        """The order of the node's plans, and how many of them found no place among `most`.

        Those are named first whose order differs most from what the node would do by itself.
        """
        factors = self._nodes[name].factors
        plan_ids = sorted(factors)
        if len(plan_ids) > most:
            plan_ids.sort(key=lambda plan_id: (self._plans[plan_id].due_at is None, -abs(log(factors[plan_id]))))
        named = tuple(self._order(plan_id, factors[plan_id], now) for plan_id in plan_ids[:most])
        return named, len(plan_ids) - len(named)

    def check_invariants(self) -> None:
        """Raise AssertionError when the books of nodes and plans do not agree."""
        for name, node in self._nodes.items():
            assert all(name in self._plans[plan_id].nodes for plan_id in node.factors)
            assert all(SMALLEST_FACTOR <= factor <= LARGEST_FACTOR for factor in node.factors.values())
            assert node.usage.keys() <= node.factors.keys()
        for plan_id, plan in self._plans.items():
            assert plan.nodes, "a plan that no node runs is forgotten"
            assert all(plan_id in self._nodes[name].factors for name in plan.nodes)
        assert self.changed <= set(self.nodes())
        assert len(self._plans) <= self._most_plans

    def _admit(self, name: str, node: _Node, rank: PlanRank, now: float) -> None:
        if not _is_rank(rank):
            self.refused_facts += 1
            return
        plan = self._plans.get(rank.plan_id)
        if plan is None:
            if len(self._plans) >= self._most_plans:
                self.refused_plans += 1
                return
            plan = self._plans[rank.plan_id] = _Plan(rank.priority, rank.weight, _due_at(rank, now))
        elif plan.priority != rank.priority or plan.due_at is not None:
            self.changed.add(name)
        plan.nodes.add(name)
        node.factors.setdefault(rank.plan_id, 1.0)

    def _rerank(self, node: _Node, rank: PlanRank, now: float) -> None:
        if not _is_rank(rank):
            self.refused_facts += 1
            return
        if rank.plan_id not in node.factors:
            return
        plan = self._plans[rank.plan_id]
        if plan.priority != rank.priority:
            # What it got among the plans of its old class says nothing of the new one.
            plan.priority = rank.priority
            for name in plan.nodes:
                self._nodes[name].factors[rank.plan_id] = 1.0
        if rank.due_seconds is not None:
            plan.due_at = _due_at(rank, now)
        self.changed |= plan.nodes

    def _end(self, name: str, node: _Node, plan_id: str) -> None:
        if plan_id not in node.factors:
            return
        del node.factors[plan_id]
        node.usage.pop(plan_id, None)
        if not node.factors:
            self.changed.discard(name)
        plan = self._plans[plan_id]
        plan.nodes.discard(name)
        if not plan.nodes:
            del self._plans[plan_id]

    def _use(self, node: _Node, usage: PlanUsage, seconds: float) -> None:
        if usage.plan_id not in node.factors:
            return
        if usage.nbytes < 0 or not isfinite(seconds) or seconds <= 0.0:
            self.refused_facts += 1
            return
        rate = usage.nbytes / seconds
        node.usage.setdefault(usage.plan_id, {})[usage.link_class] = (rate, usage.waits)

    def _balance_class(
        self,
        nodes: list[_Node],
        priority: PriorityClass,
        link_class: LinkClass,
        corrections: dict[tuple[int, str], list[float]],
    ) -> None:
        """Note the next factors for this class of links by node and plan."""
        shared: list[SharedLink] = []
        numbers: list[int] = []
        elsewhere: dict[str, float] = {}
        weights: dict[str, float] = {}
        for number, node in enumerate(nodes):
            rate = 0.0
            factors = {}
            for plan_id, usage in node.usage.items():
                plan = self._plans[plan_id]
                if plan.priority != priority or link_class not in usage:
                    continue
                served, waits = usage[link_class]
                if waits:
                    rate += served
                    factors[plan_id], weights[plan_id] = node.factors[plan_id], plan.weight
                else:
                    elsewhere[plan_id] = elsewhere.get(plan_id, 0.0) + served
            if rate > 0.0:
                shared.append(SharedLink(rate, factors))
                numbers.append(number)
        for number, balanced in zip(numbers, balance(shared, weights, elsewhere), strict=True):
            for plan_id, factor in balanced.items():
                corrections.setdefault((number, plan_id), []).append(factor)

    def _order(self, plan_id: str, factor: float, now: float) -> PlanOrder:
        plan = self._plans[plan_id]
        due_seconds = None if plan.due_at is None else plan.due_at - now
        return PlanOrder(plan_id, plan.priority, plan.weight * factor, due_seconds)


def _mean(factors: list[float]) -> float:
    """The one weight of a plan on a node serves all of its link classes there."""
    return factors[0] if len(factors) == 1 else round(prod(factors) ** (1.0 / len(factors)), 4)


def _due_at(rank: PlanRank, now: float) -> float | None:
    return None if rank.due_seconds is None else now + rank.due_seconds


def _is_weight(weight: float) -> bool:
    return isfinite(weight) and 1.0 / LARGEST_WEIGHT <= weight <= LARGEST_WEIGHT


def _is_rank(rank: PlanRank) -> bool:
    return _is_weight(rank.weight) and (rank.due_seconds is None or isfinite(rank.due_seconds))
