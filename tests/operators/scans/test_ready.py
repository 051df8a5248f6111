"""Who takes what of a scan, and who is told that it was the last."""

from __future__ import annotations

import asyncio

import torch

from pystachio.operators.scans.hot_rows import HotRows
from pystachio.operators.scans.pace import Pace
from pystachio.operators.scans.ready import Left, Ready
from pystachio.operators.scans.rows import Piece, RowReader, ScanRows

READER = RowReader(predicate=None, filters=(), output=(), dictionaries={}, bounds=(), batch_rows=1000)


def rows(length: int) -> ScanRows:
    return ScanRows(READER, {}, Piece(0, length, None), is_tested=False)


def test_the_end_is_told_once() -> None:
    left, hot = Left(2), HotRows(2, Pace())
    hot.add(rows(10))
    left.became_hot(hot)
    left.job_began()
    assert hot.take()
    assert not left.job_ended()
    assert left.unit_ended()
    left.job_began()  # it came too late for any rows
    assert not left.job_ended()


def test_nothing_is_told_while_rows_are_left() -> None:
    left, hot = Left(1), HotRows(2, Pace())
    hot.add(rows(1_000_000))
    left.became_hot(hot)
    left.job_began()
    left.job_began()
    while hot.take():
        pass
    assert not left.job_ended()
    assert left.job_ended()


def test_a_unit_that_was_read_does_not_wait_for_rows_in_memory() -> None:
    async def run() -> None:
        ready: Ready[str] = Ready(1)
        hot = ready.put_hot(rows(1_000_000))
        ready.put("read")
        assert await ready.take() is hot
        assert await asyncio.wait_for(ready.take(), 1) == "read"
        ready.close()
        while hot.take():
            pass
        assert await asyncio.wait_for(ready.take(), 1) is None

    asyncio.run(run())


def test_few_rows_in_memory_are_for_one_taker() -> None:
    async def run() -> None:
        ready: Ready[str] = Ready(4)
        hot = ready.put_hot(rows(10))
        assert await ready.take() is hot
        other = asyncio.create_task(ready.take())
        await asyncio.sleep(0.01)
        assert not other.done()
        hot.take()
        ready.hot_job_ended()
        ready.close()
        assert await asyncio.wait_for(other, 1) is None

    asyncio.run(run())


def test_rows_that_are_being_cut_are_not_taken_for_none() -> None:
    hot = HotRows(2, Pace())
    assert hot.is_empty
    hot.add(rows(5))
    assert not hot.is_empty
    assert torch.tensor([part.length for part in hot.take()]).sum() == 5
    assert hot.is_empty
