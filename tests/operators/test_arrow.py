"""Arrow arrays become columns and come back as they were."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
import torch

from pystachio.errors import DataError, Unsupported
from pystachio.operators.arrow import (
    batch_from_arrow,
    batch_to_arrow,
    column_from_arrow,
    column_to_arrow,
    literal_at,
    schema_from_arrow,
    schema_to_arrow,
)
from pystachio.operators.batch import Batch
from pystachio.operators.column import (
    BytesColumn,
    DictionaryColumn,
    FixedColumn,
    WideDecimalColumn,
    normalise_type,
)

ARRAYS = {
    "int8": pa.array([1, None, -128, 127], pa.int8()),
    "int64": pa.array([1, None, -(2**63), 2**63 - 1], pa.int64()),
    "uint8": pa.array([0, None, 255], pa.uint8()),
    "uint16": pa.array([0, None, 65535], pa.uint16()),
    "uint32": pa.array([0, None, 2**32 - 1], pa.uint32()),
    "uint64": pa.array([0, None, 2**63 - 1], pa.uint64()),
    "float": pa.array([1.5, None, float("inf")], pa.float32()),
    "double": pa.array([1.5, None, -0.0]),
    "bool": pa.array([True, None, False, True, True, False, None, True, False, True]),
    "date32": pa.array([dt.date(1969, 1, 1), None]),
    "date64": pa.array([dt.date(1969, 1, 1), None], pa.date64()),
    "time32": pa.array([dt.time(1, 2, 3), None], pa.time32("ms")),
    "time64": pa.array([dt.time(1, 2, 3, 4), None], pa.time64("us")),
    "timestamp": pa.array([dt.datetime(2020, 1, 1), None], pa.timestamp("ms")),
    "timestamp with zone": pa.array([dt.datetime(2020, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
    "duration": pa.array([dt.timedelta(1), None], pa.duration("s")),
    "null": pa.nulls(3),
    "decimal": pa.array([Decimal("-1.25"), None, Decimal("99.99")], pa.decimal128(10, 2)),
    "small decimal": pa.array([Decimal("1.2"), None], pa.decimal32(5, 1)),
    "wide decimal": pa.array([Decimal(10) ** 30, None, Decimal(-1)], pa.decimal128(38, 0)),
    "decimal256": pa.array([Decimal("1.5"), None], pa.decimal256(60, 3)),
    "string": pa.array(["a", None, "", "äöü"]),
    "large_string": pa.array(["a", None, "", "äöü"], pa.large_string()),
    "string_view": pa.array(["a", None, "a string that is not inlined", "äöü"], pa.string_view()),
    "binary": pa.array([b"\x00", None, b""]),
    "fixed binary": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "binary_view": pa.array([b"ab", None, b"a value that is not inlined"], pa.binary_view()),
    "dictionary": pa.array(["x", "y", None, "x"]).dictionary_encode(),
    "dictionary of numbers": pa.array([7, 8, None, 7]).dictionary_encode(),
    "dictionary with a NULL and a duplicate": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2, None, 3]), pa.array(["a", "b", None, "a"])
    ),
    "dictionary of nothing": pa.DictionaryArray.from_arrays(
        pa.array([None, None], pa.int8()), pa.array([], pa.string())
    ),
    "unsigned codes": pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.uint32()), pa.array(["a", "b"])),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_there_and_back(name: str) -> None:
    array = ARRAYS[name]
    pieces = [
        array,
        array[1:],
        array[:0],
        array[1:2],
        pa.chunked_array([array, array[1:]]),
        pa.chunked_array([], array.type),
    ]
    for piece in pieces:
        column = column_from_arrow(piece)
        back = column_to_arrow(column)
        back.validate(full=True)
        assert back.type == column.type == normalise_type(array.type)
        assert back.to_pylist() == piece.to_pylist()
        assert [literal_at(column, row).value is None for row in range(len(column))] == piece.is_null().to_pylist()


def test_representations() -> None:
    kinds = {
        "int8": FixedColumn,
        "decimal": FixedColumn,
        "wide decimal": WideDecimalColumn,
        "string_view": BytesColumn,
        "dictionary": DictionaryColumn,
        "dictionary with a NULL and a duplicate": DictionaryColumn,
    }
    for name, kind in kinds.items():
        assert isinstance(column_from_arrow(ARRAYS[name]), kind), name
    assert column_from_arrow(pa.array([1, 2])).validity is None


@pytest.mark.parametrize("most", [8, 2**31 - 1])
def test_texts_of_a_slice_keep_their_places(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Also where the bytes before them are more than an offset of 32 bits may say."""
    monkeypatch.setattr("pystachio.operators.arrow.MAXIMUM_STRING_BYTES", most)
    offsets = torch.tensor([6, 9, 9, 12])
    data = torch.tensor(list(b"xxxxxxabcdef"), dtype=torch.uint8)
    column = BytesColumn(pa.string(), offsets, data, torch.tensor([True, False, True]))
    array = column_to_arrow(column)
    assert array.equals(pa.array(["abc", None, "def"]))
    assert max(memoryview(array.buffers()[1]).cast("i")) <= most
    assert column_to_arrow(BytesColumn(pa.binary(), offsets[:1], data)).equals(pa.array([], pa.binary()))


def test_too_many_bytes_of_texts_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pystachio.operators.arrow.MAXIMUM_STRING_BYTES", 2)
    column = column_from_arrow(pa.array(["ab", "c"]))
    with pytest.raises(DataError, match="more than 2 bytes of strings"):
        column_to_arrow(column)


def test_numbers_and_strings_share_memory() -> None:
    numbers = pa.array([1, 2, 3])
    column = column_from_arrow(numbers)
    assert isinstance(column, FixedColumn)
    assert column.values.data_ptr() == numbers.buffers()[1].address
    assert column_to_arrow(column).buffers()[1].address == numbers.buffers()[1].address
    texts = pa.array(["a", "bc"], pa.large_string())
    strings = column_from_arrow(texts)
    assert isinstance(strings, BytesColumn)
    assert strings.data.data_ptr() == texts.buffers()[2].address


def test_the_memory_outlives_the_array() -> None:
    column = column_from_arrow(pa.array(range(100_000)))
    assert isinstance(column, FixedColumn)
    torch.empty(100_000, dtype=torch.int64).fill_(7)
    assert int(column.values.sum()) == sum(range(100_000))


def test_codes_of_duplicates_are_equal() -> None:
    column = column_from_arrow(ARRAYS["dictionary with a NULL and a duplicate"])
    assert isinstance(column, DictionaryColumn)
    assert column.codes[0] == column.codes[4]
    assert len(column.dictionary) == 2


def test_a_uint64_above_int64_is_an_error() -> None:
    with pytest.raises(Unsupported, match="unsigned"):
        column_from_arrow(pa.array([2**63], pa.uint64()))


def test_codes_outside_their_dictionary_are_an_error() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 5]), pa.array(["a"]), safe=False)
    with pytest.raises(DataError, match="code"):
        column_from_arrow(array)


def test_nested_types_are_unsupported() -> None:
    for array in (pa.array([[1]]), pa.array([{"a": 1}]), pa.array([(1, 2, 3)], pa.month_day_nano_interval())):
        with pytest.raises(Unsupported):
            column_from_arrow(array)


def test_batches_keep_their_length_without_columns() -> None:
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    batch = batch_from_arrow(table)
    assert batch_to_arrow(batch, schema_to_arrow(schema_from_arrow(table.schema))).to_pylist() == table.to_pylist()
    assert batch_to_arrow(Batch((), 3, None), pa.schema([])).num_rows == 3
