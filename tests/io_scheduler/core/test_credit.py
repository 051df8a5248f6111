"""Pools of memory: who may take of them, who waits, and that nobody waits for ever."""

from __future__ import annotations

import pytest

from pystachio.errors import Cancelled, DataError, ResourceExhausted
from pystachio.io_scheduler.core.events import (
    Action,
    CompleteTransfer,
    DeliverChunk,
    FailTransfer,
    PlanCancelled,
    PlanClosed,
    PriorityChanged,
    StartChunk,
    TransfersBoosted,
    TransfersCancelled,
)
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import CreditPool, Extent, Link, LinkLimits, PriorityClass, Transfer
from tests.io_scheduler.core.scheduler_model import World

INTERACTIVE, NORMAL, BATCH = PriorityClass
DISK, OTHER_DISK = Link("disk", "1:0"), Link("disk", "2:0")
FIRST, SECOND = CreditPool("host", 1), CreditPool("host", 2)


def world(*, nbytes: int = 100, window: int = 1000, policy: str = "pystachio", **plans: PriorityClass) -> World:
    made = World(POLICIES[policy])
    limits = LinkLimits(chunk_bytes=10, window_bytes=window, calibrated=False, smallest_chunk_bytes=5)
    for link in (DISK, OTHER_DISK):
        made.open_link(link, limits)
    for pool in (FIRST, SECOND):
        made.open_pool(pool, nbytes)
    for plan_id, priority in (plans or {"a": NORMAL, "b": NORMAL}).items():
        made.open_plan(plan_id, priority)
    return made


def transfer(
    transfer_id: int,
    length: int,
    plan_id: str = "a",
    *,
    link: Link = DISK,
    credit: CreditPool | None = FIRST,
    by_chunk: bool = False,
    criticality: int = 0,
) -> Transfer:
    return Transfer(transfer_id, plan_id, link, Extent(0, length), criticality, credit, by_chunk)


def started(actions: list[Action]) -> list[int]:
    """The transfers of which something was started, each once."""
    return list(dict.fromkeys(action.transfer_id for action in actions if isinstance(action, StartChunk)))


def arrive(world: World, *transfer_ids: int) -> list[Action]:
    """All that the devices have of these transfers arrives."""
    return [action for chunk in world.inside() if chunk[0] in transfer_ids for action in world.end_chunk(*chunk)]


def errors(actions: list[Action]) -> dict[int, type[BaseException]]:
    return {action.transfer_id: type(action.error) for action in actions if isinstance(action, FailTransfer)}


# Taking and giving back


def test_a_transfer_takes_its_whole_length_when_it_starts_and_its_consumer_gives_it_back() -> None:
    w = world(window=10)
    w.submit([transfer(1, 60)])
    assert w.used(FIRST) == 60, "while only the first of its chunks is inside"
    assert started(w.submit([transfer(2, 60)])) == []
    for _ in range(6):
        actions = arrive(w, 1)
    assert actions == [CompleteTransfer(1)], "the memory is its consumer's"
    assert w.used(FIRST) == 60
    w.release(0)
    assert w.accounts[2].has_started


def test_by_chunk_each_chunk_takes_its_own_and_is_delivered() -> None:
    w = world(nbytes=25)
    assert started(w.submit([transfer(1, 40, by_chunk=True)])) == [1]
    assert [offset for _, offset in w.inside()] == [0, 10], "seven eighths of the pool"
    assert w.end_chunk(1, 10) == [DeliverChunk(1, Extent(10, 10))]
    w.release(0)
    assert [offset for _, offset in w.inside()] == [0, 20]
    arrive(w, 1)
    while w.consumers:
        w.release(0)
    assert arrive(w, 1)[-1] == CompleteTransfer(1)
    w.finish()


def test_what_waits_for_memory_stands_in_nobodys_way() -> None:
    w = world(nbytes=50)
    w.submit([transfer(1, 40)])
    others = [transfer(2, 40), transfer(3, 20, credit=None), transfer(4, 40, "b", credit=SECOND)]
    assert set(started(w.submit(others))) == {3, 4}


def test_failed_and_cancelled_transfers_give_back_what_they_took_once_no_device_has_them() -> None:
    w = world(window=30)
    w.submit([transfer(1, 40), transfer(2, 40, by_chunk=True)])
    w.tell(TransfersCancelled((1, 2)))
    assert w.used(FIRST) > 0
    for chunk in w.inside():
        w.end_chunk(*chunk, DataError("broken") if chunk[1] else None)
    assert w.used(FIRST) == 0


