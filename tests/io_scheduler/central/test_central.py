"""The central service: tables of events and what is published, and random histories."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pystachio.io_scheduler.central.events import (
    JoinRequested,
    LeasePublished,
    LeaseRenewed,
    NodeFact,
    NodeJoined,
    NodeLost,
    NodeReported,
    PlanAdmitted,
    PlanEnded,
    PlanRank,
    PlanReranked,
    PlanUsage,
    Publish,
)
from pystachio.io_scheduler.central.fairness import LARGEST_FACTOR, SMALLEST_FACTOR, LinkClass
from pystachio.io_scheduler.central.scheduler import (
    CHANGE_SECONDS,
    LEASE_SECONDS,
    RENEWAL_SECONDS,
    Central,
    says_the_same,
)
from pystachio.io_scheduler.core.events import TimePassed
from pystachio.io_scheduler.core.request import Direction, Lease, PlanOrder, PriorityClass

INTERACTIVE, NORMAL, BATCH = PriorityClass
DISK = LinkClass("disk", Direction.READ)
NAN, INFINITY = float("nan"), float("inf")


def admitted(plan_id: str, priority: PriorityClass = BATCH, weight: float = 1.0) -> PlanAdmitted:
    return PlanAdmitted(PlanRank(plan_id, priority, weight))


def used(plan_id: str, nbytes: int, *, waits: bool = True) -> PlanUsage:
    return PlanUsage(plan_id, DISK, nbytes, waits)


class Cluster:
    """A centre and the numbers of what its nodes sent."""

    def __init__(self, centre: Central | None = None) -> None:
        self.centre = centre if centre is not None else Central(1)
        self.sequences: dict[str, int] = {}
        self.held: dict[str, tuple[int, int]] = {}

    def join(self, node: str, *facts: NodeFact, at: float = 0.0, held: Lease | None = None) -> list[Publish]:
        return self.note(self.centre.handle(NodeJoined(node, self.number(node), facts, held), at))

    def report(self, node: str, *facts: NodeFact, at: float, seconds: float = 1.0) -> list[Publish]:
        report = NodeReported(node, self.number(node), seconds, facts, self.held.get(node))
        return self.note(self.centre.handle(report, at))

    def wake(self, at: float) -> list[Publish]:
        return self.note(self.centre.handle(TimePassed(), at))

    def number(self, node: str) -> int:
        self.sequences[node] = self.sequences.get(node, 0) + 1
        return self.sequences[node]

    def note(self, published: list[Publish]) -> list[Publish]:
        """The nodes take what is published, and say so with their next report."""
        self.centre.check_invariants()
        for node, message in published:
            if isinstance(message, LeasePublished):
                self.held[node] = (message.lease.epoch, message.lease.sequence)
        return published


def leases(published: list[Publish]) -> dict[str, dict[str, PlanOrder]]:
    return {
        node: {order.plan_id: order for order in message.lease.plans}
        for node, message in published
        if isinstance(message, LeasePublished)
    }


def test_a_node_that_joins_gets_a_lease_of_its_own_plans_at_once() -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("elsewhere"))
    assert cluster.join("n2", admitted("a", weight=2.0), admitted("b", NORMAL)) == [
        Publish(
            "n2",
            LeasePublished(
                Lease(1, 2, LEASE_SECONDS, (PlanOrder("a", BATCH, 2.0), PlanOrder("b", NORMAL, 1.0))), heard=1
            ),
        )
    ]


def test_nothing_is_due_while_nobody_runs_a_plan() -> None:
    cluster = Cluster()
    assert cluster.join("n1") == []
    assert cluster.centre.next_wake() is None
    cluster.report("n1", admitted("a"), at=1.0)
    assert cluster.centre.next_wake() == 1.0 + RENEWAL_SECONDS
    assert cluster.report("n1", PlanEnded("a"), at=1.5) == []
    assert cluster.wake(2.0) == []
    assert cluster.centre.next_wake() is None


def test_what_does_not_change_is_renewed_in_short() -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("a"))
    cluster.report("n1", used("a", 100), at=0.5)
    assert cluster.wake(1.0) == [Publish("n1", LeaseRenewed(1, 2, renews=1, seconds=LEASE_SECONDS, heard=2))]
    assert cluster.wake(2.0) == [Publish("n1", LeaseRenewed(1, 3, renews=1, seconds=LEASE_SECONDS, heard=2))]
    cluster.report("n1", admitted("b"), at=2.5)
    assert leases(cluster.wake(3.0)) == {"n1": {"a": PlanOrder("a", BATCH, 1.0), "b": PlanOrder("b", BATCH, 1.0)}}


def test_a_lease_that_a_node_does_not_hold_is_sent_whole_again() -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("a"))
    cluster.held.clear()
    cluster.report("n1", at=0.5)
    assert leases(cluster.wake(1.0)).keys() == {"n1"}


def test_a_change_of_class_reaches_every_node_at_once() -> None:
    cluster = Cluster()
    for node in ("n1", "n2", "n3"):
        cluster.join(node, *([admitted("a")] if node != "n3" else [admitted("b")]))
    published = cluster.report("n1", PlanReranked(PlanRank("a", INTERACTIVE)), at=0.5)
    assert leases(published) == {node: {"a": PlanOrder("a", INTERACTIVE, 1.0)} for node in ("n1", "n2")}


def test_changes_are_published_at_most_every_100_ms() -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("a"))
    published = 0
    for tick in range(100):
        at = tick / 100
        changed = PlanRank("a", BATCH if tick % 2 else NORMAL)
        published += len(cluster.report("n1", PlanReranked(changed), at=at))
        wake = cluster.centre.next_wake()
        assert wake is not None
        if wake <= at + 0.01:
            published += len(cluster.wake(wake))
    assert published <= 1.0 / CHANGE_SECONDS + 1


def test_a_part_of_a_plan_that_starts_later_follows_the_class_that_the_plan_has_now() -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("a"))
    cluster.report("n1", PlanReranked(PlanRank("a", INTERACTIVE)), at=0.5)
    assert leases(cluster.join("n2", admitted("a"), at=0.7)) == {"n2": {"a": PlanOrder("a", INTERACTIVE, 1.0)}}


def test_deadlines_are_told_in_seconds_from_now() -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("a", INTERACTIVE))
    cluster.join("n2", admitted("a", INTERACTIVE))
    published = cluster.report("n1", PlanReranked(PlanRank("a", INTERACTIVE, due_seconds=10.0)), at=1.0)
    assert leases(published)["n2"]["a"].due_seconds == 10.0
    cluster.report("n2", at=1.5)
    cluster.report("n1", at=1.5)
    renewed = cluster.wake(2.0)
    assert all(isinstance(message, LeaseRenewed) for _, message in renewed), "a deadline that comes closer is the same"
    cluster.held.clear()
    cluster.report("n2", at=2.9)
    assert leases(cluster.wake(3.0))["n2"]["a"].due_seconds == 8.0


def test_a_report_that_is_missing_makes_the_node_join_again() -> None:
    cluster = Cluster()
    assert cluster.report("n1", admitted("a"), at=0.0) == [Publish("n1", JoinRequested())]
    cluster.join("n1", admitted("a"))
    cluster.number("n1")
    assert cluster.report("n1", PlanEnded("a"), at=1.0)[0] == Publish("n1", JoinRequested())
    assert cluster.centre.statistics().plans == 1
    cluster.join("n1", at=1.5)
    assert cluster.centre.statistics().plans == 0


def test_old_and_doubled_reports_change_nothing() -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("a"))
    report = NodeReported("n1", 2, 1.0, (PlanEnded("a"), admitted("b")))
    cluster.centre.handle(report, 1.0)
    cluster.centre.handle(NodeJoined("n1", 1, (admitted("a"),)), 1.1)
    cluster.centre.handle(replace(report, sequence=1), 1.2)
    assert cluster.centre.handle(report, 1.3) == []
    assert cluster.centre.statistics().plans == 1


def test_a_lost_node_takes_only_its_own_part_along() -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("a"), admitted("b"))
    cluster.join("n2", admitted("b"))
    cluster.centre.handle(NodeLost("n1"), 1.0)
    cluster.centre.handle(NodeLost("never seen"), 1.0)
    cluster.centre.check_invariants()
    assert (cluster.centre.statistics().plans, cluster.centre.statistics().nodes) == (1, 1)


def test_a_node_that_comes_back_gets_leases_newer_than_those_it_knows() -> None:
    cluster = Cluster()
    first = cluster.join("n1", admitted("a"))[0].message
    cluster.centre.handle(NodeLost("n1"), 1.0)
    again = cluster.join("n1", admitted("a"), at=2.0)[0].message
    assert isinstance(first, LeasePublished)
    assert isinstance(again, LeasePublished)
    assert again.lease.sequence > first.lease.sequence


def test_the_next_centre_goes_on_from_the_weights_of_the_last() -> None:
    held = Lease(1, 77, 3.0, (PlanOrder("a", BATCH, 0.25), PlanOrder("b", BATCH, 40.0), PlanOrder("gone", BATCH, 1.0)))
    cluster = Cluster(Central(2))
    orders = leases(cluster.join("n1", admitted("a"), admitted("b", weight=10.0), held=held))["n1"]
    assert (orders["a"].weight, orders["b"].weight) == (0.25, 40.0)


def test_nonsense_in_an_adopted_lease_is_ignored() -> None:
    held = Lease(1, 77, 3.0, (PlanOrder("a", BATCH, NAN), PlanOrder("b", BATCH, 1e300), PlanOrder("c", BATCH, 1e4)))
    cluster = Cluster(Central(2))
    orders = leases(cluster.join("n1", admitted("a"), admitted("b"), admitted("c"), held=held))["n1"]
    assert [order.weight for order in orders.values()] == [1.0, 1.0, LARGEST_FACTOR]


def test_a_centre_that_hears_of_a_higher_epoch_falls_silent() -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("a"))
    cluster.held["n1"] = (2, 1)
    assert cluster.report("n1", PlanReranked(PlanRank("a", NORMAL)), at=1.0) == []
    assert cluster.wake(5.0) == []
    assert cluster.centre.statistics().superseded
    assert cluster.centre.next_wake() is None


@pytest.mark.parametrize(
    "fact",
    [
        admitted("x", weight=NAN),
        admitted("x", weight=0.0),
        admitted("x", weight=-1.0),
        admitted("x", weight=1e300),
        PlanAdmitted(PlanRank("x", BATCH, 1.0, INFINITY)),
        PlanReranked(PlanRank("a", NORMAL, 1.0, NAN)),
        used("a", -1),
    ],
)
def test_nonsense_is_counted_and_dropped(fact: NodeFact) -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("a"))
    cluster.report("n1", fact, at=1.0)
    assert cluster.centre.statistics().refused_facts == 1
    assert cluster.centre.statistics().plans == 1


@pytest.mark.parametrize("seconds", [0.0, -1.0, NAN, INFINITY])
def test_usage_without_a_time_is_refused(seconds: float) -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("a"))
    cluster.report("n1", used("a", 5), at=1.0, seconds=seconds)
    assert cluster.centre.statistics().refused_facts == 1


def test_facts_about_plans_that_do_not_run_there_are_harmless() -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("a"))
    cluster.join("n2", PlanEnded("a"), used("a", 5), PlanReranked(PlanRank("a", INTERACTIVE)), PlanEnded("ghost"))
    assert leases(cluster.wake(1.0))["n1"]["a"].priority is BATCH


def test_a_lease_names_those_that_differ_most_when_it_cannot_name_all() -> None:
    cluster = Cluster(Central(1, lease_plans=2))
    held = Lease(0, 1, 3.0, (PlanOrder("b", BATCH, 3.0), PlanOrder("d", BATCH, 0.2), PlanOrder("a", BATCH, 1.1)))
    orders = leases(cluster.join("n1", *(admitted(plan) for plan in "abcd"), held=held))["n1"]
    assert orders.keys() == {"b", "d"}
    assert cluster.centre.statistics().unnamed_plans == 2


def test_more_plans_than_a_centre_knows_run_by_their_own_rank() -> None:
    cluster = Cluster(Central(1, plans=3))
    cluster.join("n1", *(admitted(plan) for plan in "abcde"))
    assert (cluster.centre.statistics().plans, cluster.centre.statistics().refused_plans) == (3, 2)
    cluster.report("n1", PlanEnded("d"), PlanEnded("a"), at=1.0)
    assert cluster.centre.statistics().plans == 2


def test_time_may_jump() -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("a"), at=100.0)
    assert len(cluster.wake(1e9)) == 1
    assert cluster.wake(50.0) == []
    assert len(cluster.wake(1e9 + 1.0)) == 1


def test_weights_follow_what_plans_get_everywhere() -> None:
    """Plan a on four nodes, b on one of them; the nodes report what fair queues made of the last lease."""
    cluster = Cluster()
    weights = {node: {"a": 1.0} for node in ("n1", "n2", "n3", "n4")}
    weights["n1"]["b"] = 1.0
    for node, plans in weights.items():
        cluster.join(node, *(admitted(plan) for plan in plans))
    totals = {"a": 0.0, "b": 0.0}
    for second in range(1, 9):
        totals = {"a": 0.0, "b": 0.0}
        for node, plans in weights.items():
            got = {plan: round(1e9 * weight / sum(plans.values())) for plan, weight in plans.items()}
            totals = {plan: total + got.get(plan, 0) for plan, total in totals.items()}
            cluster.report(node, *(used(plan, nbytes) for plan, nbytes in got.items()), at=second - 0.5)
        for node, orders in leases(cluster.wake(second)).items():
            weights[node] = {plan: order.weight for plan, order in orders.items()}
    assert totals["b"] == pytest.approx(1e9, rel=0.03)
    assert totals["a"] == pytest.approx(3e9, rel=0.03)


def test_equal_plans_on_one_node_keep_their_weights_whatever_they_happen_to_get() -> None:
    cluster = Cluster()
    cluster.join("n1", admitted("a"), admitted("b"))
    for second in range(1, 20):
        cluster.report("n1", used("a", 100 + second), used("b", 300 - second), at=second - 0.5)
        assert all(isinstance(message, LeaseRenewed) for _, message in cluster.wake(second))


def test_interactive_plans_are_not_balanced_and_silent_nodes_do_not_count() -> None:
    cluster = Cluster()
    for node, plans in (("n1", "ab"), ("n2", "a")):
        cluster.join(node, *(admitted(plan, INTERACTIVE) for plan in plans))
        cluster.report(node, *(used(plan, 100) for plan in plans), at=0.5)
    assert all(isinstance(message, LeaseRenewed) for _, message in cluster.wake(1.0))
    cluster = Cluster()
    for node, plans in (("n1", "ab"), ("n2", "a")):
        cluster.join(node, *(admitted(plan) for plan in plans))
        cluster.report(node, *(used(plan, 100) for plan in plans), at=0.5)
    assert leases(cluster.wake(0.5 + LEASE_SECONDS + 1.0)) == {}


def test_orders_are_the_same_when_only_time_has_passed() -> None:
    before = (PlanOrder("a", BATCH, 1.0, 10.0), PlanOrder("ended", BATCH, 1.0))
    assert says_the_same(before, (PlanOrder("a", BATCH, 1.01, 8.0),), 2.0)
    assert not says_the_same(before, (PlanOrder("a", BATCH, 1.0, 10.0),), 2.0)
    assert not says_the_same(before, (PlanOrder("a", BATCH, 1.0),), 2.0)
    assert not says_the_same(before, (PlanOrder("a", NORMAL, 1.0, 8.0),), 2.0)
    assert not says_the_same(before, (PlanOrder("a", BATCH, 1.2, 8.0),), 2.0)
    assert not says_the_same(before, (PlanOrder("new", BATCH, 1.0),), 2.0)


NODES = ("n1", "n2", "n3")
ANY_NODE = st.sampled_from(NODES)
ANY_PLAN = st.sampled_from("abcdef")
ANY_CLASS = st.sampled_from(PriorityClass)
ANY_NUMBER = st.one_of(st.floats(0.1, 10.0), st.sampled_from([0.0, -1.0, NAN, INFINITY, 1e300]))
ANY_RANK = st.builds(PlanRank, ANY_PLAN, ANY_CLASS, ANY_NUMBER, st.none() | ANY_NUMBER)
ANY_FACT = st.one_of(
    st.builds(PlanAdmitted, ANY_RANK),
    st.builds(PlanReranked, ANY_RANK),
    st.builds(PlanEnded, ANY_PLAN),
    st.builds(
        PlanUsage,
        ANY_PLAN,
        st.sampled_from([DISK, LinkClass("network", Direction.WRITE)]),
        st.integers(-1, 1 << 50),
        st.booleans(),
    ),
)
ANY_FACTS = st.lists(ANY_FACT, max_size=8).map(tuple)


class CentralHistory(RuleBasedStateMachine):
    """Nodes that say anything in any order, and a clock that goes anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = Central(5, plans=4, lease_plans=3)
        self.now = 0.0
        self.latest = 0
        self.sent: dict[str, float] = {}

    def check(self, published: list[Publish]) -> None:
        for node, message in published:
            assert node in NODES
            if isinstance(message, JoinRequested):
                continue
            epoch, sequence = (
                (message.lease.epoch, message.lease.sequence)
                if isinstance(message, LeasePublished)
                else (message.epoch, message.sequence)
            )
            assert epoch == 5
            assert sequence > self.latest, "nodes take every lease for news"
            self.latest = sequence
            assert self.now - self.sent.get(node, -1.0) >= CHANGE_SECONDS * 0.999
            self.sent[node] = self.now
            if isinstance(message, LeasePublished):
                assert len(message.lease.plans) <= 3
                for order in message.lease.plans:
                    assert SMALLEST_FACTOR * 0.1 <= order.weight <= LARGEST_FACTOR * 10.0
            else:
                assert message.renews < message.sequence

    @rule(node=ANY_NODE, sequence=st.integers(0, 30), facts=ANY_FACTS, epoch=st.integers(3, 5))
    def join(self, node: str, sequence: int, facts: tuple[NodeFact, ...], epoch: int) -> None:
        held = Lease(epoch, 1, 3.0, (PlanOrder("a", BATCH, 4.0),))
        self.check(self.centre.handle(NodeJoined(node, sequence, facts, held), self.now))

    @rule(
        node=ANY_NODE,
        sequence=st.integers(0, 30),
        facts=ANY_FACTS,
        seconds=ANY_NUMBER,
        held=st.none() | st.tuples(st.integers(3, 5), st.integers(0, 9)),
    )
    def report(
        self, node: str, sequence: int, facts: tuple[NodeFact, ...], seconds: float, held: tuple[int, int] | None
    ) -> None:
        self.check(self.centre.handle(NodeReported(node, sequence, seconds, facts, held), self.now))

    @rule(node=ANY_NODE)
    def lose(self, node: str) -> None:
        self.check(self.centre.handle(NodeLost(node), self.now))
        self.sent.pop(node, None)

    @rule(seconds=st.floats(0.0, 3.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.check(self.centre.handle(TimePassed(), self.now))
        wake = self.centre.next_wake()
        assert wake is None or wake > self.now, "a wake-up does what was due"

    @rule(seconds=st.floats(0.0, 100.0))
    def hear_of_the_past(self, seconds: float) -> None:
        self.check(self.centre.handle(TimePassed(), self.now - seconds))

    @invariant()
    def books_agree(self) -> None:
        self.centre.check_invariants()
        assert not self.centre.statistics().superseded


CentralHistory.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestCentralHistory = CentralHistory.TestCase
