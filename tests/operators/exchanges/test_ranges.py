"""Ranges: every row has one, no row is before one of an earlier range, and they are about equal."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pystachio.operators.arrow import batch_from_arrow
from pystachio.operators.batch import Batch, Field
from pystachio.operators.exchanges import ranges as exchange_ranges
from pystachio.operators.exchanges.ranges import Ranges
from pystachio.operators.expressions import SortKey
from pystachio.operators.kernels.selection import concat_batches, take_batch
from pystachio.operators.sort import order_of

FIELDS = (Field("word", pa.string(), True), Field("number", pa.int64(), True))
ROWS = st.lists(st.tuples(st.none() | st.sampled_from("abcdefgh"), st.none() | st.integers(-5, 5)), max_size=60)
KEYS = st.lists(
    st.builds(SortKey, st.integers(0, 1), st.booleans(), st.booleans()),
    min_size=1,
    max_size=2,
    unique_by=lambda k: k.index,
)


def batch_of(rows: Sequence[tuple[str | None, int | None]], *, coded: bool = False) -> Batch:
    words = pa.array([word for word, _ in rows], pa.string())
    numbers = pa.array([number for _, number in rows], pa.int64())
    return batch_from_arrow(pa.table({"word": words.dictionary_encode() if coded else words, "number": numbers}))


def agreed(batches: Sequence[Batch], order: Sequence[SortKey], nodes: int) -> Ranges:
    """What nodes with one batch each agree on."""
    schema = (*(FIELDS[key.index] for key in order), Field("rows", pa.int64(), False))
    samples = [exchange_ranges._sample([batch], order, schema) for batch in batches]
    return Ranges(exchange_ranges._cut(samples, order, nodes), tuple(order))


@settings(max_examples=150)
@given(st.lists(ROWS, min_size=1, max_size=4), KEYS, st.integers(2, 5))
def test_nodes_in_turn_are_in_order(
    parts: list[list[tuple[str | None, int | None]]], order: list[SortKey], nodes: int
) -> None:
    batches = [batch_of(rows, coded=number % 2 == 0) for number, rows in enumerate(parts)]
    ranges = agreed(batches, order, nodes)
    sent = [ranges.rows(batch, nodes) for batch in batches]
    for batch, rows in zip(batches, sent, strict=True):
        assert sorted(torch.cat(rows).tolist()) == list(range(batch.length))
    sorted_parts = []
    for node in range(nodes):
        here = concat_batches([take_batch(batch, rows[node]) for batch, rows in zip(batches, sent, strict=True)])
        sorted_parts.append(take_batch(here, order_of(here, order)))
    whole = concat_batches(sorted_parts)
    # Stable: what is in order already stays as it is.
    assert order_of(whole, order).tolist() == list(range(whole.length))


def test_ranges_are_about_equal_whoever_has_the_rows() -> None:
    few, many = batch_of([("a", number) for number in range(1000)]), batch_of([("a", n) for n in range(1000, 99_000)])
    ranges = agreed([few, many, batch_of([])], [SortKey(0, False, False), SortKey(1, True, False)], 4)
    sizes = [len(one) + len(other) for one, other in zip(ranges.rows(few, 4), ranges.rows(many, 4), strict=True)]
    assert min(sizes) > 0.95 * 99_000 / 4


def test_rows_that_tie_are_on_one_node() -> None:
    same = batch_of([("a", 1)] * 5000)
    ranges = agreed([same, same], [SortKey(0, False, False)], 3)
    assert sorted(len(rows) for rows in ranges.rows(same, 3)) == [0, 0, 5000]


def test_samples_of_long_texts_are_small() -> None:
    long = batch_of([("x" * 100_000 + str(number), number) for number in range(64)])
    schema = (FIELDS[0], Field("rows", pa.int64(), False))
    sample = exchange_ranges._sample([long], [SortKey(0, False, False)], schema)
    assert 1 <= sample.length < 16
