"""Texts of partial batches in parts: against the rows that went in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
import torch

from pystachio.operators.aggregation.parts import IN_PLACE_BYTES, Part, no_parts, split_all, texts_in_place
from pystachio.operators.aggregation.plan import AggregatePlan, plan_aggregate
from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.batch import Batch, Field
from pystachio.operators.column import BytesColumn, Column, ViewColumn
from pystachio.operators.kernels import native
from pystachio.operators.kernels.selection import slice_batch, take_late
from pystachio.operators.kernels.texts import hash_texts

pytestmark = pytest.mark.skipif(native.library() is None, reason="needs the compiled library")

ROWS = 3000
TEXTS = [None if row % 97 == 0 else f"{row % 700} {'x' * (row % 50)}" for row in range(ROWS)]
TEXT_BYTES = sum(len(text) for text in TEXTS if text)


def batch(*columns: Column) -> Batch:
    return Batch(columns, len(columns[0]), None)


def texts() -> Column:
    return column_from_arrow(pa.array(TEXTS, pa.string()))


def plan() -> AggregatePlan:
    return plan_aggregate((Field("k", pa.string()),), (0,), (), ())


def split(batches: Sequence[Batch]) -> list[Part]:
    parts = no_parts(plan(), ROWS)
    in_place = texts_in_place(batches)
    for each in batches:
        for part, (rows, runs) in zip(parts, split_all(plan(), [each], len(parts), in_place), strict=True):
            part.add(rows, runs)
    return parts


def test_texts_stay_where_they_lie_and_count_once() -> None:
    whole = batch(texts())
    halves = [slice_batch(whole, 0, 1000), slice_batch(whole, 1000, ROWS)]
    assert texts_in_place(halves) == {0}
    parts = split(halves)
    found: list[str | None] = []
    for part in parts:
        for rows in part.batches:
            (column,) = rows.columns
            assert isinstance(column, ViewColumn)
            assert column.hashes is not None
            assert torch.equal(column.hashes, hash_texts(replace(column, hashes=None))), "each row's own"
            found += column_to_arrow(column).to_pylist()
    assert sorted(found, key=str) == sorted(TEXTS, key=str)
    groups = [
        {text for rows in part.batches for text in column_to_arrow(rows.columns[0]).to_pylist()} for part in parts
    ]
    assert sum(map(len, groups)) == len(set(TEXTS)), "a group is in one part"
    own = ROWS * (IN_PLACE_BYTES + 1)
    assert TEXT_BYTES + own <= sum(part.nbytes for part in parts) <= 1.25 * TEXT_BYTES + own


def test_few_texts_of_many_are_copied() -> None:
    kept = batch(take_late(texts(), torch.arange(0, ROWS, 3)))
    assert texts_in_place([kept]) == frozenset()
    columns = [rows.columns[0] for part in split([kept]) for rows in part.batches]
    assert all(isinstance(column, BytesColumn) for column in columns)
    found = [text for column in columns for text in column_to_arrow(column).to_pylist()]
    assert sorted(found, key=str) == sorted(TEXTS[::3], key=str)


def test_what_is_merged_counts_all_that_it_keeps_alive() -> None:
    few = batch(take_late(texts(), torch.arange(0, ROWS, 100)))
    (part, *_) = split([batch(texts())])
    assert part.nbytes < few.nbytes
    part.replace(few)
    assert part.nbytes == few.nbytes == Part([few], is_merged=True).nbytes > TEXT_BYTES
    (rows, runs), *_ = split_all(plan(), [batch(texts())], 4, frozenset({0}))
    part.add(rows, runs)
    assert part.nbytes > few.nbytes
    part.take()
    assert part.nbytes == 0


def test_codes_beside_texts_are_not_in_place() -> None:
    coded = column_from_arrow(pa.array(TEXTS, pa.string()).dictionary_encode())
    assert texts_in_place([batch(texts()), batch(coded)]) == frozenset()
    assert texts_in_place([batch(coded, texts())]) == {1}
    assert texts_in_place([]) == frozenset()
