"""Chunks that fail and are tried again, chunks that devices do not end, and clocks that jump meanwhile."""

from __future__ import annotations

import pytest

from pystachio.errors import Cancelled, DataError, ResourceExhausted
from pystachio.io_scheduler.core.events import (
    CancelChunks,
    CompleteTransfer,
    FailTransfer,
    PlanCancelled,
    StartChunk,
    TimePassed,
    TransfersCancelled,
    WriteOffChunks,
)
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import CreditPool, Extent, Link, LinkLimits, PriorityClass, Transfer
from tests.io_scheduler.core.scheduler_model import World

DISK, BUS = Link("disk", "1:0"), Link("pcie", "0")
POOL = CreditPool("host", 0)
BUSY = ResourceExhausted("the device is busy", setting="device", value=1)
BROKEN = DataError("the disk is broken")


def world(*, attempts: int = 3, timeout_seconds: float = 30.0, peer_bytes: int | None = None) -> World:
    w = World(POLICIES["pystachio"])
    limits = LinkLimits(
        chunk_bytes=10,
        window_bytes=20,
        calibrated=False,
        smallest_chunk_bytes=10,
        attempts=attempts,
        timeout_seconds=timeout_seconds,
        peer_bytes=peer_bytes,
    )
    w.open_link(DISK, limits)
    w.open_link(BUS, limits)
    w.open_pool(POOL, 100)
    w.open_plan("a", PriorityClass.NORMAL)
    w.open_plan("b", PriorityClass.NORMAL)
    return w


def transfer(
    transfer_id: int, length: int = 10, plan_id: str = "a", *, by_chunk: bool = False, through: Link | None = None
) -> Transfer:
    peer = "x" if through is None else None
    return Transfer(transfer_id, plan_id, DISK, Extent(0, length), 0, POOL, by_chunk, through, peer)


# Another try


def test_a_retryable_error_is_tried_again_after_longer_and_longer_pauses() -> None:
    w = world(attempts=4)
    w.submit([transfer(1)])
    for pause in (0.01, 0.04, 0.16):
        assert w.end_chunk(1, 0, BUSY) == []
        assert w.scheduler.next_wake() == pytest.approx(w.clock + pause)
        w.advance(pause * 0.99)
        assert w.inside() == []
        w.advance(pause * 0.02)
        assert w.inside() == [(1, 0)]
    assert w.end_chunk(1, 0, BUSY) == [FailTransfer(1, BUSY)]


def test_a_chunk_that_succeeds_the_second_time_is_as_good_as_any() -> None:
    w = world()
    w.submit([transfer(1, 20)])
    w.end_chunk(1, 0, BUSY)
    assert w.end_chunk(1, 10) == []
    w.advance(0.02)
    assert w.end_chunk(1, 0) == [CompleteTransfer(1)]


def test_attempts_are_counted_for_each_chunk() -> None:
    w = world(attempts=2)
    w.submit([transfer(1, 60)])
    failed: set[tuple[int, int]] = set()
    while 1 not in w.ended:
        for chunk in w.inside():
            w.end_chunk(*chunk, None if chunk in failed else BUSY)
            failed.add(chunk)
        w.advance(0.1)
    assert len(failed) == 6
    assert w.ended == {1: None}


def test_other_chunks_go_on_during_the_pause() -> None:
    w = world()
    w.submit([transfer(1, 40), transfer(2, 10, "b")])
    actions = w.end_chunk(1, 0, BUSY)
    assert [type(action) for action in actions] == [StartChunk]
    w.finish()
    assert w.ended == {1: None, 2: None}


def test_other_errors_are_final() -> None:
    w = world()
    w.submit([transfer(1, 20)])
    assert w.end_chunk(1, 10, BROKEN) == [CancelChunks(1, (0,))]
    assert w.end_chunk(1, 0, BUSY) == [FailTransfer(1, BROKEN)]


@pytest.mark.parametrize("by_chunk", [True, False])
def test_a_transfer_that_pauses_can_be_cancelled(by_chunk: bool) -> None:
    w = world()
    w.submit([transfer(1, by_chunk=by_chunk)])
    w.end_chunk(1, 0, BUSY)
    (failed,) = w.tell(TransfersCancelled((1,)))
    assert isinstance(failed, FailTransfer)
    assert isinstance(failed.error, Cancelled)
    assert w.scheduler.next_wake() is None, "nothing is to be tried again"
    assert w.used(POOL) == 0


