from __future__ import annotations

import pyarrow as pa
import torch

from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.chunks.columns import translated
from pystachio.operators.column import BytesColumn, DictionaryColumn
from pystachio.operators.parquet.dictionary import SharedDictionary

CODES = [0, 2, 1, 0, None, 2]


def coded(values: list[str], codes: list[int | None]) -> DictionaryColumn:
    column = column_from_arrow(pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(values)))
    assert isinstance(column, DictionaryColumn)
    return DictionaryColumn(column.type, column.codes.to(torch.int8), column.dictionary, column.validity)


def texts(column: object) -> list[str | None]:
    assert isinstance(column, DictionaryColumn | BytesColumn)
    found: list[str | None] = column_to_arrow(column).cast(pa.string()).to_pylist()
    return found


def test_codes_of_the_shared_dictionary_are_not_copied() -> None:
    shared = SharedDictionary()
    column = coded(["a", "b", "c"], CODES)
    for _ in range(2):
        found = translated(column, shared)
        assert isinstance(found, DictionaryColumn)
        assert found.codes.data_ptr() == column.codes.data_ptr()
        assert texts(found) == ["a", "c", "b", "a", None, "c"]
    larger = translated(coded(["a", "b", "c", "d"], [3, 0, 1, 2, 3]), shared)
    assert texts(larger) == ["d", "a", "b", "c", "d"]
    assert texts(translated(column, shared)) == ["a", "c", "b", "a", None, "c"]


def test_other_codes_are_translated() -> None:
    shared = SharedDictionary()
    translated(coded(["c", "a", "b"], CODES), shared)
    found = translated(coded(["a", "b", "c"], CODES), shared)
    assert isinstance(found, DictionaryColumn)
    assert texts(found) == ["a", "c", "b", "a", None, "c"]
    assert found.codes[:4].tolist() == [1, 0, 2, 1]


def test_codes_are_translated_into_the_dtype_of_a_large_dictionary() -> None:
    shared = SharedDictionary()
    translated(coded([f"{n:03}" for n in range(100)], [0] * 200), shared)
    many = column_from_arrow(pa.array([f"{n:03}" for n in range(1000)]))
    assert isinstance(many, BytesColumn)
    shared.translate(many, None)
    found = translated(coded([f"{n:03}" for n in range(3)], CODES), shared)
    assert isinstance(found, DictionaryColumn)
    assert found.codes.dtype == torch.int16
    assert texts(found) == ["000", "002", "001", "000", None, "002"]


def test_a_dictionary_that_is_too_large_makes_plain_text() -> None:
    found = translated(coded(["a", "b", "c"], CODES), SharedDictionary(most_values=2))
    assert isinstance(found, BytesColumn)
    assert texts(found) == ["a", "c", "b", "a", None, "c"]
    assert isinstance(translated(coded(["a"], [0]), None), BytesColumn)