def test_what_was_delivered_is_the_consumers_even_if_the_transfer_fails() -> None:
    w = world()
    w.submit([transfer(1, 30, by_chunk=True)])
    w.end_chunk(1, 0)
    w.end_chunk(1, 10, DataError("broken"))
    w.end_chunk(1, 20)
    assert w.used(FIRST) == 10
    w.finish()


def test_credit_released_without_a_name_is_given_back_all_the_same() -> None:
    w = world()
    w.submit([transfer(1, 40), transfer(2, 40, "b")])
    arrive(w, 1, 2)
    w.release(0, named=False)
    w.release(0, named=False)
    assert w.used(FIRST) == 0
    assert w.scheduler.statistics().pools[0].used_bytes == 0


# Sizes


def test_a_transfer_larger_than_its_pool_is_refused() -> None:
    w = world(nbytes=50)
    (refused,) = w.submit([transfer(1, 51)])
    assert isinstance(refused, FailTransfer)
    assert isinstance(refused.error, ResourceExhausted)
    assert (refused.error.setting, refused.error.value, refused.error.needed) == ("memory", 50, 51)
    assert started(w.submit([transfer(2, 50)])) == [2]


@pytest.mark.parametrize("nbytes", [5, 7, 9, 10, 11])
def test_by_chunk_a_transfer_may_be_larger_than_its_pool(nbytes: int) -> None:
    w = world(nbytes=nbytes)
    w.submit([transfer(1, 100, by_chunk=True)])
    assert all(length <= nbytes for length, _ in w.accounts[1].inside.values()), "and so may be its chunks"
    w.finish()


def test_a_pool_too_small_for_any_chunk_refuses() -> None:
    assert errors(world(nbytes=4).submit([transfer(1, 100, by_chunk=True)])) == {1: ResourceExhausted}


def test_a_pool_that_grows_lets_more_in() -> None:
    w = world(nbytes=50)
    w.submit([transfer(1, 40), transfer(2, 40)])
    w.pools[FIRST] = 200
    w.open_pool(FIRST, 200)
    assert all(account.has_started for account in w.accounts.values())


def test_a_pool_that_shrinks_refuses_what_will_never_fit() -> None:
    w = world()
    w.submit([transfer(1, 20), transfer(2, 80), transfer(3, 30), transfer(4, 90, by_chunk=True)])
    w.pools[FIRST] = 40
    w.open_pool(FIRST, 40)
    assert isinstance(w.ended[2], ResourceExhausted)
    w.finish()
    assert w.ended[1] is w.ended[3] is w.ended[4] is None


@pytest.mark.parametrize(
    ("priority", "policy", "fits"),
    [
        (INTERACTIVE, "pystachio", 20),
        (NORMAL, "pystachio", 17),
        (BATCH, "pystachio", 15),
        (BATCH, "strict", 20),
        (BATCH, "fair", 20),
        (BATCH, "fifo", 20),
    ],
)
def test_the_less_urgent_may_not_use_all_of_a_pool(priority: PriorityClass, policy: str, fits: int) -> None:
    w = world(nbytes=200, policy=policy, a=priority)
    assert len(started(w.submit([transfer(number, 10) for number in range(30)]))) == fits


def test_what_is_larger_than_the_share_of_its_class_waits_until_nobody_has_any() -> None:
    w = world(a=BATCH, b=BATCH)
    w.submit([transfer(1, 10), transfer(2, 95)])
    assert not w.accounts[2].has_started
    arrive(w, 1)
    w.release(0)
    assert w.accounts[2].has_started


# Who goes first


def test_the_most_urgent_that_waits_goes_first() -> None:
    w = world(b=BATCH, n=NORMAL, i=INTERACTIVE)
    w.submit([transfer(1, 100, "i")])
    for transfer_id, plan_id in ((2, "b"), (3, "n"), (4, "i")):
        assert started(w.submit([transfer(transfer_id, 50, plan_id)])) == []
    order = []
    for _ in range(3):
        before = {number for number, account in w.accounts.items() if account.has_started}
        arrive(w, *before)
        while w.consumers:
            w.release(0)
        order += [number for number, account in w.accounts.items() if account.has_started]
    assert order == [4, 3, 2]


def test_nobody_less_urgent_takes_what_an_urgent_transfer_waits_for() -> None:
    w = world(i=INTERACTIVE, b=BATCH)
    w.submit([transfer(1, 50, "b")])
    assert started(w.submit([transfer(2, 80, "i")])) == []
    assert started(w.submit([transfer(3, 10, "b"), transfer(4, 10, "b", link=OTHER_DISK)])) == [], "though they fit"
    arrive(w, 1)
    w.release(0)
    assert w.accounts[2].has_started


