"""The second books notice what the core's own might miss."""

from __future__ import annotations

import pytest

from pystachio.errors import DataError
from pystachio.io_scheduler.core.events import (
    Action,
    ChunkFailed,
    ChunksCompleted,
    CompleteTransfer,
    CreditReleased,
    DeliverChunk,
    Event,
    FailTransfer,
    StartChunk,
    TransfersSubmitted,
    WriteOffChunks,
)
from pystachio.io_scheduler.core.request import CreditPool, Extent, Link, Transfer
from pystachio.io_scheduler.simulation.audit import Audit, InvariantViolated

POOL = CreditPool("host", 0)
LINK = Link("disk", "0")
BROKEN = DataError("broken")


def transfer(length: int = 20, *, by_chunk: bool = True) -> TransfersSubmitted:
    return TransfersSubmitted((Transfer(1, "plan", LINK, Extent(100, length), credit=POOL, by_chunk=by_chunk),))


def start(offset: int, length: int = 10) -> StartChunk:
    return StartChunk(1, Extent(offset, length), 0.0)


def completed(offset: int) -> ChunksCompleted:
    return ChunksCompleted(((1, offset),))


def deliver(offset: int, length: int = 10) -> DeliverChunk:
    return DeliverChunk(1, Extent(offset, length))


History = list[tuple[Event, list[Action]]]

GOOD: History = [
    (transfer(), [start(100), start(110)]),
    (ChunkFailed(1, 100, BROKEN), []),
    (completed(110), [deliver(110), start(100)]),
    (completed(100), [deliver(100), CompleteTransfer(1)]),
    (CreditReleased(POOL, 20), []),
]


def noted(history: History, pool_bytes: int = 20) -> Audit:
    audit = Audit(0)
    audit.open_pool(POOL, pool_bytes)
    for event, actions in history:
        audit.note(event, actions, 1.0)
    return audit


def test_a_good_history_has_nothing_wrong() -> None:
    noted(GOOD).check_end()


BAD: dict[str, tuple[History, str]] = {
    "outside": ([(transfer(), [start(90)])], "outside of it"),
    "beyond the end": ([(transfer(), [start(110, 20)])], "outside of it"),
    "twice": ([(transfer(), [start(100), start(105)])], "moved twice"),
    "again": ([*GOOD[:1], (completed(100), [start(100)])], "moved twice"),
    "early": ([(transfer(), [start(100), deliver(100)])], "has not arrived"),
    "doubled": ([(transfer(), [start(100)]), (completed(100), [deliver(100), deliver(100)])], "twice"),
    "missing": ([(transfer(), [start(110)]), (completed(110), [CompleteTransfer(1)])], "missing or doubled"),
    "incomplete": ([(transfer(), [start(100)]), (completed(100), [CompleteTransfer(1)])], "without its end"),
    "kept": ([*GOOD[:1], (completed(100), []), (completed(110), [CompleteTransfer(1)])], "kept chunks"),
    "too soon": ([(transfer(), [start(100), FailTransfer(1, BROKEN)])], "while a device works on it"),
    "unknown": ([*GOOD[:-1], (ChunksCompleted(((2, 0),)), [])], "2"),
    "ended": ([*GOOD[:-1], (CreditReleased(POOL, 1), [CompleteTransfer(1)])], "which has ended"),
    "released": ([(CreditReleased(POOL, 1), [])], "more of"),
    "memory": ([(transfer(30), [start(100), start(110), start(120)])], "30 bytes are in use"),
    "consumer": ([*GOOD[:4], (TransfersSubmitted((Transfer(2, "plan", LINK, Extent(0, 5), credit=POOL),)),
                              [StartChunk(2, Extent(0, 5), 0.0)])], "25 bytes are in use"),
    "whole": ([(transfer(30, by_chunk=False), [start(100)])], "30 bytes are in use"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_must_not_happen(name: str) -> None:
    history, message = BAD[name]
    with pytest.raises((InvariantViolated, KeyError), match=message):
        noted(history)


def test_what_is_left_at_the_end() -> None:
    with pytest.raises(InvariantViolated, match="1 transfers never ended: 1"):
        noted(GOOD[:1]).check_end()
    with pytest.raises(InvariantViolated, match=r"20 bytes of .* were never released"):
        noted(GOOD[:-1]).check_end()


def test_memory_of_what_was_written_off_is_still_in_use() -> None:
    history: History = [(transfer(), [start(100), WriteOffChunks(1, (100,)), FailTransfer(1, BROKEN)])]
    audit = noted(history)
    assert audit.written_off_bytes()[POOL] == 10
    audit.note(completed(100), [], 2.0)
    assert audit.written_off_bytes()[POOL] == 0
