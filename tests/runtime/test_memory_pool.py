"""The pool's decisions: tables of requests, and invariants under random use."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pystachio.runtime.memory_pool import AGEING_SECONDS, Account, MemoryPool, Request
from pystachio.runtime.plan_entry import PlanEntry

INTERACTIVE, NORMAL, BATCH = 0, 1, 2


def plan(name: str, priority: int = NORMAL, sequence: int = 1) -> PlanEntry:
    return PlanEntry(name, priority, sequence)


def waiting(
    pool: MemoryPool,
    account: Account,
    nbytes: int,
    *,
    transient: bool = False,
    net_delta: int | None = None,
    since: float = 0.0,
) -> Request:
    effect = (0 if transient else nbytes) if net_delta is None else net_delta
    request = Request(account, nbytes, transient, effect, since)
    pool.enqueue(request)
    return request


def full_pool(budget: int = 800) -> tuple[MemoryPool, Account]:
    """A pool whose state budget is used up by one account."""
    pool = MemoryPool(budget)
    holder = pool.account(plan("holder"), "holder")
    pool.take(holder, pool.state_budget, transient=False)
    return pool, holder


def test_state_leaves_an_eighth_to_what_is_on_its_way() -> None:
    pool, holder = full_pool(800)
    assert holder.state == 700
    assert not pool.fits(holder, 1, transient=False)
    assert pool.fits(holder, 100, transient=True)
    assert not pool.fits(holder, 101, transient=True)


def test_reading_ahead_stays_out_of_the_memory_that_state_may_need() -> None:
    pool = MemoryPool(800)
    reader = pool.account(plan("p", INTERACTIVE), "reader")
    other = pool.account(plan("p", INTERACTIVE), "other")
    assert pool.fits(reader, 800, transient=True)
    pool.take(reader, 60, transient=True)
    assert pool.fits(reader, 40, transient=True)
    assert not pool.fits(reader, 41, transient=True)
    assert pool.fits(other, 740, transient=True)
    pool.take(reader, 40, transient=True)
    assert pool.fits(other, pool.state_budget, transient=False)


def test_the_first_transient_item_may_take_everything() -> None:
    pool = MemoryPool(100)
    assert pool.fits(pool.account(plan("p"), "reader"), 100, transient=True)


@pytest.mark.parametrize(
    ("state", "nbytes", "transient", "possible"),
    [
        (0, 700, False, True),
        (0, 701, False, False),
        (600, 101, False, False),
        (0, 800, True, True),
        (1, 800, True, False),
    ],
)
def test_what_could_ever_be_granted(state: int, nbytes: int, transient: bool, possible: bool) -> None:
    pool = MemoryPool(800)
    account = pool.account(plan("p"), "a")
    pool.take(account, state, transient=False)
    assert pool.could_ever_fit(account, nbytes, transient=transient) is possible


def pool_holding(budget: int, state: int, own: int, others: int) -> tuple[MemoryPool, Account]:
    pool = MemoryPool(budget)
    account = pool.account(plan("p"), "a")
    pool.take(account, state, transient=False)
    pool.take(account, own, transient=True)
    pool.take(pool.account(plan("p"), "b"), others, transient=True)
    return pool, account


@given(
    state=st.integers(0, 2000),
    own=st.integers(0, 2000),
    others=st.integers(0, 2000),
    nbytes=st.integers(1, 5000),
    transient=st.booleans(),
)
def test_the_budget_named_as_enough_is_enough(state: int, own: int, others: int, nbytes: int, transient: bool) -> None:
    pool, account = pool_holding(800, state, own, others)
    enough = pool.enough(account, nbytes, transient=transient)
    pool, account = pool_holding(enough, state, own, others)
    assert pool.fits(account, nbytes, transient=transient)


def test_grants_go_by_net_effect_then_priority_then_arrival() -> None:
    pool, holder = full_pool()
    growing = waiting(pool, pool.account(plan("a", INTERACTIVE), "grow"), 10)
    second = waiting(pool, pool.account(plan("b", NORMAL), "second"), 10)
    first = waiting(pool, pool.account(plan("c", NORMAL), "first"), 10)
    freeing = waiting(pool, pool.account(plan("d", BATCH), "free"), 10, net_delta=-5)
    pool.give_back(holder, 700, transient=False)
    assert pool.grant(now=0.0) == [freeing, growing, second, first]
    assert pool.waiting == []


def test_waiting_raises_the_priority_by_a_class_per_second() -> None:
    pool, holder = full_pool()
    old = waiting(pool, pool.account(plan("old", BATCH), "a"), 700, since=0.0)
    young = waiting(pool, pool.account(plan("young", NORMAL), "b"), 700, since=2.5 * AGEING_SECONDS)
    pool.give_back(holder, 700, transient=False)
    assert pool.grant(now=2.5 * AGEING_SECONDS) == [old]
    assert pool.waiting == [young]


def test_a_request_that_does_not_fit_is_passed_until_it_has_aged() -> None:
    pool, holder = full_pool()
    large = waiting(pool, pool.account(plan("large", INTERACTIVE), "a"), 500, since=0.0)
    small = waiting(pool, pool.account(plan("small", BATCH), "b"), 10, since=0.0)
    pool.give_back(holder, 20, transient=False)
    assert pool.grant(now=0.5 * AGEING_SECONDS) == [small]
    later = waiting(pool, pool.account(plan("later", BATCH), "c"), 10, since=2 * AGEING_SECONDS)
    assert pool.grant(now=2 * AGEING_SECONDS) == []
    assert pool.waiting == [large, later]
    assert pool.grant_one() is later


def test_state_passes_aged_reading_ahead() -> None:
    """What was read ahead is freed only when the operators behind it get the little state that they need."""
    pool = MemoryPool(800)
    reader = pool.account(plan("reader"), "reader")
    pool.take(reader, 90, transient=True)
    ahead = waiting(pool, reader, 20, transient=True, since=0.0)
    other = pool.account(plan("other"), "reader")
    pool.take(other, 5, transient=True)
    later = waiting(pool, other, 5, transient=True, since=2 * AGEING_SECONDS)
    state = waiting(pool, pool.account(plan("consumer"), "groups"), 600, since=2 * AGEING_SECONDS)
    assert pool.grant(now=2 * AGEING_SECONDS) == [state]
    assert pool.waiting == [ahead, later]


def test_data_keeps_flowing_past_an_aged_request_one_item_per_account() -> None:
    pool, holder = full_pool()
    waiting(pool, pool.account(plan("large", INTERACTIVE), "a"), 500, since=0.0)
    reader = pool.account(plan("reader"), "reader")
    first = waiting(pool, reader, 10, transient=True, since=1.5 * AGEING_SECONDS)
    second = waiting(pool, reader, 10, transient=True, since=1.5 * AGEING_SECONDS)
    assert pool.grant(now=2 * AGEING_SECONDS) == [first]
    pool.give_back(reader, 10, transient=True)
    assert pool.grant(now=2 * AGEING_SECONDS) == [second]
    assert holder.held == 700


def test_the_victim_is_the_newest_request_of_the_newest_plan_of_the_lowest_priority() -> None:
    pool, _ = full_pool()
    waiting(pool, pool.account(plan("old batch", BATCH, 1), "a"), 10)
    waiting(pool, pool.account(plan("new batch", BATCH, 2), "b"), 10)
    victim = waiting(pool, pool.account(plan("new batch", BATCH, 2), "c"), 10)
    waiting(pool, pool.account(plan("newest", INTERACTIVE, 3), "d"), 10)
    assert pool.victim() is victim


def test_a_plan_that_holds_nothing_is_no_victim_while_a_holder_waits() -> None:
    pool, holder = full_pool()
    victim = waiting(pool, holder, 10)
    waiting(pool, pool.account(plan("newest batch", BATCH, 9), "a"), 10)
    assert pool.victim() is victim


def test_a_forgotten_plan_gives_everything_back_once() -> None:
    pool = MemoryPool(100)
    entry = plan("p")
    account = pool.account(entry, "a")
    pool.take(account, 30, transient=False)
    pool.take(account, 20, transient=True)
    assert pool.forget(entry) == 50
    pool.give_back(account, 30, transient=False)
    assert pool.used == 0
    assert pool.plans_involved() == set()


class PoolMachine(RuleBasedStateMachine):
    """Random requests and releases against a plain ledger of what each grant holds."""

    grants = Bundle("grants")

    def __init__(self) -> None:
        super().__init__()
        self.pool = MemoryPool(1000)
        self.plans = [plan(f"p{index}", index % 3, index) for index in range(4)]
        self.now = 0.0
        self.held: dict[Request, int] = {}

    @rule(
        target=grants,
        index=st.integers(0, 3),
        operator=st.sampled_from("ab"),
        nbytes=st.integers(0, 600),
        transient=st.booleans(),
        net_delta=st.integers(-10, 10),
    )
    def ask(self, index: int, operator: str, nbytes: int, transient: bool, net_delta: int) -> Request:
        account = self.pool.account(self.plans[index], operator)
        return waiting(self.pool, account, nbytes, transient=transient, net_delta=net_delta, since=self.now)

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def grant(self) -> None:
        for request in self.pool.grant(self.now):
            self.held[request] = request.nbytes

    @rule()
    def grant_one(self) -> None:
        request = self.pool.grant_one()
        if request is not None:
            self.held[request] = request.nbytes
        else:
            assert not any(
                self.pool.fits(each.account, each.nbytes, transient=each.transient) for each in self.pool.waiting
            )

    @rule(request=consumes(grants))
    def end(self, request: Request) -> None:
        if request in self.held:
            self.pool.give_back(request.account, self.held.pop(request), transient=request.transient)
        elif request in self.pool.waiting:
            self.pool.withdraw(request)

    @invariant()
    def used_is_the_sum_of_grants_and_within_the_budget(self) -> None:
        assert self.pool.used == sum(self.held.values())
        assert self.pool.used == sum(each.held for one in self.plans for each in self.pool.accounts(one))
        assert self.pool.used <= self.pool.budget
        assert self.pool.state <= self.pool.state_budget

    @invariant()
    def nobody_both_waits_and_holds_the_same_request(self) -> None:
        assert not set(self.pool.waiting) & set(self.held)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestPool = PoolMachine.TestCase


def test_what_less_urgent_plans_read_ahead_leaves_room_for_urgent_ones() -> None:
    pool = MemoryPool(1600)
    for priority, room in ((BATCH, 150), (NORMAL, 175), (INTERACTIVE, 200)):
        reader = pool.account(plan(str(priority), priority), "reader")
        if pool.transient == 0:
            pool.take(reader, 100, transient=True)
        else:
            pool.take(reader, 1, transient=True)
        free = room - pool.transient
        assert pool.fits(reader, free, transient=True)
        assert not pool.fits(reader, free + 1, transient=True)
        grown = MemoryPool(pool.enough(reader, free + 1, transient=True))
        other = grown.account(plan("other", priority), "other")
        grown.take(other, pool.transient, transient=True)
        assert grown.fits(other, free + 1, transient=True)


def test_interactive_plans_get_memory_in_the_order_of_their_deadlines() -> None:
    pool, holder = full_pool(800)
    late = pool.account(PlanEntry("late", INTERACTIVE, 1, deadline=9.0), "late")
    soon = pool.account(PlanEntry("soon", INTERACTIVE, 2, deadline=1.0), "soon")
    requests = [waiting(pool, late, 100), waiting(pool, soon, 100)]
    pool.give_back(holder, 100, transient=False)
    assert pool.grant(0.0) == [requests[1]]
