"""Random histories: nothing is lost, nothing is moved twice, and every transfer ends once."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pystachio.errors import DataError
from pystachio.io_scheduler.events import (
    Action,
    CancelChunks,
    ChunkCompleted,
    ChunkFailed,
    CompleteTransfer,
    Event,
    FailTransfer,
    LinkOpened,
    PlanCancelled,
    PlanClosed,
    PlanOpened,
    PriorityChanged,
    StartChunk,
    TransfersCancelled,
    TransfersSubmitted,
)
from pystachio.io_scheduler.request import Extent, Link, LinkLimits, PriorityClass, Transfer
from pystachio.io_scheduler.scheduler import Scheduler

LINKS = (Link("disk", "1:0"), Link("disk", "2:0"))
PLANS = ("a", "b", "c")
WINDOW = 40
ANY_PLAN = st.sampled_from(PLANS)
ANY_PRIORITY = st.sampled_from(PriorityClass)
ANY_TRANSFER = st.tuples(ANY_PLAN, st.sampled_from(LINKS), st.integers(0, 90), st.integers(0, 2))


class History(RuleBasedStateMachine):
    """Plays the devices and the clients, with a model of its own: what was submitted, inside, arrived and ended."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()
        self.submitted: dict[int, Transfer] = {}
        self.ended: set[int] = set()
        self.given_up: set[int] = set()
        self.inside: dict[tuple[int, int], int] = {}
        self.started: dict[int, list[Extent]] = {}
        self.priorities: dict[str, PriorityClass] = {}
        self.closed: set[str] = set()
        for link in LINKS:
            self.handle(LinkOpened(link, LinkLimits(chunk_bytes=16, window_bytes=WINDOW, calibrated=False)))

    def handle(self, event: Event) -> list[Action]:
        actions = self.scheduler.handle(event, 0.0)
        for action in actions:
            self.obey(action)
        return actions

    def obey(self, action: Action) -> None:
        transfer_id = action.transfer_id
        assert transfer_id not in self.ended, "nothing is ordered for a transfer that has ended"
        mine = [key for key in self.inside if key[0] == transfer_id]
        match action:
            case StartChunk(_, chunk, _):
                assert self.submitted[transfer_id].plan_id in self.priorities
                assert transfer_id not in self.given_up
                self.inside[transfer_id, chunk.offset] = chunk.length
                self.started.setdefault(transfer_id, []).append(chunk)
            case CompleteTransfer():
                assert not mine
                extent = self.submitted[transfer_id].extent
                position = extent.offset
                for chunk in self.started.get(transfer_id, []):
                    assert chunk.offset == position, "chunks follow each other without gap or overlap"
                    position = chunk.end
                assert position == extent.end
                self.ended.add(transfer_id)
            case FailTransfer():
                assert not mine, "a transfer fails only when no device touches its destination"
                self.ended.add(transfer_id)
            case CancelChunks(_, offsets):
                assert {(transfer_id, offset) for offset in offsets} == set(mine)
                self.given_up.add(transfer_id)

    @rule(plan_id=ANY_PLAN, priority=ANY_PRIORITY, weight=st.sampled_from([0.5, 1.0, 4.0]))
    def open_plan(self, plan_id: str, priority: PriorityClass, weight: float) -> None:
        if plan_id not in self.priorities:
            self.handle(PlanOpened(plan_id, priority, weight))
            self.priorities[plan_id] = priority

    @rule(requests=st.lists(ANY_TRANSFER, min_size=1, max_size=4), offset=st.integers(0, 1000))
    def submit(self, requests: list[tuple[str, Link, int, int]], offset: int) -> None:
        transfers = []
        for plan_id, link, length, criticality in requests:
            transfer_id = len(self.submitted)
            transfers.append(Transfer(transfer_id, plan_id, link, Extent(offset, length), criticality))
            self.submitted[transfer_id] = transfers[-1]
        before = set(self.inside)
        waiting_before = {t.transfer_id for t in self.submitted.values()} - self.ended
        actions = self.handle(TransfersSubmitted(tuple(transfers)))
        for action in actions:
            if isinstance(action, StartChunk) and (action.transfer_id, action.chunk.offset) not in before:
                self.check_nobody_more_urgent_waits(action, waiting_before)

    def check_nobody_more_urgent_waits(self, action: StartChunk, candidates: set[int]) -> None:
        started = self.submitted[action.transfer_id]
        for transfer_id in candidates - self.ended:
            other = self.submitted[transfer_id]
            moved = sum(chunk.length for chunk in self.started.get(transfer_id, []))
            if other.link == started.link and other.plan_id in self.priorities and moved < other.extent.length:
                ahead = self.priorities[started.plan_id] <= self.priorities[other.plan_id]
                assert ahead or transfer_id in self.given_up, "strict between classes"

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), fails=st.booleans())
    def end_chunk(self, data: st.DataObject, fails: bool) -> None:
        transfer_id, offset = data.draw(st.sampled_from(sorted(self.inside)))
        del self.inside[transfer_id, offset]
        if fails:
            self.handle(ChunkFailed(transfer_id, offset, DataError("broken")))
        else:
            self.handle(ChunkCompleted(transfer_id, offset))

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def cancel_transfers(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.submitted)), max_size=3))
        self.handle(TransfersCancelled(tuple(ids)))

    @rule(plan_id=ANY_PLAN)
    def cancel_plan(self, plan_id: str) -> None:
        self.handle(PlanCancelled(plan_id))

    @rule(plan_id=ANY_PLAN)
    def close_plan(self, plan_id: str) -> None:
        self.handle(PlanClosed(plan_id))
        self.priorities.pop(plan_id, None)

    @rule(plan_id=ANY_PLAN, priority=ANY_PRIORITY)
    def change_priority(self, plan_id: str, priority: PriorityClass) -> None:
        self.handle(PriorityChanged(plan_id, priority))
        if plan_id in self.priorities:
            self.priorities[plan_id] = priority

    @invariant()
    def books_balance(self) -> None:
        self.scheduler.check_invariants()
        assert self.scheduler.statistics().transfers == len(self.submitted) - len(self.ended)
        for link in LINKS:
            inside = sum(
                length for (transfer_id, _), length in self.inside.items() if self.submitted[transfer_id].link == link
            )
            assert inside <= WINDOW

    def teardown(self) -> None:
        """When the devices end what they have, everything ends."""
        while self.inside:
            transfer_id, offset = next(iter(self.inside))
            del self.inside[transfer_id, offset]
            self.handle(ChunkCompleted(transfer_id, offset))
        assert self.ended == set(self.submitted)


History.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestHistory = History.TestCase
