"""The order in which a link serves what waits, chunk by chunk."""

from __future__ import annotations

from collections import Counter

import pytest

from pystachio.errors import Cancelled
from pystachio.io_scheduler.policy import LinkQueue, TransferProgress, chunk_length
from pystachio.io_scheduler.request import Extent, Link, LinkLimits, PriorityClass, Transfer

LINK = Link("disk", "1:0")
INTERACTIVE, NORMAL, BATCH = PriorityClass


def waiting(transfer_id: int, plan_id: str, length: int, criticality: int = 0) -> TransferProgress:
    return TransferProgress(Transfer(transfer_id, plan_id, LINK, Extent(0, length), criticality), submitted_at=0.0)


def served(queue: LinkQueue, chunks: int) -> list[int]:
    """The transfers of the next chunks, when each leaves the device before the next enters it."""
    order = []
    for _ in range(chunks):
        popped = queue.pop_chunk()
        if popped is None:
            break
        progress, chunk = popped
        order.append(progress.transfer.transfer_id)
        queue.settle(chunk.length)
    return order


def queue_of(chunk_bytes: int = 10, window_bytes: int = 20) -> LinkQueue:
    return LinkQueue(LinkLimits(chunk_bytes=chunk_bytes, window_bytes=window_bytes))


@pytest.mark.parametrize(
    ("remaining", "expected"), [(1, 1), (10, 10), (12, 12), (13, 10), (20, 10), (1000, 10)], ids=str
)
def test_a_small_rest_joins_the_last_chunk(remaining: int, expected: int) -> None:
    assert chunk_length(remaining, 10) == expected


def test_the_window_bounds_the_bytes_inside_the_device() -> None:
    queue = queue_of(window_bytes=20)
    queue.push(waiting(1, "p", 50), NORMAL, 1.0)
    assert [queue.pop_chunk() is not None for _ in range(3)] == [True, True, False]
    queue.settle(10)
    assert queue.pop_chunk() is not None
    assert queue.outstanding_bytes == 20


def test_a_chunk_larger_than_the_window_passes_alone() -> None:
    queue = queue_of(chunk_bytes=100, window_bytes=20)
    queue.push(waiting(1, "p", 100), NORMAL, 1.0)
    assert queue.pop_chunk() is not None


def test_classes_are_strict() -> None:
    queue = queue_of()
    queue.push(waiting(1, "batch", 20), BATCH, 1.0)
    queue.push(waiting(2, "normal", 20), NORMAL, 1.0)
    queue.push(waiting(3, "interactive", 20), INTERACTIVE, 1.0)
    assert served(queue, 6) == [3, 3, 2, 2, 1, 1]


def test_lower_classes_do_not_pass_an_urgent_chunk_that_waits_for_room() -> None:
    queue = queue_of(chunk_bytes=20, window_bytes=20)
    queue.push(waiting(1, "batch", 5), BATCH, 1.0)
    assert queue.pop_chunk() is not None
    queue.push(waiting(2, "batch", 5), BATCH, 1.0)
    queue.push(waiting(3, "urgent", 20), INTERACTIVE, 1.0)
    assert queue.pop_chunk() is None
    queue.settle(5)
    assert served(queue, 2) == [3, 2]


def test_plans_of_a_class_share_by_bytes_not_by_requests() -> None:
    queue = queue_of(chunk_bytes=10)
    for transfer_id in range(100):
        queue.push(waiting(transfer_id, "small", 2), NORMAL, 1.0)
    queue.push(waiting(1000, "large", 200), NORMAL, 1.0)
    order = served(queue, 60)
    # 60 chunks are 10 of ten bytes and 50 of two.
    assert Counter("large" if transfer_id == 1000 else "small" for transfer_id in order) == {"large": 10, "small": 50}


def test_weights_divide_the_bandwidth() -> None:
    queue = queue_of()
    queue.push(waiting(1, "heavy", 1000), NORMAL, 3.0)
    queue.push(waiting(2, "light", 1000), NORMAL, 1.0)
    assert Counter(served(queue, 40)) == {1: 30, 2: 10}


def test_idling_earns_no_credit() -> None:
    queue = queue_of()
    queue.push(waiting(1, "busy", 1000), NORMAL, 1.0)
    assert served(queue, 50) == [1] * 50
    queue.push(waiting(2, "was idle", 1000), NORMAL, 1.0)
    assert Counter(served(queue, 20)) == {1: 10, 2: 10}


def test_a_plan_cannot_reset_its_share_by_submitting_in_pieces() -> None:
    queue = queue_of()
    queue.push(waiting(1, "steady", 1000), NORMAL, 1.0)
    bursts = 0
    for transfer_id in range(10, 50):
        queue.push(waiting(transfer_id, "bursts", 10), NORMAL, 1.0)
        bursts += sum(served_id != 1 for served_id in served(queue, 2))
    assert bursts == 40


def test_criticality_orders_a_plan_and_arrival_breaks_ties() -> None:
    queue = queue_of()
    queue.push(waiting(1, "p", 10), NORMAL, 1.0)
    queue.push(waiting(2, "p", 10, criticality=5), NORMAL, 1.0)
    queue.push(waiting(3, "p", 10, criticality=5), NORMAL, 1.0)
    queue.push(waiting(4, "p", 10, criticality=-1), NORMAL, 1.0)
    assert served(queue, 4) == [2, 3, 1, 4]


def test_a_plan_moves_between_classes_with_what_waits() -> None:
    queue = queue_of()
    queue.push(waiting(1, "a", 100), BATCH, 1.0)
    queue.push(waiting(2, "b", 100), BATCH, 1.0)
    assert set(served(queue, 4)) == {1, 2}
    queue.move_plan("b", INTERACTIVE)
    assert served(queue, 3) == [2, 2, 2]
    queue.move_plan("b", BATCH)
    assert Counter(served(queue, 4)) == {1: 2, 2: 2}


def test_transfers_that_failed_are_passed_over() -> None:
    queue = queue_of()
    gone = waiting(1, "p", 100)
    queue.push(gone, NORMAL, 1.0)
    queue.push(waiting(2, "p", 10), NORMAL, 1.0)
    gone.error = Cancelled("gone")
    assert served(queue, 5) == [2]
    assert queue.waiting() == []


def test_a_forgotten_plan_leaves_nothing() -> None:
    queue = queue_of()
    queue.push(waiting(1, "p", 100), NORMAL, 1.0)
    queue.forget_plan("p")
    assert queue.pop_chunk() is None
    assert queue.waiting() == []
