"""Leases on a node's scheduler: what they change, for how long, and that none of them stops a plan."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pystachio.io_scheduler.core.events import (
    Action,
    ChunksCompleted,
    CompleteTransfer,
    Event,
    LeaseGranted,
    LinkOpened,
    PlanClosed,
    PlanOpened,
    PriorityChanged,
    StartChunk,
    TimePassed,
    TransfersSubmitted,
)
from pystachio.io_scheduler.core.leases import LARGEST_CORRECTION
from pystachio.io_scheduler.core.request import Extent, Lease, Link, LinkLimits, PlanOrder, PriorityClass, Transfer
from pystachio.io_scheduler.core.scheduler import Scheduler

INTERACTIVE, NORMAL, BATCH = PriorityClass
DISK = Link("disk", "1:0")
CHUNK = 1_000_000
NAN, INFINITY = float("nan"), float("inf")


class Node:
    """A scheduler with one serial device that takes a millisecond for a chunk, and plans that always want more."""

    def __init__(self, **plans: PriorityClass) -> None:
        self.scheduler = Scheduler()
        self.now = 0.0
        self.inside: deque[StartChunk] = deque()
        self.owners: dict[int, str] = {}
        self.served: Counter[str] = Counter()
        limits = LinkLimits(chunk_bytes=CHUNK, window_bytes=2 * CHUNK, calibrated=False, smallest_chunk_bytes=CHUNK)
        self.tell(LinkOpened(DISK, limits))
        for plan_id, priority in plans.items():
            self.open(plan_id, priority)

    def open(self, plan_id: str, priority: PriorityClass, weight: float = 1.0, *, works: bool = True) -> None:
        self.tell(PlanOpened(plan_id, priority, weight))
        if works:
            for _ in range(3):
                self.submit(plan_id)

    def submit(self, plan_id: str, chunks: float = 3) -> None:
        transfer_id = len(self.owners)
        self.owners[transfer_id] = plan_id
        self.tell(TransfersSubmitted((Transfer(transfer_id, plan_id, DISK, Extent(0, int(chunks * CHUNK))),)))

    def tell(self, event: Event) -> None:
        self.obey(self.scheduler.handle(event, self.now))
        if not isinstance(event, ChunksCompleted):
            self.scheduler.check_invariants()

    def grant(self, sequence: int, *orders: PlanOrder, epoch: int = 1, seconds: float = 3.0) -> None:
        self.tell(LeaseGranted(Lease(epoch, sequence, seconds, orders)))

    def obey(self, actions: list[Action]) -> None:
        self.inside.extend(action for action in actions if isinstance(action, StartChunk))
        for action in actions:
            if isinstance(action, CompleteTransfer):
                self.submit(self.owners[action.transfer_id])

    def run(self, chunks: int) -> Counter[str]:
        """What each plan is served in so many milliseconds."""
        before = self.served.copy()
        for _ in range(chunks):
            self.step()
        return self.served - before

    def step(self) -> None:
        self.now += 0.001
        wake = self.scheduler.next_wake()
        if wake is not None and wake <= self.now:
            self.tell(TimePassed())
        chunk = self.inside.popleft()
        self.served[self.owners[chunk.transfer_id]] += 1
        self.tell(ChunksCompleted(((chunk.transfer_id, chunk.chunk.offset),)))

    def lease(self) -> tuple[int, int] | None:
        return self.scheduler.statistics().lease


def test_weights_of_a_lease_hold_until_it_ends() -> None:
    node = Node(a=BATCH, b=BATCH)
    assert node.run(200)["a"] == pytest.approx(100, abs=5)
    node.grant(1, PlanOrder("a", BATCH, 3.0), PlanOrder("b", BATCH, 1.0))
    assert node.lease() == (1, 1)
    assert node.run(2000)["a"] == pytest.approx(1500, rel=0.02)
    node.run(1100)
    assert node.lease() is None
    assert node.run(2000)["a"] == pytest.approx(1000, rel=0.02), "then local fairness"


def test_a_renewal_keeps_it() -> None:
    node = Node(a=BATCH, b=BATCH)
    for sequence in range(1, 6):
        node.grant(sequence, PlanOrder("a", BATCH, 3.0), PlanOrder("b", BATCH, 1.0))
        assert node.run(1000)["a"] == pytest.approx(750, rel=0.02)


def test_a_lease_changes_the_class_and_its_end_changes_it_back() -> None:
    node = Node(a=BATCH, b=BATCH)
    node.grant(1, PlanOrder("a", NORMAL, 1.0))
    assert node.run(1000)["a"] > 930, "all but the reservation"
    node.run(2100)
    assert node.run(1000)["a"] == pytest.approx(500, rel=0.02)


def test_a_plan_that_the_next_lease_does_not_name_is_on_its_own_again() -> None:
    node = Node(a=BATCH, b=BATCH)
    node.grant(1, PlanOrder("a", NORMAL, 5.0))
    node.grant(2, PlanOrder("b", BATCH, 1.0))
    assert node.run(1000)["a"] == pytest.approx(500, rel=0.02)


def test_what_was_changed_here_goes_before_a_lease_that_has_not_followed() -> None:
    node = Node(a=BATCH, b=BATCH)
    node.grant(1, PlanOrder("a", BATCH, 1.0))
    node.tell(PriorityChanged("a", NORMAL))
    node.grant(2, PlanOrder("a", BATCH, 1.0))
    assert node.run(1000)["a"] > 930
    node.grant(3, PlanOrder("a", NORMAL, 1.0))
    node.grant(4, PlanOrder("a", BATCH, 1.0))
    assert node.run(1000)["a"] == pytest.approx(500, rel=0.02), "it followed, and changed its mind"


@pytest.mark.parametrize(("epoch", "sequence"), [(1, 7), (1, 6), (0, 99)])
def test_a_lease_from_the_past_changes_nothing(epoch: int, sequence: int) -> None:
    node = Node(a=BATCH, b=BATCH)
    node.grant(7, PlanOrder("a", BATCH, 3.0))
    node.grant(sequence, PlanOrder("b", BATCH, 9.0), epoch=epoch)
    assert node.run(1000)["a"] == pytest.approx(750, rel=0.02)


def test_of_two_centres_the_one_of_the_higher_epoch_is_followed() -> None:
    node = Node(a=BATCH, b=BATCH)
    for number in range(1, 10):
        node.grant(100 + number, PlanOrder("b", BATCH, 9.0), epoch=1)
        node.grant(number, PlanOrder("a", BATCH, 3.0), epoch=2)
        node.run(100)
    assert node.lease() == (2, 9)
    assert node.run(1000)["a"] == pytest.approx(750, rel=0.02)


@pytest.mark.parametrize("seconds", [NAN, -1.0, 0.0, INFINITY, 1e9])
def test_a_lease_for_an_absurd_time_is_no_lease(seconds: float) -> None:
    node = Node(a=BATCH, b=BATCH)
    node.grant(1, PlanOrder("a", BATCH, 50.0), seconds=seconds)
    assert node.lease() is None
    assert node.run(1000)["a"] == pytest.approx(500, rel=0.02)
    node.grant(1, PlanOrder("a", BATCH, 3.0))
    assert node.lease() == (1, 1)


@pytest.mark.parametrize("weight", [NAN, -1.0, 0.0, INFINITY])
def test_an_order_with_an_absurd_weight_is_no_order(weight: float) -> None:
    node = Node(a=BATCH, b=BATCH)
    node.grant(1, PlanOrder("a", NORMAL, weight), PlanOrder("b", BATCH, 3.0))
    assert node.run(1000)["b"] == pytest.approx(750, rel=0.02)


@pytest.mark.parametrize("weight", [1e-300, 5e-324, 1e-9])
def test_no_weight_starves_a_plan(weight: float) -> None:
    node = Node(a=BATCH, b=BATCH)
    node.grant(1, PlanOrder("a", BATCH, weight), PlanOrder("b", BATCH, 1.0 / weight if weight > 1e-300 else 1e300))
    assert node.run(int(LARGEST_CORRECTION**2) * 2)["a"] >= 1
    node.run(3000)
    assert node.run(1000)["a"] == pytest.approx(500, rel=0.02), "and nothing is left of it afterwards"


@pytest.mark.parametrize("weight", [1.0 / LARGEST_CORRECTION, LARGEST_CORRECTION])
@pytest.mark.parametrize("ends", [False, True])
def test_a_weight_leaves_no_debt(weight: float, ends: bool) -> None:
    node = Node(a=BATCH, b=BATCH, c=NORMAL)
    node.tell(PriorityChanged("a", NORMAL))
    node.grant(1, PlanOrder("a", BATCH, weight))
    assert node.run(100)["a"] >= 1, "served at its weight"
    node.tell(PriorityChanged("b", NORMAL))
    if ends:
        node.now += 3.0
        node.tell(TimePassed())
    else:
        node.grant(2)
    served = node.run(60)
    assert served["a"] == pytest.approx(served["b"], abs=2), "by the next chunks, not in the long run"
    assert served["a"] == pytest.approx(served["c"], abs=2)


def test_who_is_first_by_a_lease_starts_at_once_where_there_is_room() -> None:
    node = Node()
    for plan_id in "ab":
        node.open(plan_id, BATCH, works=False)
    node.submit("b", 1.5)
    node.submit("a", 1.5)
    node.submit("b", 1)
    node.step()
    assert [node.owners[chunk.transfer_id] for chunk in node.inside] == ["b", "a"], "half a chunk, and a whole one"
    node.grant(1, PlanOrder("b", BATCH, 0.1))
    assert [node.owners[chunk.transfer_id] for chunk in node.inside] == ["b", "a", "a"], "for whose half there was room"


def test_deadlines_of_a_lease_order_interactive_plans() -> None:
    node = Node(a=INTERACTIVE, b=INTERACTIVE)
    node.grant(1, PlanOrder("a", INTERACTIVE, 1.0, 60.0), PlanOrder("b", INTERACTIVE, 1.0, 5.0))
    assert node.run(50)["b"] >= 45
    node.grant(2, PlanOrder("a", INTERACTIVE, 1.0, 1.0), PlanOrder("b", INTERACTIVE, 1.0, 5.0))
    assert node.run(50)["a"] >= 45
    node.grant(3, PlanOrder("a", INTERACTIVE, 1.0, NAN), PlanOrder("b", INTERACTIVE, 1.0, -INFINITY))
    node.grant(4, PlanOrder("a", INTERACTIVE, 1.0, -1e300), PlanOrder("b", INTERACTIVE, 1.0, 1e300))
    node.grant(5)
    node.run(50)


def test_plans_that_start_or_end_during_a_lease() -> None:
    node = Node(a=BATCH, b=BATCH)
    node.grant(1, PlanOrder("a", BATCH, 3.0), PlanOrder("c", BATCH, 1.0), PlanOrder("nobody", INTERACTIVE, 1.0))
    node.open("c", BATCH, works=False)
    node.tell(PlanClosed("b"))
    node.inside = deque(chunk for chunk in node.inside if node.owners[chunk.transfer_id] != "b")
    node.submit("c")
    node.grant(2, PlanOrder("a", BATCH, 3.0), PlanOrder("c", BATCH, 1.0))


def test_a_lease_of_far_too_many_plans_only_costs_time() -> None:
    node = Node(a=BATCH, b=BATCH)
    node.grant(1, *(PlanOrder(f"p{number}", INTERACTIVE, 1.0) for number in range(100_000)))
    assert node.run(200)["a"] == pytest.approx(100, abs=5)


ANY_FLOAT = st.one_of(st.floats(0.01, 100.0), st.sampled_from([NAN, INFINITY, -1.0, 0.0, 1e300, 5e-324]))
ANY_DUE = st.one_of(st.none(), st.floats(-1.0, 1.0), st.sampled_from([NAN, INFINITY, -INFINITY, 1e300, -1e300]))
ANY_ORDER = st.builds(PlanOrder, st.sampled_from("abcx"), st.sampled_from(PriorityClass), ANY_FLOAT, ANY_DUE)
ANY_LEASE = st.builds(
    Lease,
    st.integers(0, 3),
    st.integers(0, 12),
    st.one_of(st.floats(0.01, 5.0), ANY_FLOAT),
    st.lists(ANY_ORDER, max_size=6).map(tuple),
)


class LeaseHistory(RuleBasedStateMachine):
    """Leases of two centres, old, doubled, late and absurd ones, while plans go on."""

    @initialize(classes=st.tuples(*[st.sampled_from(PriorityClass)] * 3))
    def start(self, classes: tuple[PriorityClass, ...]) -> None:
        self.node = Node()
        self.own = dict(zip("abc", classes, strict=True))
        for plan_id, priority in self.own.items():
            self.node.open(plan_id, priority)

    @rule(lease=ANY_LEASE)
    def grant(self, lease: Lease) -> None:
        before = self.node.lease()
        self.node.tell(LeaseGranted(lease))
        after = self.node.lease()
        assert after == before or after == (lease.epoch, lease.sequence)
        assert before is None or after is None or after >= before

    @rule(plan_id=st.sampled_from("abc"), priority=st.sampled_from(PriorityClass))
    def change(self, plan_id: str, priority: PriorityClass) -> None:
        self.node.tell(PriorityChanged(plan_id, priority))
        self.own[plan_id] = priority

    @rule(chunks=st.integers(1, 30))
    def serve(self, chunks: int) -> None:
        assert self.node.run(chunks).total() == chunks, "the device is never idle while somebody waits"

    @rule(seconds=st.floats(0.0, 5.0))
    def wait(self, seconds: float) -> None:
        """The device stands still."""
        self.node.now += seconds
        self.node.tell(TimePassed())

    @invariant()
    def the_device_works(self) -> None:
        if hasattr(self, "node"):
            assert self.node.inside

    def teardown(self) -> None:
        """Without a centre nothing is left of it: equal plans of a class are equal, and lower ones are not starved."""
        if not hasattr(self, "node"):
            return
        for _ in range(15):
            self.wait(5.0)
            self.node.run(5)
        assert self.node.lease() is None
        served = self.node.run(2500)
        for plan_id, priority in self.own.items():
            assert served[plan_id] > 0, "nobody starves"
            for other, others in self.own.items():
                if priority == others != INTERACTIVE:
                    assert served[plan_id] == pytest.approx(served[other], rel=0.1, abs=10)


LeaseHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestLeaseHistory = LeaseHistory.TestCase
