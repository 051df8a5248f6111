"""Memory that a device was told to fill, and of which nobody knows when it will let go."""

from __future__ import annotations

from pystachio.errors import ResourceExhausted
from pystachio.io_scheduler.core.events import (
    Action,
    CancelChunks,
    ChunksCompleted,
    CreditReleased,
    DeliverChunk,
    Event,
    FailTransfer,
    LinkOpened,
    PlanOpened,
    PoolOpened,
    StartChunk,
    TimePassed,
    TransfersSubmitted,
)
from pystachio.io_scheduler.core.request import CreditPool, Extent, Link, LinkLimits, PriorityClass, Transfer
from pystachio.io_scheduler.core.scheduler import Scheduler

STUCK = Link("disk", "1:0")
HEALTHY = Link("disk", "2:0")
MEMORY = CreditPool("host", 0)
LIMITS = LinkLimits(chunk_bytes=10, window_bytes=40, calibrated=False, smallest_chunk_bytes=10, timeout_seconds=1.0)


class Core:
    """Two disks and a pool; the invariants are checked after every event."""

    def __init__(self, pool_bytes: int) -> None:
        self.scheduler = Scheduler()
        for link in (STUCK, HEALTHY):
            self.handle(LinkOpened(link, LIMITS))
        self.handle(PoolOpened(MEMORY, pool_bytes))
        self.handle(PlanOpened("urgent", PriorityClass.INTERACTIVE))
        self.handle(PlanOpened("batch", PriorityClass.BATCH))

    def handle(self, event: Event, now: float = 0.0) -> list[Action]:
        actions = self.scheduler.handle(event, now)
        self.scheduler.check_invariants()
        return actions

    def submit(self, transfer_id: int, link: Link, length: int, plan_id: str = "urgent") -> list[Action]:
        transfer = Transfer(transfer_id, plan_id, link, Extent(0, length), credit=MEMORY, by_chunk=True)
        return self.handle(TransfersSubmitted((transfer,)))

    def pass_time(self, seconds: int) -> list[Action]:
        return [action for second in range(1, seconds + 1) for action in self.handle(TimePassed(), float(second))]


def test_what_is_left_of_a_pool_is_shared_like_a_smaller_pool() -> None:
    """Nearly half of the pool is lost. Under the limits of the whole pool a batch chunk would never fit."""
    core = Core(pool_bytes=22)
    core.submit(1, STUCK, 10)
    assert core.submit(2, HEALTHY, 20, "batch") == []
    actions = core.pass_time(3)
    assert StartChunk(2, Extent(0, 10), 3.0) in actions
    assert core.handle(ChunksCompleted(((2, 0),)), 4.0) == [DeliverChunk(2, Extent(0, 10))]
    assert core.handle(CreditReleased(MEMORY, 10), 4.0) == [StartChunk(2, Extent(10, 10), 4.0)]


def test_what_can_never_fit_into_the_rest_fails() -> None:
    core = Core(pool_bytes=20)
    core.submit(1, STUCK, 20)
    core.submit(2, HEALTHY, 10, "batch")
    (failed,) = (action for action in core.pass_time(3) if isinstance(action, FailTransfer) and action.transfer_id == 2)
    assert isinstance(failed.error, ResourceExhausted)
    assert failed.error.value == 0
    (refused,) = core.submit(3, HEALTHY, 10)
    assert isinstance(refused, FailTransfer)


def test_memory_that_comes_back_late_is_used_again() -> None:
    core = Core(pool_bytes=20)
    core.submit(1, STUCK, 20)
    core.pass_time(3)
    core.handle(ChunksCompleted(((1, 0),)), 4.0)
    core.handle(ChunksCompleted(((1, 10),)), 4.0)
    assert core.submit(2, HEALTHY, 10) == [StartChunk(2, Extent(0, 10), 0.0)]
    (pool,) = core.scheduler.statistics().pools
    assert pool.used_bytes == 10


def test_behind_a_transfer_that_timed_out_the_next_one_starts_at_once() -> None:
    """The flow is parked, because its first transfer lacks memory for its next chunk; the next one needs less."""
    core = Core(pool_bytes=25)
    core.submit(1, HEALTHY, 10)
    core.handle(ChunksCompleted(((1, 0),)))
    core.submit(2, STUCK, 20)
    assert core.submit(3, STUCK, 5) == []
    assert core.pass_time(2) == [CancelChunks(2, (0,)), StartChunk(3, Extent(0, 5), 2.0)]