def test_small_transfers_do_not_pass_a_large_one_for_ever() -> None:
    w = world()
    w.submit([transfer(1, 50)])
    w.submit([transfer(2, 80, "b")])
    assert started(w.submit([transfer(3, 10, link=OTHER_DISK)])) == []
    arrive(w, 1)
    w.release(0)
    assert w.accounts[2].has_started


def test_of_equals_the_plan_that_holds_least_goes_first() -> None:
    w = world()
    w.submit([transfer(1, 60, "a"), transfer(2, 20, "b")])
    assert started(w.submit([transfer(3, 20, "a")])) == []
    assert started(w.submit([transfer(4, 20, "b")])) == []
    arrive(w, 1, 2)
    w.release([held.nbytes for held in w.consumers].index(20))
    assert w.accounts[4].has_started
    assert not w.accounts[3].has_started


def test_a_consumer_that_never_reads_holds_up_neither_the_more_urgent_nor_other_plans() -> None:
    w = world(nbytes=160, dead=BATCH, alive=BATCH, urgent=INTERACTIVE)
    w.submit([transfer(number, 10, "dead") for number in range(100)])
    for _ in range(3):
        for chunk in w.inside():
            w.end_chunk(*chunk)
    assert w.used(FIRST) == 120
    for second in range(20):
        number = 1000 + 10 * second
        w.submit([transfer(number, 10, "alive"), transfer(number + 1, 20, "urgent")])
        for transfer_id in (number + 1, number):
            assert w.accounts[transfer_id].has_started
            arrive(w, transfer_id)
            w.release([held.plan_id for held in w.consumers].index("alive" if transfer_id == number else "urgent"))
        w.advance(1.0)
    assert w.used(FIRST) == 120


@pytest.mark.parametrize(("priority", "share"), [(NORMAL, 0.10), (BATCH, 0.05)])
def test_a_part_of_a_pool_is_reserved_when_urgent_plans_take_all_they_can(
    priority: PriorityClass, share: float
) -> None:
    """Not for long: what consumers give back first is theirs."""
    w = world(nbytes=400, urgent=INTERACTIVE, below=priority)
    w.submit([transfer(number, 10, "urgent") for number in range(200)])
    w.submit([transfer(1000 + number, 5, "below") for number in range(100)])
    assert w.used(FIRST) == 400
    for _ in range(100):
        for chunk in w.inside():
            w.end_chunk(*chunk)
        urgent = [position for position, held in enumerate(w.consumers) if held.plan_id == "urgent"]
        if not urgent:
            break
        w.release(urgent[0])
        below = sum(held.nbytes for held in w.consumers if held.plan_id == "below")
        below += sum(account.credit() for account in w.accounts.values() if account.transfer.plan_id == "below")
        assert below <= 400 * share
    assert below == 400 * share


def test_of_two_reservations_that_of_the_more_urgent_class_is_served_first() -> None:
    """Also when the other one has been waiting for what the urgent plan gives back."""
    w = world(nbytes=400, urgent=INTERACTIVE, between=NORMAL, last=BATCH)
    w.submit([transfer(number, 10, "urgent") for number in range(60)])
    w.submit([transfer(1000, 5, "last")])
    assert w.used(FIRST) == 400
    assert not w.accounts[1000].has_started
    arrive(w, *range(60))
    for _ in range(4):
        w.release(0)
    assert not w.accounts[1000].has_started, "there is none left for its class"
    assert started(w.submit([transfer(2000, 5, "between")])) == [2000]
    for _ in range(2):
        w.release(0)
    assert w.accounts[1000].has_started


def test_a_plan_without_any_memory_gets_some_under_an_endless_urgent_load() -> None:
    """The consumers of the urgent plan are slower than its link: memory is what everybody waits for."""
    w = world(urgent=INTERACTIVE, batch=BATCH)
    number = 0
    w.submit([transfer(number, 40, "batch")])
    arrive(w, number)
    w.release(0)
    for _ in range(20):
        number += 1
        w.submit([transfer(number, 10, "urgent")])
    batch = 10_000
    w.submit([transfer(batch, 40, "batch")])
    assert not w.accounts[batch].has_started
    for _ in range(600):
        for chunk in w.inside():
            if chunk[0] != batch:
                w.end_chunk(*chunk)
        number += 1
        w.submit([transfer(number, 10, "urgent")])
        w.release(0)
        w.advance(0.01)
    assert batch not in w.accounts or w.accounts[batch].has_started


# Nobody waits for somebody who waits for him


def test_a_started_transfer_is_not_blocked_by_a_more_critical_one_that_waits_for_its_memory() -> None:
    w = world(window=10)
    w.submit([transfer(1, 100)])
    w.submit([transfer(2, 100, criticality=5)])
    w.finish()
    assert w.ended == {1: None, 2: None}