def test_what_failed_is_tried_before_what_has_not_been_tried() -> None:
    w = world()
    w.submit([transfer(1, 60)])
    w.end_chunk(1, 0, BUSY)
    w.advance(0.02)
    w.end_chunk(1, 10)
    assert (1, 0) in w.inside()


# Devices that do not answer


@pytest.mark.parametrize("through", [None, BUS], ids=["a peer", "a bus"])
@pytest.mark.parametrize("by_chunk", [True, False])
def test_chunks_time_out_are_written_off_and_come_back(through: Link | None, by_chunk: bool) -> None:
    w = world(timeout_seconds=5.0, peer_bytes=20)
    w.submit([transfer(1, 40, by_chunk=by_chunk, through=through), transfer(2, 20, "b", through=through)])
    inside = w.inside()
    w.advance(4.9)
    assert not w.accounts[1].given_up
    w.advance(1.2)
    assert w.accounts[1].given_up, "its chunks are cancelled"
    w.advance(3.0)
    assert 1 not in w.ended
    w.advance(2.0)
    error = w.ended[1]
    assert isinstance(error, ResourceExhausted)
    assert (error.setting, error.value) == ("io_timeout", 5.0)
    (disk, _) = w.scheduler.statistics().links
    assert disk.written_off_bytes >= 10
    w.submit([transfer(3, 10, "b", through=through)])
    assert any(number == 3 for number, _ in w.inside()), "others use the link"
    for chunk in inside:
        if chunk in w.inside():
            assert not any(isinstance(action, CompleteTransfer) for action in w.end_chunk(*chunk) if chunk[0] == 1)
    w.finish()
    assert w.ended[3] is None


def test_a_cancelled_transfer_does_not_wait_for_a_device_for_ever() -> None:
    w = world(timeout_seconds=5.0)
    w.submit([transfer(1)])
    w.tell(PlanCancelled("a"))
    w.advance(9.0)
    assert 1 not in w.ended
    w.advance(3.0)
    assert isinstance(w.ended[1], Cancelled)
    assert w.inside() == [(1, 0)], "the device still has it"
    w.finish()


def test_when_a_chunk_ends_between_time_out_and_write_off_its_transfer_fails_then() -> None:
    w = world(timeout_seconds=5.0)
    w.submit([transfer(1)])
    w.advance(6.0)
    (failed,) = w.end_chunk(1, 0)
    assert isinstance(failed, FailTransfer)
    assert isinstance(failed.error, ResourceExhausted)
    assert w.used(POOL) == 0


def test_write_off_follows_cancel_and_precedes_the_failure() -> None:
    w = world(timeout_seconds=5.0)
    w.submit([transfer(1)])
    orders = []
    for second in range(1, 13):
        w.clock = float(second)
        orders += w.tell(TimePassed())
    assert orders[:2] == [CancelChunks(1, (0,)), WriteOffChunks(1, (0,))]
    assert [type(order) for order in orders[2:]] == [FailTransfer]


def test_nobody_needs_to_be_woken_when_nothing_is_under_way() -> None:
    w = world()
    assert w.scheduler.next_wake() is None
    w.submit([transfer(1)])
    assert w.scheduler.next_wake() == 1.0
    w.end_chunk(1, 0)
    assert w.scheduler.next_wake() is None


# Clocks


def test_a_machine_that_slept_fails_nothing() -> None:
    w = world(timeout_seconds=5.0)
    w.submit([transfer(1)])
    for _ in range(3):
        w.advance(0.5, jump=3600.0)
    assert w.scheduler.statistics().clock_jumps == 3
    assert not w.accounts[1].given_up
    assert w.end_chunk(1, 0) == [CompleteTransfer(1)]


def test_a_clock_that_is_set_back_stops_neither_time_outs_nor_retries() -> None:
    w = world(timeout_seconds=5.0)
    w.clock = 1000.0
    w.submit([transfer(1), transfer(2, plan_id="b")])
    w.end_chunk(2, 0, BUSY)
    w.advance(0.0, jump=-500.0)
    w.advance(0.02)
    assert (2, 0) in w.inside()
    w.advance(12.0)
    assert isinstance(w.ended[1], ResourceExhausted)
    w.finish()


def test_whoever_is_woken_as_asked_finds_something_to_do() -> None:
    """Rounding must not make the shell wake for ever: `advance` counts."""
    w = world(attempts=10)
    w.clock = 12345.678
    for number in range(50):
        w.submit([transfer(number)])
        for chunk in w.inside():
            w.end_chunk(*chunk, BUSY if number % 3 else None)
        w.advance(0.0123 + number / 7, jump=-0.1 * number)
    w.finish()
