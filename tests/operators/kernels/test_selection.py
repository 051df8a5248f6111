"""Take, slice and concatenate in every representation, against Arrow's and Python's lists."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import torch

from pystachio.operators.arrow import batch_from_arrow, column_from_arrow, column_to_arrow
from pystachio.operators.column import Bounds, BytesColumn, Column, Dictionary, DictionaryColumn, FixedColumn
from pystachio.operators.kernels import host, portable
from pystachio.operators.kernels.bounds import bounds_of, cheap_bounds, measured_bounds, with_measured_bounds
from pystachio.operators.kernels.selection import (
    concat,
    concat_batches,
    slice_batch,
    slice_column,
    take,
    take_batch,
    take_or_null,
)
from pystachio.operators.kernels.strings import to_codes, translate, unify

ARRAYS = {
    "numbers": pa.array([5, 6, 7, 8, 9]),
    "nullable numbers": pa.array([5, None, 7, None, 9], pa.int16()),
    "wide": pa.array([Decimal(10) ** 25, None, Decimal(2), Decimal(3), -(Decimal(10) ** 25)], pa.decimal128(38, 0)),
    "strings": pa.array(["a", "", "ccc", "äöü", "e"]),
    "nullable strings": pa.array(["a", None, "ccc", None, "e"]),
    "codes": pa.array(["a", "b", "a", "c", "b"]).dictionary_encode(),
    "nullable codes": pa.array(["a", None, "a", "c", None]).dictionary_encode(),
    "booleans": pa.array([True, False, None, True, False]),
}


def values(column: Column) -> list[Any]:
    return list(column_to_arrow(column).to_pylist())


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_take(name: str, dtype: torch.dtype) -> None:
    array, column = ARRAYS[name], column_from_arrow(ARRAYS[name])
    for rows in ([], [4, 0, 0, 2], [0, 1, 2, 3, 4]):
        assert values(take(column, torch.tensor(rows, dtype=dtype))) == [array[i].as_py() for i in rows]
    outer = torch.tensor([-1, 3, -1, 0], dtype=dtype)
    assert values(take_or_null(column, outer)) == [None, array[3].as_py(), None, array[0].as_py()]
    nothing = slice_column(column, 0, 0)
    assert values(take_or_null(nothing, torch.tensor([-1, -1], dtype=dtype))) == [None, None]
    assert values(take_or_null(column, torch.tensor([1], dtype=dtype))) == [array[1].as_py()]


@pytest.mark.parametrize("name", ARRAYS)
def test_slice_and_concat(name: str) -> None:
    array, column = ARRAYS[name], column_from_arrow(ARRAYS[name])
    for start, stop in ((0, 5), (1, 3), (2, 2), (4, 5)):
        assert values(slice_column(column, start, stop)) == array[start:stop].to_pylist()
    parts = [slice_column(column, 3, 5), column, slice_column(column, 1, 1), slice_column(column, 0, 2)]
    assert values(concat(parts)) == [*array[3:5].to_pylist(), *array.to_pylist(), *array[:2].to_pylist()]


def test_batches() -> None:
    table = pa.table(dict(ARRAYS))
    batch = batch_from_arrow(table)
    assert take_batch(batch, torch.tensor([1, 1])).length == 2
    assert slice_batch(batch, 1, 4).length == 3
    together = concat_batches([batch, slice_batch(batch, 0, 1)])
    assert together.length == 6
    assert values(together.columns[3]) == [*table["strings"].to_pylist(), "a"]


def test_few_rows_of_a_column_of_one_value_do_not_hold_all_of_it() -> None:
    column = FixedColumn(pa.int64(), torch.full((1000,), 7), None, (7, 7))
    few, most = (take(column, torch.arange(rows).flip(0)) for rows in (3, 900))
    assert values(few) == [7] * 3
    assert values(most) == [7] * 900
    assert isinstance(few, FixedColumn)
    assert isinstance(most, FixedColumn)
    assert few.values.untyped_storage().nbytes() == 24
    assert most.values.data_ptr() == column.values.data_ptr(), "and nothing is copied"
    assert values(take(column, torch.zeros(1001, dtype=torch.int64))) == [7] * 1001


def test_a_slice_of_strings_holds_only_its_bytes() -> None:
    column = column_from_arrow(pa.array(["x" * 1000, "abc", "y" * 1000]))
    part = slice_column(column, 1, 2)
    assert isinstance(part, BytesColumn)
    assert part.data.shape[0] == 3


def test_concat_of_mixed_representations() -> None:
    plain, coded = column_from_arrow(pa.array(["a", None])), column_from_arrow(pa.array(["b", "a"]).dictionary_encode())
    assert values(concat([plain, coded])) == ["a", None, "b", "a"]
    narrow, wide = column_from_arrow(pa.array([1, 2], pa.int8())), column_from_arrow(pa.array([3, None], pa.int8()))
    assert isinstance(narrow, FixedColumn)
    widened = FixedColumn(narrow.type, narrow.values.to(torch.int64))
    assert values(concat([widened, wide])) == [1, 2, 3, None]
    small = column_from_arrow(pa.array([Decimal(1)], pa.decimal128(38, 0)))
    large = column_from_arrow(pa.array([Decimal(10) ** 30], pa.decimal128(38, 0)))
    assert values(concat([small, large])) == [Decimal(1), Decimal(10) ** 30]


class TestDictionaries:
    first = column_from_arrow(pa.array(["a", "b", None]).dictionary_encode())
    second = column_from_arrow(pa.array(["c", "b", "b"]).dictionary_encode())

    def test_unify_brings_columns_to_one_dictionary(self) -> None:
        assert isinstance(self.first, DictionaryColumn)
        assert isinstance(self.second, DictionaryColumn)
        one, two = unify([self.first, self.second])
        assert one.dictionary is two.dictionary
        assert values(one) + values(two) == ["a", "b", None, "c", "b", "b"]
        again, _ = unify([self.first, self.second])
        assert again.dictionary is one.dictionary

    def test_unify_of_one_dictionary_changes_nothing(self) -> None:
        assert isinstance(self.first, DictionaryColumn)
        assert unify([self.first, self.first])[0] is self.first

    def test_unify_keeps_a_dictionary_that_holds_all(self) -> None:
        assert isinstance(self.first, DictionaryColumn)
        larger = column_from_arrow(pa.array(["b", "x", "a"]).dictionary_encode())
        assert isinstance(larger, DictionaryColumn)
        one, two = unify([self.first, larger])
        assert one.dictionary is two.dictionary is larger.dictionary
        assert values(one) == ["a", "b", None]

    def test_translate_says_where_a_value_is(self) -> None:
        assert isinstance(self.first, DictionaryColumn)
        assert isinstance(self.second, DictionaryColumn)
        codes = translate(self.first.dictionary, self.second.dictionary)
        assert codes.tolist() == [-1, 1]
        assert translate(self.first.dictionary, self.second.dictionary) is codes

    def test_to_codes(self) -> None:
        column = column_from_arrow(pa.array(["x", None, "y", "x"]))
        assert isinstance(column, BytesColumn)
        coded = to_codes(column)
        assert values(coded) == ["x", None, "y", "x"]
        assert len(coded.dictionary) == 2
        assert to_codes(coded) is coded

    def test_concat_gives_up_dictionaries_that_outweigh_the_rows(self) -> None:
        values_ = [f"value {i}" for i in range(3000)]
        halves = [column_from_arrow(pa.array(part).dictionary_encode()) for part in (values_[:2000], values_[1000:])]
        few = [slice_column(half, 0, 2) for half in halves]
        assert isinstance(concat(few), BytesColumn)
        assert values(concat(few)) == ["value 0", "value 1", "value 1000", "value 1001"]
        assert isinstance(concat(halves), DictionaryColumn)

    def test_a_column_of_an_empty_dictionary_is_all_null(self) -> None:
        empty = Dictionary(
            BytesColumn(pa.string(), torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.uint8))
        )
        codes, nothing = torch.zeros(2, dtype=torch.int8), torch.zeros(2, dtype=torch.bool)
        column = DictionaryColumn(pa.string(), codes, empty, nothing)
        assert values(column) == [None, None]
        assert values(concat([column, column_from_arrow(pa.array(["a"]))])) == [None, None, "a"]


@pytest.mark.parametrize(
    ("array", "bounds"),
    [
        (pa.array([3, 1, 2]), (1, 3)),
        (pa.array([None, 5, None, 7]), (5, 7)),
        (pa.array([None] * 5000 + [5, 9]), (5, 9)),
        (pa.nulls(3, pa.int64()), (0, 0)),
        (pa.array([], pa.int32()), (0, 0)),
        (pa.array([True]), (0, 1)),
        (pa.array([1.5]), None),
        (pa.array(["a"]), None),
        (pa.array([7, 9, 7]).dictionary_encode(), (7, 9)),
    ],
)
def test_bounds(array: pa.Array, bounds: Bounds | None) -> None:
    column = column_from_arrow(array)
    assert bounds_of(column) == measured_bounds(column) == bounds
    if isinstance(column, FixedColumn):
        assert bounds_of(with_measured_bounds(column)) == bounds


def test_cheap_bounds_read_nothing() -> None:
    assert cheap_bounds(column_from_arrow(pa.array([1, 2], pa.int8()))) == (-128, 127)
    assert cheap_bounds(FixedColumn(pa.int64(), torch.tensor([1]), None, (0, 5))) == (0, 5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.float64])
def test_the_fast_inner_loops_do_what_the_portable_ones_do(dtype: torch.dtype) -> None:
    left = torch.tensor([3, -1, 0, 7, 3], dtype=dtype)
    right = torch.tensor([3, 2, -5, 7, 1], dtype=dtype)
    for function in ("equal", "not_equal", "lt", "lte", "gt", "gte"):
        assert host.compare(function, left, right).tolist() == portable.compare(function, left, right).tolist()
        assert host.compare(function, left, 3).tolist() == portable.compare(function, left, 3).tolist()
    for function in ("add", "subtract", "multiply"):
        for first, second in ((left, right), (left, 2), (2, left)):
            fast = host.arithmetic(function, first, second, torch.float64 if dtype.is_floating_point else torch.int64)
            slow = portable.arithmetic(function, first, second, fast.dtype)
            assert fast.dtype == slow.dtype
            assert fast.tolist() == slow.tolist()
    mask = left > 0
    assert host.indices_of_true(mask).tolist() == portable.indices_of_true(mask).tolist() == [0, 3, 4]
    assert host.any_true(mask) == portable.any_true(mask)
    assert host.all_true(mask) == portable.all_true(mask)
    if not dtype.is_floating_point:
        assert host.minimum_and_maximum(left) == portable.minimum_and_maximum(left) == (-1, 7)
