"""Reservations: waiting, failing with a typed error instead of hanging, and giving back whatever happens."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pystachio.config import Settings
from pystachio.errors import ResourceExhausted
from pystachio.runtime.memory import CLIENT_PATIENCE_SECONDS, Memory, OperatorMemory, Tier
from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.tracing import WaitReason
from tests import virtual_time

BUDGET = 800
STATE = 700


class Node:
    """A memory and the plans on it."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.memory = Memory({Tier.HOST: budget}, virtual_time.clock())
        self.metrics: dict[str, OperatorMetrics] = {}
        self._plans = 0

    def plan(self, name: str, priority: int = 1) -> PlanEntry:
        self._plans += 1
        return PlanEntry(name, priority, self._plans, self.memory.plan_became_idle)

    def operator(self, plan: PlanEntry, name: str = "operator") -> OperatorMemory:
        metrics = self.metrics.setdefault(name, OperatorMetrics(name, virtual_time.clock()))
        return self.memory.operator(plan, name, metrics)

    @property
    def used(self) -> int:
        return self.memory.statistics()[Tier.HOST].used


def on_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        virtual_time.run(test())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def started(body: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(body)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@on_virtual_time
async def test_a_reservation_is_released_once_and_by_with() -> None:
    node = Node()
    operator = node.operator(node.plan("p"))
    reservation = await operator.reserve(100)
    assert reservation.nbytes == node.used == 100
    reservation.release()
    reservation.release()
    with await operator.reserve(60, transient=True):
        assert node.used == 60
    assert node.used == 0
    assert node.metrics["operator"].snapshot().peak_memory == 100


@on_virtual_time
async def test_a_request_waits_for_a_release_and_the_wait_is_counted() -> None:
    node = Node()
    held = await node.operator(node.plan("first"), "first").reserve(STATE)
    asyncio.get_running_loop().call_later(5, held.release)
    reservation = await node.operator(node.plan("second"), "second").reserve(1)
    assert node.used == 1
    assert node.metrics["second"].snapshot().wait_seconds[WaitReason.MEMORY] == pytest.approx(5)
    reservation.release()


@on_virtual_time
async def test_resize_grows_and_shrinks() -> None:
    node = Node()
    operator = node.operator(node.plan("p"))
    reservation = await operator.reserve(10)
    await reservation.resize(300)
    assert node.used == 300
    await reservation.resize(20)
    assert node.used == reservation.nbytes == 20
    with pytest.raises(ResourceExhausted):
        await reservation.resize(STATE + 1)
    assert node.used == reservation.nbytes == 20


@on_virtual_time
async def test_what_is_there_already_is_counted_at_once() -> None:
    node = Node()
    reservation = await node.operator(node.plan("p")).reserve(0)
    for nbytes in (300, STATE + 1, 20, 0):
        reservation.resize_nowait(nbytes)
        assert node.used == reservation.nbytes == nbytes


@on_virtual_time
async def test_what_can_never_fit_fails_at_once_and_says_what_would_be_enough() -> None:
    node = Node()
    operator = node.operator(node.plan("p"), "join")
    with pytest.raises(ResourceExhausted, match="join needs 701 bytes") as caught:
        await operator.reserve(701)
    assert (caught.value.setting, caught.value.value) == ("memory", BUDGET)
    assert caught.value.needed is not None
    larger = Node(caught.value.needed)
    (await larger.operator(larger.plan("p")).reserve(701)).release()


@on_virtual_time
async def test_a_tier_without_a_budget_names_its_setting() -> None:
    node = Node()
    with pytest.raises(ResourceExhausted) as caught:
        await node.operator(node.plan("p")).reserve(1, tier=Tier.DISK)
    assert (caught.value.setting, caught.value.value) == ("spill_space", 0)


@pytest.mark.parametrize("tier", Tier)
def test_hints_name_settings_that_exist(tier: Tier) -> None:
    async def main() -> ResourceExhausted:
        node = Node()
        with pytest.raises(ResourceExhausted) as caught:
            await node.operator(node.plan("p")).reserve(BUDGET + 1, tier=tier)
        return caught.value

    named = re.findall(r"'(\w+)'", virtual_time.run(main()).hint or "")
    assert set(named) <= set(Settings.model_fields)


@on_virtual_time
async def test_two_plans_that_wait_for_each_other_the_newest_of_the_lowest_priority_fails() -> None:
    node = Node()
    failed = []

    async def run(plan: PlanEntry) -> None:
        operator = node.operator(plan)
        with await operator.reserve(300):
            await asyncio.sleep(1)
            try:
                (await operator.reserve(200)).release()
            except ResourceExhausted:
                failed.append(plan.plan_id)

    plans = [node.plan("interactive", 0), node.plan("batch", 2)]
    await asyncio.gather(*(run(plan) for plan in plans))
    assert failed == ["batch"]
    assert node.used == 0


@on_virtual_time
async def test_one_plan_whose_operators_wait_for_each_other_fails() -> None:
    node = Node()
    plan = node.plan("p")
    first, second = node.operator(plan, "first"), node.operator(plan, "second")
    held = [await first.reserve(350), await second.reserve(350)]
    growing = started(first.reserve(100))
    await settle()
    with pytest.raises(ResourceExhausted, match="second needs 100"):
        await second.reserve(100)
    assert not growing.done()
    held[1].release()
    (await growing).release()


@on_virtual_time
async def test_waiting_is_no_deadlock_while_a_job_or_transfer_runs() -> None:
    node = Node()
    plan = node.plan("p")
    operator = node.operator(plan)
    held = await operator.reserve(STATE)
    plan.begin_external()
    waiting = started(node.operator(plan, "other").reserve(1))
    await asyncio.sleep(100)
    assert not waiting.done()
    plan.end_external()
    with pytest.raises(ResourceExhausted):
        await waiting
    held.release()


@on_virtual_time
async def test_a_plan_behind_results_that_nobody_reads_fails_after_a_while() -> None:
    """The client may wait for this plan before it reads the other one's result."""
    node = Node()
    unread, plan = node.plan("unread"), node.plan("plan")
    held = await node.operator(unread).reserve(700, transient=True)
    unread.begin_unread()
    waiting = started(node.operator(plan).reserve(600))
    await asyncio.sleep(0.9 * CLIENT_PATIENCE_SECONDS)
    assert not waiting.done()
    with pytest.raises(ResourceExhausted, match="read their results"):
        await waiting
    waiting = started(node.operator(plan).reserve(600))
    await asyncio.sleep(0.9 * CLIENT_PATIENCE_SECONDS)
    held.release()
    unread.end_unread()
    (await waiting).release()


@on_virtual_time
async def test_who_needs_several_to_fail_waits_once() -> None:
    node = Node()
    blocked = []
    for number in range(7):
        plan = node.plan(f"unread {number}", priority=2)
        await node.operator(plan).reserve(100, transient=True)
        plan.begin_unread()
        blocked.append((plan, started(node.operator(plan).reserve(200))))
    began = asyncio.get_running_loop().time()
    urgent = started(node.operator(node.plan("urgent", priority=0)).reserve(500))
    for plan, request in reversed(blocked):
        with suppress(ResourceExhausted):
            await asyncio.wait({request, urgent}, return_when=asyncio.FIRST_COMPLETED)
        if urgent.done():
            break
        plan.end_unread()
        node.memory.release_plan(plan)
    (await urgent).release()
    assert asyncio.get_running_loop().time() - began < CLIENT_PATIENCE_SECONDS + 4.0
    for _, request in blocked:
        request.cancel()


@on_virtual_time
async def test_an_aged_request_is_passed_while_only_clients_are_awaited() -> None:
    node = Node()
    unread, large, small = node.plan("unread"), node.plan("large"), node.plan("small")
    await node.operator(unread).reserve(300, transient=True)
    unread.begin_unread()
    await node.operator(small).reserve(50)
    blocked = started(node.operator(large).reserve(600))
    await asyncio.sleep(2.0)
    began = asyncio.get_running_loop().time()
    (await node.operator(small).reserve(10)).release()
    assert asyncio.get_running_loop().time() - began < 0.1
    blocked.cancel()


@on_virtual_time
async def test_waiting_is_no_deadlock_while_another_holder_does_not_wait() -> None:
    node = Node()
    held = await node.operator(node.plan("slow client")).reserve(STATE)
    waiting = started(node.operator(node.plan("patient")).reserve(1))
    await asyncio.sleep(100)
    assert not waiting.done()
    held.release()
    (await waiting).release()


@on_virtual_time
async def test_a_plan_that_makes_steps_is_not_deadlocked() -> None:
    node = Node()
    plan = node.plan("p")
    held = await node.operator(plan, "builder").reserve(STATE)

    async def make_steps() -> None:
        for _ in range(1000):
            await asyncio.sleep(0.01)
            plan.progress += 1
        held.release()

    stepping = started(make_steps())
    (await node.operator(plan, "other").reserve(1)).release()
    await stepping


@on_virtual_time
async def test_in_a_deadlock_an_aged_request_is_passed_before_anybody_fails() -> None:
    node = Node()
    plan = node.plan("p")
    held = await node.operator(plan, "holder").reserve(400)
    large = started(node.operator(plan, "large").reserve(400))
    plan.begin_external()
    await asyncio.sleep(10)
    small = started(node.operator(plan, "small").reserve(100))
    await settle()
    assert not small.done()
    plan.end_external()
    (await small).release()
    held.release()
    (await large).release()


@on_virtual_time
async def test_a_cancelled_waiter_leaves_the_queue() -> None:
    node = Node()
    held = await node.operator(node.plan("holder")).reserve(600)
    large = started(node.operator(node.plan("large", 0)).reserve(500))
    await asyncio.sleep(2)
    small = started(node.operator(node.plan("small")).reserve(100))
    await settle()
    assert not small.done()
    large.cancel()
    (await small).release()
    held.release()
    assert node.used == 0


@on_virtual_time
async def test_a_grant_that_meets_a_cancellation_goes_back() -> None:
    node = Node()
    held = await node.operator(node.plan("holder")).reserve(STATE)
    waiting = started(node.operator(node.plan("waiter")).reserve(1))
    await settle()
    held.release()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert node.used == 0


@on_virtual_time
async def test_the_twin_that_does_not_wait() -> None:
    node = Node()
    operator = node.operator(node.plan("p"))
    first = operator.reserve_nowait(STATE)
    assert first is not None
    assert operator.reserve_nowait(1) is None
    forced = operator.reserve_nowait(BUDGET, transient=True, force=True)
    assert forced is not None
    assert node.used == STATE + BUDGET
    first.release()
    forced.release()
    assert node.used == 0


@on_virtual_time
async def test_nobody_barges_past_those_who_wait() -> None:
    node = Node()
    held = await node.operator(node.plan("holder")).reserve(600)
    waiting = started(node.operator(node.plan("waiter")).reserve(200))
    await settle()
    assert node.operator(node.plan("barger")).reserve_nowait(1) is None
    held.release()
    (await waiting).release()


@on_virtual_time
async def test_the_end_of_a_plan_returns_what_it_left_and_wakes_the_others() -> None:
    node = Node()
    plan = node.plan("careless")
    left = await node.operator(plan).reserve(STATE)
    waiting = started(node.operator(node.plan("waiter")).reserve(STATE))
    await settle()
    assert node.memory.release_plan(plan) == STATE
    reservation = await waiting
    left.release()
    assert node.used == STATE
    reservation.release()
    assert node.used == 0


def test_release_on_another_thread_wakes_a_waiter() -> None:
    async def main() -> None:
        node = Node()
        held = await node.operator(node.plan("holder")).reserve(STATE)
        waiting = started(node.operator(node.plan("waiter")).reserve(STATE))
        await settle()
        thread = threading.Thread(target=held.release)
        thread.start()
        thread.join()
        (await waiting).release()
        assert node.used == 0

    virtual_time.run(main(), threads=True)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), plans=st.integers(1, 4), cancels=st.integers(0, 3))
