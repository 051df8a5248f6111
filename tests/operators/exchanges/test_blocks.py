"""Batches become blocks and come back as they were."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pystachio.errors import InternalError
from pystachio.operators.arrow import (
    batch_from_arrow,
    batch_to_arrow,
    column_from_arrow,
    schema_from_arrow,
    schema_to_arrow,
)
from pystachio.operators.batch import Batch
from pystachio.operators.column import (
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
    WideDecimalColumn,
)
from pystachio.operators.exchanges.layout import ALIGNMENT
from pystachio.operators.exchanges.reader import BlockReader
from pystachio.operators.exchanges.writer import BlockWriter
from pystachio.operators.kernels.selection import slice_batch
from pystachio.operators.kernels.strings import to_codes
from pystachio.operators.kernels.views import can_view, view_texts
from tests.operators.batch_sources import WORDS, coded, schema_of
from tests.operators.test_arrow import ARRAYS


def round_trip(batch: Batch, rows: slice | None = None) -> Batch:
    writer = BlockWriter()
    nbytes = writer.size(batch, rows)
    block = writer.write(batch, rows)
    assert block.nbytes == nbytes
    return BlockReader().read(block, schema_of(batch))


def require_same(found: Batch, expected: Batch) -> None:
    schema = schema_to_arrow(schema_of(expected))
    assert found.length == expected.length
    record = batch_to_arrow(found, schema)
    record.validate(full=True)
    assert record.equals(batch_to_arrow(expected, schema)) or repr(record.to_pylist()) == repr(
        batch_to_arrow(expected, schema).to_pylist()
    )
    for column, before in zip(found.columns, expected.columns, strict=True):
        assert column.type == before.type
        assert (column.validity is None) == (before.validity is None)


@pytest.mark.parametrize("name", ARRAYS)
def test_all_types_come_back(name: str) -> None:
    array = ARRAYS[name]
    for piece in (array, array[1:], array[:0], array[1:2]):
        batch = Batch((column_from_arrow(piece),), len(piece), None)
        require_same(round_trip(batch), batch)
        for rows in (slice(1, None), slice(0, 1), slice(1, 1), slice(0, 99)):
            require_same(round_trip(batch, rows), slice_batch(batch, *rows.indices(batch.length)[:2]))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_narrow_numbers_stay_narrow(dtype: torch.dtype) -> None:
    values = torch.tensor([-3, 5, 127, -128], dtype=dtype)
    for type_ in (pa.int64(), pa.date32(), pa.decimal128(12, 2), pa.timestamp("us"), pa.uint64()):
        column = FixedColumn(type_, values, torch.tensor([True, False, True, True]), (-200, 200))
        (back,) = round_trip(Batch((column,), 4, None)).columns
        assert isinstance(back, FixedColumn)
        assert back.values.dtype == dtype
        assert torch.equal(back.values, values)
        assert back.bounds == (-128, 127)


def test_bounds_are_measured_where_they_were_known() -> None:
    for bounds, expected in ((None, None), ((0, 10), (1, 3))):
        column = FixedColumn(pa.int64(), torch.tensor([1, 2, 3]), None, bounds)
        (back,) = round_trip(Batch((column,), 3, None)).columns
        assert isinstance(back, FixedColumn)
        assert back.bounds == expected


def test_batches_without_columns_or_rows() -> None:
    for length in (0, 7, 1 << 40):
        assert round_trip(Batch((), length, None)).length == length
    batch = Batch((FixedColumn(pa.int64(), torch.empty(0, dtype=torch.int8)),), 0, None)
    require_same(round_trip(batch), batch)


def test_parts_of_tensors() -> None:
    """Tensors that begin inside others, and that are not contiguous."""
    numbers = torch.arange(100)
    columns: tuple[Column, ...] = (
        FixedColumn(pa.int64(), numbers[3:13], torch.ones(50, dtype=torch.bool)[7:17]),
        FixedColumn(pa.int64(), numbers[::10]),
        WideDecimalColumn(pa.decimal128(38, 0), numbers[1:11], numbers[2:12]),
        BytesColumn(pa.string(), numbers[5:16], torch.full((100,), 65, dtype=torch.uint8)),
    )
    batch = Batch(columns, 10, None)
    require_same(round_trip(batch), batch)
    require_same(round_trip(batch, slice(2, 9)), slice_batch(batch, 2, 9))


def test_only_the_rows_bytes_are_sent() -> None:
    texts = column_from_arrow(pa.array(["x" * 10_000, "a", "b", "y" * 10_000]))
    batch = Batch((texts,), 4, None)
    assert BlockWriter().write(batch, slice(1, 3)).nbytes < 400


def test_views_arrive_as_bytes() -> None:
    texts = column_from_arrow(pa.array([*WORDS, None] * 10))
    assert isinstance(texts, BytesColumn)
    if not can_view(texts):
        pytest.skip("views need the compiled library")
    indices = torch.tensor([7, 0, 4, 4, 11, 59])
    seen = view_texts(texts, indices)
    validity = torch.tensor([True, True, False, True, False, False])
    batch = Batch((ViewColumn(seen.type, seen.views, seen.held, seen.text_bytes, validity),), 6, None)
    back = round_trip(batch)
    assert isinstance(back.columns[0], BytesColumn)
    require_same(back, batch)
    require_same(round_trip(batch, slice(1, 4)), slice_batch(batch, 1, 4))


def test_a_large_batch() -> None:
    rows = 1 << 20
    table = pa.table({"number": np.arange(rows), "text": [f"text {number % 1000}" for number in range(rows)]})
    batch = batch_from_arrow(table)
    require_same(round_trip(batch), batch)


def test_tensors_are_views_of_the_block() -> None:
    batch = batch_from_arrow(pa.table({"number": [1, 2, 3], "text": ["a", "b", None]}))
    block = BlockWriter().write(batch)
    back = BlockReader().read(block, schema_of(batch))
    begin = np.frombuffer(block, np.uint8).ctypes.data
    number, text = back.columns
    assert isinstance(number, FixedColumn)
    assert isinstance(text, BytesColumn)
    for tensor in (number.values, text.offsets, text.data):
        assert begin <= tensor.data_ptr() < begin + block.nbytes
        assert tensor.data_ptr() % ALIGNMENT == 0
    del block, begin
    require_same(back, batch)


def test_blocks_anywhere_in_memory() -> None:
    batch = batch_from_arrow(pa.table({"number": [1, 2, 3], "text": ["a", "b", None]}))
    pool = bytearray(4096)
    for begin in (0, 1, 8, 63):
        block = BlockWriter().write(batch, None, memoryview(pool)[begin:])
        back = BlockReader().read(memoryview(bytes(block)), schema_of(batch))
        require_same(back, batch)
        require_same(BlockReader().read(block, schema_of(batch)), batch)
        del block, back
    with pytest.raises(InternalError, match="does not fit"):
        BlockWriter().write(batch, None, memoryview(bytearray(100)))


# Dictionaries.


def same_dictionary(batch: Batch, codes: Sequence[int]) -> Batch:
    (column,) = batch.columns
    assert isinstance(column, DictionaryColumn)
    tensor = torch.tensor(codes, dtype=torch.int32)
    return Batch((DictionaryColumn(column.type, tensor, column.dictionary),), len(codes), None)


def dictionary_in(batch: Batch) -> Dictionary:
    (column,) = batch.columns
    assert isinstance(column, DictionaryColumn)
    return column.dictionary


def test_a_dictionary_is_sent_once() -> None:
    writer, reader = BlockWriter(), BlockReader()
    batch = coded(["x" * 1000, "y" * 1000], [0, 1, 1, 0])
    first = writer.write(batch)
    again = same_dictionary(batch, [1, 0])
    assert writer.size(again) < 300 < 2000 < first.nbytes
    second = writer.write(again)
    received = [reader.read(block, schema_of(batch)) for block in (first, second)]
    require_same(received[0], batch)
    require_same(received[1], again)
    assert dictionary_in(received[0]) is dictionary_in(received[1])


def test_two_columns_of_one_dictionary() -> None:
    batch = coded(["a", "b"], [0, 1])
    both = Batch(batch.columns * 2, 2, None)
    back = round_trip(both)
    require_same(back, both)
    first, second = back.columns
    assert isinstance(first, DictionaryColumn)
    assert isinstance(second, DictionaryColumn)
    assert first.dictionary is second.dictionary


def test_a_dictionary_larger_than_the_rows_is_cut_to_them() -> None:
    words = [f"{number:0100d}" for number in range(1000)]
    writer, reader = BlockWriter(), BlockReader()
    few = coded(words, [5, 5, 700, 5, 5, 700])
    block = writer.write(few)
    assert block.nbytes < 700
    back = reader.read(block, schema_of(few))
    assert isinstance(back.columns[0], DictionaryColumn)
    assert len(dictionary_in(back)) == 2
    require_same(back, few)
    each = same_dictionary(few, [1, 2, 3, 4])
    plain = reader.read(writer.write(each), schema_of(each))
    assert isinstance(plain.columns[0], BytesColumn)
    require_same(plain, each)


def test_a_large_dictionary_is_sent_when_its_parts_have_cost_as_much() -> None:
    words = [f"{number:0100d}" for number in range(100)]
    writer, reader = BlockWriter(), BlockReader()
    batch = coded(words, list(range(20)))
    sizes = []
    for _ in range(8):
        block = writer.write(batch)
        require_same(reader.read(block, schema_of(batch)), batch)
        sizes.append(block.nbytes)
    whole = max(sizes)
    assert sizes.index(whole) == 5
    assert all(size < 400 for size in sizes[6:])


def test_dictionaries_are_forgotten_on_both_sides() -> None:
    writer, reader = BlockWriter(3000), BlockReader(3000)
    batches = [coded(["x" * 1000 + str(number)], [0, 0]) for number in range(5)]
    for number in (0, 1, 0, 2, 0, 3, 4, 0, 1):
        batch = batches[number]
        require_same(reader.read(writer.write(batch), schema_of(batch)), batch)
        assert reader.dictionary_bytes <= 3000
    assert writer.size(batches[1]) < 500 < 1000 < writer.size(batches[2])


def test_a_dictionary_that_fits_nowhere_is_never_kept() -> None:
    writer, reader = BlockWriter(100), BlockReader(100)
    batch = coded(["x" * 1000, "y"], [0, 0, 1])
    for _ in range(4):
        require_same(reader.read(writer.write(batch), schema_of(batch)), batch)
    assert reader.dictionary_bytes == 0


def test_a_kept_dictionary_does_not_keep_its_block() -> None:
    batch = coded(["a", "b"], [0, 1])
    block = BlockWriter().write(batch)
    begin = np.frombuffer(block, np.uint8).ctypes.data
    values = dictionary_in(BlockReader().read(block, schema_of(batch))).values
    assert isinstance(values, BytesColumn)
    assert not begin <= values.data.data_ptr() < begin + block.nbytes


def test_dictionaries_of_numbers_and_of_nothing() -> None:
    numbers = coded([10**12, 7], [0, 1, 1])
    require_same(round_trip(numbers), numbers)
    nothing = Dictionary(BytesColumn(pa.string(), torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.uint8)))
    codes, validity = torch.zeros(3, dtype=torch.int8), torch.zeros(3, dtype=torch.bool)
    batch = Batch((DictionaryColumn(pa.string(), codes, nothing, validity),), 3, None)
    require_same(round_trip(batch), batch)


# Random batches, against Arrow.

_TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=9) | st.sampled_from(WORDS),
    pa.binary(): st.binary(max_size=9),
    pa.decimal128(38, 3): st.decimals(-(10**34), 10**34, places=3),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(datetime.UTC)),
    pa.null(): st.none(),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, list[bool]]:
    """And which columns are to be coded."""
    rows = draw(st.integers(0, 20))
    types = draw(st.lists(st.sampled_from(list(_TYPES)), max_size=5))
    arrays = [
        pa.array(draw(st.lists(_TYPES[type_] | st.none(), min_size=rows, max_size=rows)), type_) for type_ in types
    ]
    table = pa.table(arrays, [f"column {place}" for place in range(len(types))])
    return table, draw(st.lists(st.booleans(), min_size=len(types), max_size=len(types)))


@given(tables(), st.data())
def test_random_batches(drawn: tuple[pa.Table, list[bool]], data: st.DataObject) -> None:
    table, is_coded = drawn
    plain = batch_from_arrow(table)
    columns = [
        to_codes(column) if wanted and isinstance(column, BytesColumn) else column
        for column, wanted in zip(plain.columns, is_coded, strict=True)
    ]
    batch = Batch(tuple(columns), plain.length, None)
    writer, reader = BlockWriter(), BlockReader()
    for _ in range(3):
        start = data.draw(st.integers(0, batch.length))
        stop = data.draw(st.integers(start, batch.length))
        block = writer.write(batch, slice(start, stop))
        found = reader.read(block, schema_from_arrow(table.schema))
        assert found.length == stop - start
        schema = schema_to_arrow(schema_from_arrow(table.schema))
        expected = batch_to_arrow(slice_batch(plain, start, stop), schema)
        assert repr(batch_to_arrow(found, schema).to_pylist()) == repr(expected.to_pylist())
