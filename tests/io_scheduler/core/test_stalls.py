"""Chunks that are stuck in a device take no room from others, up to one more window."""

from __future__ import annotations

from pystachio.errors import ResourceExhausted
from pystachio.io_scheduler.core.events import (
    Action,
    CancelChunks,
    ChunksCompleted,
    CompleteTransfer,
    Event,
    FailTransfer,
    LinkOpened,
    PlanOpened,
    StartChunk,
    TimePassed,
    TransfersSubmitted,
    WriteOffChunks,
)
from pystachio.io_scheduler.core.request import Extent, Link, LinkLimits, PriorityClass, Transfer
from pystachio.io_scheduler.core.scheduler import Scheduler

DISK = Link("disk", "1:0")
BUS = Link("pcie", "0")


class Core:
    """Chunks of 10 bytes, two of them inside; time is steady as long as somebody looks once a second."""

    def __init__(self, *, calibrated: bool = False) -> None:
        self.scheduler = Scheduler()
        limits = LinkLimits(
            chunk_bytes=10, window_bytes=20, calibrated=calibrated, smallest_chunk_bytes=10, timeout_seconds=5.0
        )
        for event in (LinkOpened(DISK, limits), LinkOpened(BUS, limits), PlanOpened("a", PriorityClass.NORMAL)):
            self.handle(event, 0.0)

    def handle(self, event: Event, now: float) -> list[Action]:
        actions = self.scheduler.handle(event, now)
        self.scheduler.check_invariants()
        return actions

    def submit(self, *transfers: Transfer) -> list[Action]:
        return self.handle(TransfersSubmitted(transfers), 0.0)

    def started(self, *actions: Action) -> list[tuple[int, int]]:
        return [(action.transfer_id, action.chunk.offset) for action in actions if isinstance(action, StartChunk)]


def transfer(transfer_id: int, length: int, through: Link | None = None) -> Transfer:
    return Transfer(transfer_id, "a", DISK, Extent(0, length), through=through)


def test_what_is_stuck_for_a_second_makes_room_once() -> None:
    core = Core()
    assert core.started(*core.submit(transfer(1, 100))) == [(1, 0), (1, 10)]
    assert core.handle(TimePassed(), 0.9) == []
    assert core.started(*core.handle(TimePassed(), 1.0)) == [(1, 20), (1, 30)]
    for now in (2.0, 3.0, 4.0):
        assert core.handle(TimePassed(), now) == [], "a device that has stopped gets no more"
    (link, _) = core.scheduler.statistics().links
    assert link.outstanding_bytes == 40


def test_a_stuck_chunk_that_leaves_makes_no_room_twice() -> None:
    core = Core()
    core.submit(transfer(1, 100))
    core.handle(TimePassed(), 1.0)
    assert core.handle(ChunksCompleted(((1, 0),)), 1.5) == [], "its place is taken"
    assert core.started(*core.handle(ChunksCompleted(((1, 20),)), 1.6)) == [(1, 40)]
    assert core.handle(ChunksCompleted(((1, 10),)), 1.7) == []
    assert core.started(*core.handle(ChunksCompleted(((1, 30),)), 1.8)) == [(1, 50)]


def test_a_device_is_not_held_back_by_the_chunk_that_was_to_measure_it() -> None:
    core = Core(calibrated=True)
    # The first chunk goes in alone.
    assert core.started(*core.submit(transfer(1, 10), transfer(2, 30))) == [(1, 0)]
    assert core.started(*core.handle(TimePassed(), 1.0)) == [(2, 0), (2, 10)]
    assert core.started(*core.handle(ChunksCompleted(((2, 0),)), 1.1)) == [(2, 20)]
    assert core.handle(ChunksCompleted(((2, 10),)), 1.2) == []
    assert core.handle(ChunksCompleted(((2, 20),)), 1.3) == [CompleteTransfer(2)]
    assert core.handle(ChunksCompleted(((1, 0),)), 9.0) == [CompleteTransfer(1)]


def test_a_shared_link_is_relieved_as_well() -> None:
    core = Core()
    core.submit(transfer(1, 100, through=BUS))
    assert core.started(*core.handle(TimePassed(), 1.0)) == [(1, 20), (1, 30)]
    core.handle(ChunksCompleted(((1, 0),)), 1.1)
    core.handle(ChunksCompleted(((1, 20),)), 1.2)
    assert [link.outstanding_bytes for link in core.scheduler.statistics().links] == [30, 30]


def test_stuck_chunks_still_time_out() -> None:
    core = Core()
    core.submit(transfer(1, 20), transfer(2, 20))
    core.handle(TimePassed(), 1.0)
    for offset in (0, 10):
        core.handle(ChunksCompleted(((2, offset),)), 1.5)
    for now in (2.0, 3.0, 4.0, 5.0):
        assert core.handle(TimePassed(), now) == []
    assert core.handle(TimePassed(), 6.0) == [CancelChunks(1, (0, 10))]
    for now in (7.0, 8.0, 9.0, 10.0):
        assert core.handle(TimePassed(), now) == []
    written_off, failed = core.handle(TimePassed(), 11.0)
    assert written_off == WriteOffChunks(1, (0, 10))
    assert isinstance(failed, FailTransfer)
    assert isinstance(failed.error, ResourceExhausted)
    (link, _) = core.scheduler.statistics().links
    assert (link.outstanding_bytes, link.written_off_bytes) == (0, 20)
    assert core.handle(ChunksCompleted(((1, 0),)), 12.0) == []
    assert core.started(*core.handle(TransfersSubmitted((transfer(3, 30),)), 12.0)) == [(3, 0), (3, 10)]
