"""Small batches reach the operator as large ones, and none is lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import torch

from pystachio.operators.batch import Batch
from pystachio.operators.coalesce import Coalesced
from pystachio.operators.column import FixedColumn


class Recording:
    """Passes batches on and remembers how long they were."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.is_closed = False

    def process(self, batch: Batch) -> Iterator[Batch]:
        self.lengths.append(batch.length)
        yield batch

    def finish(self) -> Iterator[Batch]:
        yield numbered(-1, 1)

    def close(self) -> None:
        self.is_closed = True


def numbered(first: int, length: int) -> Batch:
    return Batch((FixedColumn(pa.int64(), torch.arange(first, first + length)),), length, None)


def numbers(batches: list[Batch]) -> list[int]:
    columns = [batch.columns[0] for batch in batches]
    return [number for column in columns if isinstance(column, FixedColumn) for number in column.values.tolist()]


def test_small_batches_wait_for_each_other_in_order() -> None:
    inner = Recording()
    coalesced = Coalesced(inner, least_rows=10)
    out = [batch for first in range(0, 25, 4) for batch in coalesced.process(numbered(first, 4))]
    out += list(coalesced.finish() or ())
    assert inner.lengths == [12, 12, 4]
    assert numbers(out) == [*range(28), -1]


def test_a_large_batch_passes_at_once() -> None:
    inner = Recording()
    coalesced = Coalesced(inner, least_rows=10)
    assert numbers(list(coalesced.process(numbered(0, 50)))) == list(range(50))
    assert numbers(list(coalesced.finish() or ())) == [-1]
    assert inner.lengths == [50]


def test_half_of_the_rows_pass_at_once_with_those_that_wait() -> None:
    inner = Recording()
    coalesced = Coalesced(inner, least_rows=10)
    out = [
        batch
        for first, length in ((0, 5), (5, 4), (9, 5), (14, 6))
        for batch in coalesced.process(numbered(first, length))
    ]
    assert inner.lengths == [5, 9, 6]
    assert numbers(out) == list(range(20))
    assert not [batch for batch in coalesced.finish() or () if numbers([batch]) != [-1]]


def test_threads_lose_and_double_nothing() -> None:
    coalesced = Coalesced(Recording(), least_rows=64)

    def work(part: int) -> list[Batch]:
        firsts = range(part * 1000, part * 1000 + 1000, 5)
        return [batch for first in firsts for batch in coalesced.process(numbered(first, 5))]

    with ThreadPoolExecutor(4) as pool:
        out = [batch for batches in pool.map(work, range(4)) for batch in batches]
    out += list(coalesced.finish() or ())
    assert sorted(numbers(out)) == [-1, *range(4000)]


def test_what_nobody_wants_is_let_go() -> None:
    inner = Recording()
    coalesced = Coalesced(inner, least_rows=10)
    assert not list(coalesced.process(numbered(0, 4)))
    coalesced.close()
    assert inner.is_closed
    assert not inner.lengths