def test_every_plan_ends_within_bounded_time_and_everything_comes_back(seed: int, plans: int, cancels: int) -> None:
    """Plans take state and transient bytes in random order and sizes: each gets them, or the typed error."""
    random = Random(seed)

    async def run(node: Node, plan: PlanEntry) -> None:
        async def operate(operator: OperatorMemory) -> None:
            with await operator.reserve(random.randrange(300)) as state:
                for _ in range(5):
                    with await operator.reserve(random.randrange(200), transient=True):
                        plan.begin_external()
                        await asyncio.sleep(random.random())
                        plan.end_external()
                    await state.resize(random.randrange(350))

        async with asyncio.TaskGroup() as tasks:
            for name in ("a", "b"):
                tasks.create_task(operate(node.operator(plan, name)))

    async def main() -> None:
        node = Node()
        running = [started(run(node, node.plan(f"p{index}", index % 3))) for index in range(plans)]
        for task in random.sample(running, min(cancels, plans)):
            asyncio.get_running_loop().call_later(random.random() * 3, task.cancel)
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*running, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseExceptionGroup):
                assert outcome.split(ResourceExhausted)[1] is None
            else:
                assert outcome is None or isinstance(outcome, asyncio.CancelledError)
        assert node.used == 0
        assert node.memory.statistics()[Tier.HOST].waiting == 0

    virtual_time.run(main())
