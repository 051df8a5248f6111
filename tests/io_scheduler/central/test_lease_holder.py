"""A node's side of the central service: when it reports what, and which leases it passes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.io_scheduler.central.events import (
    CentralMessage,
    JoinRequested,
    LeasePublished,
    LeaseRenewed,
    NodeJoined,
    NodeReported,
    PlanAdmitted,
    PlanEnded,
    PlanRank,
    PlanReranked,
    PlanUsage,
)
from pystachio.io_scheduler.central.fairness import LinkClass
from pystachio.io_scheduler.central.lease_holder import (
    REPORT_SECONDS,
    SOON_SECONDS,
    LeaseHolder,
    Reranking,
    Served,
    Taken,
)
from pystachio.io_scheduler.core.request import Direction, Lease, PlanOrder, PriorityClass

INTERACTIVE, NORMAL, BATCH = PriorityClass
DISK = LinkClass("disk", Direction.READ)
NAN, INFINITY = float("nan"), float("inf")


def holder(*plans: str, joined: bool = True) -> LeaseHolder:
    """A node that runs these batch plans; its first message was number 1."""
    node = LeaseHolder("n1")
    for plan in plans:
        node.plan_started(plan, BATCH, 0.0)
    if joined:
        node.report((), 0.0)
    return node


def lease(sequence: int, *orders: PlanOrder, epoch: int = 1, seconds: float = 3.0) -> Lease:
    return Lease(epoch, sequence, seconds, orders)


def published(sequence: int, *orders: PlanOrder, heard: int = 99, epoch: int = 1) -> LeasePublished:
    return LeasePublished(lease(sequence, *orders, epoch=epoch), heard)


def test_a_node_without_plans_says_nothing() -> None:
    node = LeaseHolder("n1")
    assert node.next_wake() is None
    node.centre_changed(5.0)
    assert node.next_wake() is None


def test_a_plan_that_ends_soon_is_not_mentioned() -> None:
    node = LeaseHolder("n1")
    node.plan_started("a", BATCH, 10.0)
    assert node.next_wake() == 10.0 + SOON_SECONDS
    node.plan_ended("a")
    assert node.next_wake() is None


def test_the_first_report_describes_the_node_and_the_others_what_happened() -> None:
    node = LeaseHolder("n1")
    node.plan_started("a", NORMAL, 0.0, weight=2.0, due_at=30.0)
    assert node.report((), 0.1) == NodeJoined("n1", 1, (PlanAdmitted(PlanRank("a", NORMAL, 2.0, 29.9)),))
    assert node.next_wake() == 0.1 + REPORT_SECONDS
    node.plan_started("b", BATCH, 0.2)
    node.plan_ended("a")
    assert node.next_wake() == 0.1 + REPORT_SECONDS
    facts = (PlanAdmitted(PlanRank("b", BATCH)), PlanEnded("a"))
    assert node.report((), 1.1) == NodeReported("n1", 2, 1.0, facts)
    node.plan_ended("b")
    assert node.report((), 2.1) == NodeReported("n1", 3, 1.0, (PlanEnded("b"),))
    assert node.next_wake() is None


def test_usage_is_what_came_since_the_last_report() -> None:
    node = holder("a", "b")
    first = node.report([Served("a", DISK, 500, 0.6), Served("gone", DISK, 9, 9.0)], 1.0)
    assert first.facts == (PlanUsage("a", DISK, 500, waits=True),)
    second = node.report([Served("a", DISK, 800, 0.7), Served("b", DISK, 0, 0.0)], 2.0)
    assert second.facts == (PlanUsage("a", DISK, 300, waits=False),)
    third = node.report([Served("a", DISK, 800, 1.4), Served("b", DISK, 0, 0.0)], 3.0)
    assert third.facts == (PlanUsage("a", DISK, 0, waits=True),)


def test_time_without_plans_is_not_in_the_report() -> None:
    node = holder("a")
    node.plan_ended("a")
    node.report((), 1.0)
    node.plan_started("b", BATCH, 1000.0)
    report = node.report([Served("b", DISK, 10, 0.2)], 1000.1)
    assert isinstance(report, NodeReported)
    assert report.seconds == pytest.approx(0.1)


def test_a_change_of_class_is_reported_at_once_but_not_too_often() -> None:
    node = holder("a")
    node.plan_reranked("a", NORMAL, 0.5, due_at=7.5)
    assert node.next_wake() == 0.5
    assert node.report((), 0.5).facts == (PlanReranked(PlanRank("a", NORMAL, 1.0, 7.0)),)
    node.plan_reranked("a", BATCH, 0.55)
    assert node.next_wake() == 0.5 + SOON_SECONDS
    node.plan_reranked("a", BATCH, 0.55)
    node.plan_reranked("unknown", BATCH, 0.55)
    assert node.report((), 0.6).facts == (PlanReranked(PlanRank("a", BATCH, 1.0, 6.9)),)


def test_a_lease_is_passed_on_once() -> None:
    node = holder("a")
    order = PlanOrder("a", BATCH, 0.5)
    assert node.take(published(5, order), 1.0) == Taken(lease(5, order))
    assert node.take(published(5, order), 1.1) == Taken(None)
    assert node.take(published(4, PlanOrder("a", NORMAL, 3.0)), 1.2) == Taken(None)
    assert node.report((), 1.3).held == (1, 5)
    assert (node.statistics().granted, node.statistics().stale) == (1, 2)


def test_a_higher_epoch_wins_whatever_its_sequence() -> None:
    node = holder("a")
    node.take(published(900), 1.0)
    assert node.take(published(1, epoch=2), 1.0).lease == lease(1, epoch=2)
    assert node.take(published(901), 1.0).lease is None


def test_a_renewal_extends_the_lease_that_is_held() -> None:
    node = holder("a")
    order = PlanOrder("a", BATCH, 0.5, 60.0)
    renewal = LeaseRenewed(1, 6, renews=5, seconds=3.0, heard=1)
    assert node.take(renewal, 0.5).lease is None, "nothing to renew"
    node.take(published(5, order), 1.0)
    assert node.take(renewal, 2.5).lease == lease(6, PlanOrder("a", BATCH, 0.5, 58.5))
    assert node.take(renewal, 2.6).lease is None, "once"
    assert node.take(LeaseRenewed(1, 8, renews=7, seconds=3.0, heard=1), 3.0).lease is None
    assert node.report((), 3.1).held == (1, 5)


def test_a_change_here_goes_before_a_lease_that_was_published_before_it_was_heard_of() -> None:
    node = holder("a", "b")
    node.plan_reranked("a", INTERACTIVE, 1.0)
    orders = (PlanOrder("a", BATCH, 0.5), PlanOrder("b", BATCH, 2.0))
    corrected = (PlanOrder("a", INTERACTIVE, 1.0), PlanOrder("b", BATCH, 2.0))
    assert node.take(published(5, *orders, heard=1), 1.0) == Taken(lease(5, *corrected))
    assert node.report((), 1.1).sequence == 2
    assert node.take(published(6, *orders, heard=1), 1.2) == Taken(lease(6, *corrected))
    answer = node.take(published(7, PlanOrder("a", NORMAL, 1.0), heard=2), 1.3)
    assert answer == Taken(lease(7, PlanOrder("a", NORMAL, 1.0)), (Reranking("a", NORMAL, None),))


def test_a_change_elsewhere_outlasts_the_lease_and_is_not_reported_back() -> None:
    node = holder("a")
    answer = node.take(published(5, PlanOrder("a", INTERACTIVE, 1.0, 20.0)), 1.0)
    assert answer.rerankings == (Reranking("a", INTERACTIVE, 21.0),)
    node.plan_reranked("a", INTERACTIVE, 1.0, due_at=21.0)
    assert node.report((), 2.0).facts == ()
    assert node.take(published(6, PlanOrder("a", INTERACTIVE, 1.0, 19.0)), 2.05).rerankings == ()


def test_a_change_that_was_lost_on_the_way_is_told_again_on_joining() -> None:
    node = holder("a")
    node.plan_reranked("a", INTERACTIVE, 0.5)
    node.report((), 0.5)
    node.take(JoinRequested(), 1.0)
    assert node.next_wake() == 1.0
    rank = PlanRank("a", INTERACTIVE)
    assert node.report((), 1.0) == NodeJoined("n1", 3, (PlanAdmitted(rank), PlanReranked(rank)))
    node.take(published(5, PlanOrder("a", INTERACTIVE, 1.0), heard=3), 1.1)
    node.take(JoinRequested(), 1.2)
    assert node.report((), 1.3).facts == (PlanAdmitted(rank),)


def test_a_new_centre_is_told_the_lease_that_is_held() -> None:
    node = holder("a")
    order = PlanOrder("a", BATCH, 0.5)
    node.take(published(5, order), 1.0)
    node.centre_changed(1.5)
    joined = node.report((), 1.5)
    assert isinstance(joined, NodeJoined)
    assert joined.held == lease(5, order)


@pytest.mark.parametrize(
    "nonsense",
    [
        lease(5, seconds=0.0),
        lease(5, seconds=-1.0),
        lease(5, seconds=NAN),
        lease(5, seconds=INFINITY),
        lease(5, seconds=1e9),
        lease(5, PlanOrder("a", BATCH, NAN)),
        lease(5, PlanOrder("a", BATCH, 0.0)),
        lease(5, PlanOrder("a", BATCH, -1.0)),
        lease(5, PlanOrder("a", BATCH, INFINITY)),
        lease(5, PlanOrder("a", BATCH, 1.0, NAN)),
        lease(5, PlanOrder("a", 17, 1.0)),  # type: ignore[arg-type]
        lease(5, *(PlanOrder(str(plan), BATCH, 1.0) for plan in range(5000))),
    ],
)
def test_a_lease_without_sense_is_counted_and_dropped(nonsense: Lease) -> None:
    node = holder("a")
    assert node.take(LeasePublished(nonsense, 1), 1.0) == Taken(None)
    assert node.statistics().refused == 1
    assert node.take(published(4), 1.0).lease is not None, "and leaves no trace"


def test_a_renewal_without_sense_is_dropped() -> None:
    node = holder("a")
    node.take(published(5), 1.0)
    assert node.take(LeaseRenewed(1, 6, renews=5, seconds=NAN, heard=1), 1.5).lease is None
    assert node.take(LeaseRenewed(1, 7, renews=5, seconds=3.0, heard=1), 1.5).lease is not None


ANY_MESSAGE: st.SearchStrategy[CentralMessage] = st.one_of(
    st.builds(
        LeasePublished,
        st.builds(
            Lease,
            st.integers(0, 3),
            st.integers(0, 9),
            st.sampled_from([3.0, NAN, -1.0]),
            st.lists(
                st.builds(
                    PlanOrder,
                    st.sampled_from("abc"),
                    st.sampled_from(PriorityClass),
                    st.floats(0.0, 9.0),
                    st.none() | st.floats(-9.0, 9.0),
                ),
                max_size=3,
            ).map(tuple),
        ),
        st.integers(0, 20),
    ),
    st.builds(
        LeaseRenewed, st.integers(0, 3), st.integers(0, 9), st.integers(0, 9), st.sampled_from([3.0, NAN]), st.just(1)
    ),
    st.builds(JoinRequested),
)


@given(st.lists(ANY_MESSAGE | st.sampled_from("abc+!"), max_size=30))
def test_whatever_arrives_in_whatever_order_leases_only_go_forward(steps: list[CentralMessage | str]) -> None:
    node = holder("a")
    latest = (-1, -1)
    sequence = 1
    for now, step in enumerate(steps):
        if step == "+":
            message = node.report((), now)
            assert message.sequence == sequence + 1
            sequence = message.sequence
        elif step == "!":
            node.centre_changed(now)
        elif isinstance(step, str):
            node.plan_started(step, BATCH, now)
            node.plan_reranked(step, NORMAL, now)
        else:
            taken = node.take(step, now)
            if taken.lease is not None:
                assert (taken.lease.epoch, taken.lease.sequence) > latest
                latest = (taken.lease.epoch, taken.lease.sequence)
                assert taken.lease.seconds == 3.0
