"""The ring of chunks and transfers: bounded, cheap, and honest about what it has forgotten."""

from __future__ import annotations

from pystachio.io_scheduler.core.request import CreditPool, Link, PathTaken, PriorityClass
from pystachio.io_scheduler.history import ChunkRecord, History, TransferRecord, WindowRecord

DISK = Link("disk", "259:0")


def note_chunk(history: History, number: int, *, plan_id: str = "p", submitted: float | None = None) -> None:
    """One that enters at `number` and stays for half a second."""
    since = number if submitted is None else submitted
    origin = history.origin(number, plan_id, "scan", PriorityClass.NORMAL, DISK, since)
    history.chunk(origin, 0, 1, number, number + 0.5, PathTaken.DIRECT, False)


def note_transfer(history: History, number: int, plan_id: str = "p") -> None:
    origin = history.origin(number, plan_id, "scan", PriorityClass.NORMAL, DISK, number)
    history.transfer(origin, "/data/a", 1, number, number + 0.5, None, None, None)


def test_the_oldest_records_are_forgotten_and_that_is_said() -> None:
    history = History(capacity=3)
    for number in range(3):
        note_chunk(history, number)
    assert history.snapshot().complete_from == 0.5, "a full ring may have lost what ended before its oldest"
    note_chunk(history, 3)
    seen = history.snapshot()
    assert [each.transfer_id for each in seen.chunks] == [1, 2, 3]
    assert seen.complete_from == 1.5


def test_a_span_of_time_has_what_waited_or_was_under_way_in_it() -> None:
    history = History()
    for number in range(10):
        note_chunk(history, number, submitted=number - 2)
        note_transfer(history, number)
    seen = history.snapshot(since=4.2, until=5.2)
    assert [each.transfer_id for each in seen.chunks] == [4, 5, 6, 7]
    assert [each.transfer_id for each in seen.transfers] == [4, 5]
    assert seen.complete_from == 0


def test_a_record_says_all_of_a_chunk() -> None:
    history = History()
    note_chunk(history, 7, submitted=6.5)
    assert history.snapshot().chunks == (
        ChunkRecord(7, "p", "scan", PriorityClass.NORMAL, DISK, 0, 1, 6.5, 7, 7.5, path=PathTaken.DIRECT, failed=False),
    )


def test_a_record_says_all_of_a_transfer() -> None:
    history, pool = History(), CreditPool("host", 1)
    origin = history.origin(3, "p", "scan", PriorityClass.BATCH, DISK, 6.5)
    history.transfer(origin, "/f", 9, 7.0, 7.5, "data_error", pool, "there")
    assert history.snapshot().transfers == (
        TransferRecord(3, "p", "scan", PriorityClass.BATCH, DISK, "/f", 9, 6.5, 7.0, 7.5, "data_error", pool, "there"),
    )


def test_consumers_and_windows() -> None:
    history = History()
    history.consumed(7, 1.25)
    history.window(WindowRecord(0.5, DISK, 4096))
    history.window(WindowRecord(9, DISK, 8192))
    seen = history.snapshot(until=2)
    assert seen.consumed == {7: 1.25}
    assert seen.windows == (WindowRecord(0.5, DISK, 4096),)


def test_nothing_is_kept_when_it_is_off() -> None:
    history = History(enabled=False)
    note_chunk(history, 0)
    note_transfer(history, 0)
    history.consumed(0, 1)
    assert history.snapshot() == ((), (), {}, (), 0)