def test_a_started_transfer_that_is_boosted_is_not_blocked_by_one_of_the_booster() -> None:
    w = world(window=10, a=BATCH, b=INTERACTIVE)
    w.submit([transfer(1, 100)])
    w.submit([transfer(2, 100, "b", criticality=5)])
    w.tell(TransfersBoosted((1,), "b"))
    w.finish()
    assert w.ended == {1: None, 2: None}


@pytest.mark.parametrize("by_chunk", [True, False])
def test_a_chunk_that_is_tried_again_is_not_blocked_by_one_that_waits_for_its_memory(by_chunk: bool) -> None:
    w = world(nbytes=10)
    w.submit([transfer(1, 10, by_chunk=by_chunk)])
    w.end_chunk(1, 0, ResourceExhausted("busy", setting="x", value=1))
    w.submit([transfer(2, 10, criticality=5)])
    w.advance(1.0)
    assert w.inside() == [(1, 0)]
    w.finish()
    assert w.ended == {1: None, 2: None}


def test_a_later_stage_does_not_wait_behind_an_earlier_one() -> None:
    """The memory of the first stage returns when the second has moved its bytes on, by the same link."""
    w = world()
    w.submit([transfer(1, 80)])
    arrive(w, 1)
    w.submit([transfer(2, 80, criticality=5)])
    assert started(w.submit([transfer(3, 80, credit=SECOND)])) == [3]


def test_what_was_passed_over_when_its_link_was_full_is_kept_memory_the_second_time() -> None:
    """A transfer that waits for memory while its link has room, and for room while there is memory."""
    w = world(nbytes=100, window=10, a=NORMAL, b=NORMAL, c=NORMAL)
    w.submit([transfer(1, 85, "b", link=OTHER_DISK)])
    w.submit([transfer(2, 80, "a")])
    w.submit([transfer(number, 10, "c", credit=None) for number in range(100, 140)])
    next_number, has_memory = 200, False
    for _ in range(60):
        w.submit([transfer(next_number, 80, "b", link=OTHER_DISK)])
        next_number += 1
        for chunk in [chunk for chunk in w.inside() if w.accounts[chunk[0]].transfer.link == OTHER_DISK]:
            w.end_chunk(*chunk)
        while w.consumers:
            w.release(0)
        for chunk in [chunk for chunk in w.inside() if w.accounts[chunk[0]].transfer.link == DISK]:
            w.end_chunk(*chunk)
        has_memory = has_memory or 2 not in w.accounts or w.accounts[2].has_started
    assert has_memory


# What else frees memory


@pytest.mark.parametrize(
    "event",
    [TransfersCancelled((2,)), PlanCancelled("b"), PlanClosed("b"), TransfersBoosted((2,), "c")],
    ids=["cancelled", "plan cancelled", "plan closed", "boosted away"],
)
def test_who_stood_behind_somebody_who_gave_up_goes_on(event: TransfersCancelled) -> None:
    w = world(a=NORMAL, b=INTERACTIVE, c=INTERACTIVE)
    w.submit([transfer(1, 50)])
    w.submit([transfer(2, 80, "b")])
    w.submit([transfer(3, 10, link=OTHER_DISK)])
    assert not w.accounts[3].has_started
    w.tell(event)
    if 2 in w.ended:
        assert isinstance(w.ended[2], Cancelled)
        assert w.accounts[3].has_started
    else:
        assert not w.accounts[3].has_started, "its place is that of the more urgent plan now"


def test_a_plan_that_becomes_urgent_may_use_all_of_the_pool() -> None:
    w = world(a=BATCH, b=BATCH)
    w.submit([transfer(1, 40), transfer(2, 30), transfer(3, 30)])
    assert [account.has_started for account in w.accounts.values()] == [True, True, False]
    w.tell(PriorityChanged("a", INTERACTIVE))
    assert w.accounts[3].has_started


def test_a_plan_that_becomes_less_urgent_lets_others_pass() -> None:
    w = world(a=INTERACTIVE, b=NORMAL)
    w.submit([transfer(1, 50, "b")])
    w.submit([transfer(2, 80, "a")])
    assert started(w.submit([transfer(3, 10, "b")])) == []
    w.tell(PriorityChanged("a", BATCH))
    assert w.accounts[3].has_started


def test_a_head_that_needs_less_is_not_kept_waiting_by_what_the_last_one_needed() -> None:
    w = world()
    w.submit([transfer(1, 50)])
    w.submit([transfer(2, 90)])
    assert started(w.submit([transfer(3, 20, criticality=1)])) == [3]
    w.submit([transfer(4, 20)])
    assert started(w.tell(TransfersCancelled((2,)))) == []
    arrive(w, 3)
    w.release(0)
    assert w.accounts[4].has_started
