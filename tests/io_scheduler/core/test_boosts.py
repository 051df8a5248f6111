"""Urgent plans that wait for others' transfers, and promoted prefetches."""

from __future__ import annotations

import pytest

from pystachio.io_scheduler.core.events import (
    Action,
    PlanCancelled,
    PlanClosed,
    PriorityChanged,
    StartChunk,
    TransfersBoosted,
)
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import PREFETCH, Extent, Link, LinkLimits, PriorityClass, Transfer
from tests.io_scheduler.core.scheduler_model import World

INTERACTIVE, NORMAL, BATCH = PriorityClass
DISK = Link("disk", "1:0")


def busy(policy: str = "pystachio", **plans: PriorityClass) -> World:
    """A disk with room for one chunk, which is taken when the plans arrive."""
    w = World(POLICIES[policy])
    w.open_link(DISK, LinkLimits(chunk_bytes=10, window_bytes=10, calibrated=False))
    w.open_plan("first", INTERACTIVE)
    w.submit([Transfer(0, "first", DISK, Extent(0, 10))])
    for plan_id, priority in plans.items():
        w.open_plan(plan_id, priority)
    return w


def submit(w: World, transfer_id: int, plan_id: str, chunks: int = 1, criticality: int = 0) -> list[Action]:
    return w.submit([Transfer(transfer_id, plan_id, DISK, Extent(0, 10 * chunks), criticality)])


def order(w: World) -> list[int]:
    """The transfers of the chunks that are started until nothing is left."""
    started = []
    while w.inside():
        actions = w.end_chunk(*w.inside()[0])
        started += [action.transfer_id for action in actions if isinstance(action, StartChunk)]
    return started


def test_a_transfer_that_an_urgent_plan_waits_for_goes_on_as_its_own() -> None:
    w = busy(urgent=INTERACTIVE, batch=BATCH)
    submit(w, 1, "batch", 2)
    submit(w, 2, "batch", 2)
    submit(w, 3, "urgent", 1)
    w.tell(TransfersBoosted((2,), "urgent", criticality=1))
    assert order(w) == [2, 2, 3, 1, 1]


@pytest.mark.parametrize("booster", [NORMAL, BATCH])
def test_a_boost_never_makes_a_transfer_less_urgent(booster: PriorityClass) -> None:
    w = busy(owner=NORMAL, booster=booster, other=NORMAL)
    submit(w, 1, "owner")
    w.tell(TransfersBoosted((1,), "booster"))
    w.tell(PriorityChanged("booster", BATCH))
    submit(w, 2, "booster")
    assert order(w) == [1, 2]


def test_the_owner_promotes_what_it_had_asked_for_ahead() -> None:
    w = busy(a=NORMAL)
    for transfer_id in (1, 2, 3):
        submit(w, transfer_id, "a", criticality=PREFETCH)
    submit(w, 4, "a")
    w.tell(TransfersBoosted((3,), "a", criticality=1))
    assert order(w) == [3, 4, 1, 2]


def test_a_boost_does_not_lower_criticality() -> None:
    w = busy(a=NORMAL)
    submit(w, 1, "a", criticality=3)
    submit(w, 2, "a", criticality=2)
    w.tell(TransfersBoosted((1,), "a", criticality=0))
    assert order(w) == [1, 2]


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("others", [True, False])
def test_when_the_booster_ends_the_next_most_urgent_that_waits_takes_over(closed: bool, others: bool) -> None:
    w = busy(urgent=INTERACTIVE, normal=NORMAL, batch=BATCH, other=BATCH)
    submit(w, 1, "other", 3)
    submit(w, 2, "batch", 3)
    w.tell(TransfersBoosted((2,), "urgent"))
    if others:
        w.tell(TransfersBoosted((2,), "normal"))
    w.tell(PlanClosed("urgent") if closed else PlanCancelled("urgent"))
    assert order(w) == ([2, 2, 2, 1, 1, 1] if others else [1, 2, 1, 2, 1, 2])
    assert w.ended == {0: None, 1: None, 2: None}, "it is not the booster's to cancel"


def test_when_the_owner_ends_its_transfers_end_whoever_waits() -> None:
    w = busy(urgent=INTERACTIVE, batch=BATCH)
    submit(w, 1, "batch", 3)
    w.tell(TransfersBoosted((1,), "urgent"))
    w.tell(PlanClosed("batch"))
    assert order(w) == []
    assert w.ended[1] is not None


def test_the_owner_may_become_more_urgent_than_who_waits() -> None:
    w = busy(owner=BATCH, booster=NORMAL, other=NORMAL)
    submit(w, 1, "other", 2)
    submit(w, 2, "owner", 2)
    w.tell(TransfersBoosted((2,), "booster"))
    w.tell(PriorityChanged("owner", INTERACTIVE))
    assert order(w) == [2, 2, 1, 1]


def test_who_waits_may_become_more_or_less_urgent() -> None:
    w = busy(owner=BATCH, booster=BATCH, other=NORMAL, last=BATCH)
    submit(w, 1, "last", 3)
    submit(w, 2, "owner", 3)
    w.tell(TransfersBoosted((2,), "booster"))
    w.tell(PriorityChanged("booster", INTERACTIVE))
    submit(w, 3, "other")
    w.end_chunk(0, 0)
    assert w.inside() == [(2, 0)]
    w.tell(PriorityChanged("booster", BATCH))
    assert order(w)[0] == 3


def test_between_interactive_plans_the_deadline_decides() -> None:
    w = busy()
    w.open_plan("owner", INTERACTIVE, deadline=50.0)
    w.open_plan("other", INTERACTIVE, deadline=20.0)
    w.open_plan("booster", INTERACTIVE, deadline=10.0)
    submit(w, 1, "other")
    submit(w, 2, "owner")
    w.tell(TransfersBoosted((2,), "booster"))
    assert order(w) == [2, 1]


def test_a_cancelled_plan_boosts_nothing() -> None:
    w = busy(urgent=INTERACTIVE, a=BATCH, b=BATCH)
    submit(w, 1, "a")
    submit(w, 2, "b")
    w.tell(PlanCancelled("urgent"))
    w.tell(TransfersBoosted((2,), "urgent"))
    assert order(w) == [1, 2]


def test_boosting_what_has_ended_or_nobody_knows_does_nothing() -> None:
    w = busy(urgent=INTERACTIVE, a=BATCH)
    submit(w, 1, "a")
    order(w)
    assert w.tell(TransfersBoosted((1, 77), "urgent")) == []
    assert w.tell(TransfersBoosted((1,), "nobody")) == []


def test_a_boosted_transfer_is_at_the_boosters_expense() -> None:
    """A plan that waits for much of another's has that much less for itself."""
    w = busy(payer=NORMAL, rival=NORMAL, owner=BATCH)
    submit(w, 1, "owner", 20)
    submit(w, 2, "rival", 20)
    w.tell(TransfersBoosted((1,), "payer"))
    submit(w, 3, "payer", 20)
    first = order(w)[:20]
    assert first.count(2) == 10
    assert first.count(1) == 10


def test_where_order_is_by_arrival_a_boost_does_not_send_to_the_back() -> None:
    w = busy("fifo", urgent=INTERACTIVE, a=BATCH, b=BATCH)
    for link in w.scheduler.statistics().links:
        assert link.window_bytes > 10
    transfers = [Transfer(number, "ab"[number % 2], DISK, Extent(0, 10)) for number in range(1, 9)]
    w.submit(transfers)
    w.tell(TransfersBoosted((2, 5), "urgent", 3))
    w.finish()
    assert set(w.ended.values()) == {None}
