"""Facts in, orders out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pystachio.errors import Cancelled, DataError
from pystachio.io_scheduler.core.events import (
    Action,
    CancelChunks,
    ChunkFailed,
    ChunksCompleted,
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
from pystachio.io_scheduler.core.request import Extent, Link, LinkLimits, PriorityClass, Transfer
from pystachio.io_scheduler.core.scheduler import Scheduler

DISK = Link("disk", "1:0")
OTHER_DISK = Link("disk", "2:0")
LIMITS = LinkLimits(chunk_bytes=10, window_bytes=20, calibrated=False)
BROKEN = DataError("the disk is broken")


class Core:
    """A scheduler with two links and the plans `a` and `b`, whose invariants are checked after every event."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.handle(LinkOpened(DISK, LIMITS))
        self.handle(LinkOpened(OTHER_DISK, LIMITS))
        self.handle(PlanOpened("a", PriorityClass.NORMAL))
        self.handle(PlanOpened("b", PriorityClass.NORMAL))

    def handle(self, event: Event, now: float = 0.0) -> list[Action]:
        actions = self.scheduler.handle(event, now)
        self.scheduler.check_invariants()
        return actions

    def submit(self, *transfers: Transfer, now: float = 0.0) -> list[Action]:
        return self.handle(TransfersSubmitted(transfers), now)


def transfer(transfer_id: int, length: int, plan_id: str = "a", link: Link = DISK, offset: int = 0) -> Transfer:
    return Transfer(transfer_id, plan_id, link, Extent(offset, length))


def start(transfer_id: int, offset: int, length: int = 10, queue_seconds: float = 0.0) -> StartChunk:
    return StartChunk(transfer_id, Extent(offset, length), queue_seconds)


@pytest.fixture
def core() -> Core:
    return Core()


def test_a_transfer_is_cut_at_dispatch_and_ends_with_its_last_chunk(core: Core) -> None:
    assert core.submit(transfer(1, 32, offset=100), now=1.0) == [start(1, 100), start(1, 110)]
    assert core.handle(ChunksCompleted(((1, 110),)), 2.0) == []
    assert core.handle(ChunksCompleted(((1, 100),)), 3.0) == [start(1, 120, 12, queue_seconds=2.0)]
    assert core.handle(ChunksCompleted(((1, 120),))) == [CompleteTransfer(1)]
    assert core.scheduler.statistics().transfers == 0


def test_links_do_not_wait_for_each_other(core: Core) -> None:
    assert core.submit(transfer(1, 100), transfer(2, 10, link=OTHER_DISK)) == [start(1, 0), start(1, 10), start(2, 0)]


def test_the_order_is_decided_between_all_that_arrived_together(core: Core) -> None:
    core.handle(PriorityChanged("b", PriorityClass.INTERACTIVE))
    assert core.submit(transfer(1, 20), transfer(2, 10, "b")) == [start(2, 0), start(1, 0)]


def test_an_empty_transfer_is_complete(core: Core) -> None:
    assert core.submit(transfer(1, 0)) == [CompleteTransfer(1)]


def test_a_failed_chunk_fails_the_transfer_once_nothing_is_outstanding(core: Core) -> None:
    core.submit(transfer(1, 100), transfer(2, 10))
    assert core.handle(ChunkFailed(1, 0, BROKEN)) == [CancelChunks(1, (10,)), start(2, 0)]
    assert core.handle(ChunksCompleted(((1, 10),))) == [FailTransfer(1, BROKEN)]
    assert core.handle(ChunksCompleted(((2, 0),))) == [CompleteTransfer(2)]


def test_the_first_error_is_reported(core: Core) -> None:
    core.submit(transfer(1, 20))
    core.handle(ChunkFailed(1, 10, BROKEN))
    assert core.handle(ChunkFailed(1, 0, DataError("another"))) == [FailTransfer(1, BROKEN)]


def test_a_cancelled_transfer_that_waits_fails_at_once(core: Core) -> None:
    core.submit(transfer(1, 20), transfer(2, 10))
    (action,) = core.handle(TransfersCancelled((2,)))
    assert isinstance(action, FailTransfer)
    assert action.transfer_id == 2
    assert isinstance(action.error, Cancelled)


def test_a_cancelled_transfer_inside_the_device_fails_when_it_has_left(core: Core) -> None:
    core.submit(transfer(1, 100))
    assert core.handle(TransfersCancelled((1,))) == [CancelChunks(1, (0, 10))]
    assert core.handle(ChunksCompleted(((1, 0),))) == []
    (action,) = core.handle(ChunksCompleted(((1, 10),)))
    assert isinstance(action, FailTransfer)


def test_cancelling_what_has_ended_does_nothing(core: Core) -> None:
    core.submit(transfer(1, 10))
    core.handle(ChunksCompleted(((1, 0),)))
    assert core.handle(TransfersCancelled((1, 7))) == []


def test_a_cancelled_plan_leaves_the_other_untouched(core: Core) -> None:
    core.submit(transfer(1, 30), transfer(2, 30, "b"), transfer(3, 10, "b"))
    cancelled = core.handle(PlanCancelled("b"))
    assert {type(action) for action in cancelled} == {CancelChunks, FailTransfer}
    (refused,) = core.submit(transfer(4, 10, "b"))
    assert isinstance(refused, FailTransfer)
    assert refused.error.plan_id == "b"
    # The place that plan b leaves goes to plan a.
    ended = core.handle(ChunksCompleted(((2, 0),)))
    assert start(1, 10) in ended


def test_a_closed_plan_is_forgotten(core: Core) -> None:
    core.submit(transfer(1, 30, "b"))
    core.handle(PlanClosed("b"))
    core.handle(ChunksCompleted(((1, 0),)))
    core.handle(ChunksCompleted(((1, 10),)))
    statistics = core.scheduler.statistics()
    assert statistics.plans == 1
    assert statistics.transfers == 0
    core.handle(PlanOpened("b", PriorityClass.BATCH))
    assert core.submit(transfer(2, 10, "b")) == [start(2, 0)]


def test_a_change_of_priority_applies_to_what_waits(core: Core) -> None:
    core.submit(transfer(1, 100), transfer(2, 100, "b"))
    core.handle(PriorityChanged("b", PriorityClass.BATCH))
    started = [core.handle(ChunksCompleted(((1, 0),))), core.handle(ChunksCompleted(((2, 0),)))]
    assert started == [[start(1, 10)], [start(1, 20)]]


def test_statistics_count_what_waits_and_what_is_inside(core: Core) -> None:
    core.submit(transfer(1, 100))
    (link, other) = core.scheduler.statistics().links
    assert (link.waiting_transfers, link.waiting_bytes, link.outstanding_bytes) == (1, 80, 20)
    assert (other.waiting_transfers, other.waiting_bytes, other.outstanding_bytes) == (0, 0, 0)


def test_the_core_loads_nothing_that_waits_or_rolls_dice() -> None:
    modules = (
        "pystachio.io_scheduler.core.request, pystachio.io_scheduler.core.policy, pystachio.io_scheduler.core.scheduler"
    )
    forbidden = {"asyncio", "torch", "numpy", "kvikio", "ucxx", "random"}
    script = f"import sys; import {modules}; print(*sorted(sys.modules))"
    finished = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert forbidden.isdisjoint(finished.stdout.split())
