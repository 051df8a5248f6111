"""The shared dictionary: codes stay valid while it grows, on many threads at once."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from pystachio.errors import DataError
from pystachio.operators.arrow import column_to_arrow, dictionary_to_arrow
from pystachio.operators.column import DictionaryColumn
from pystachio.operators.parquet.dictionary import SharedDictionary


def encoded(values: list[str | None]) -> pa.DictionaryArray:
    return pa.array(values, pa.string()).dictionary_encode()


def test_codes_keep_their_meaning_while_threads_add_values() -> None:
    shared = SharedDictionary()
    rng = random.Random(1)
    arrays = [[None if rng.random() < 0.1 else f"v{rng.randrange(50 + 10 * n)}" for _ in range(300)] for n in range(60)]

    def encode(values: list[str | None]) -> tuple[DictionaryColumn, list[str | None]]:
        column = shared.encode(encoded(values), pa.string())
        assert column is not None
        return column, values

    with ThreadPoolExecutor(8) as threads:
        columns = list(threads.map(encode, arrays))
    largest = max((column.dictionary for column, _ in columns), key=len)
    for column, values in columns:
        assert column_to_arrow(column).to_pylist() == values
        known = dictionary_to_arrow(column.dictionary).to_pylist()
        assert dictionary_to_arrow(largest).to_pylist()[: len(known)] == known, (
            "an older dictionary is a prefix of a newer one"
        )
    again, _ = encode(arrays[0])
    assert again.dictionary is largest


def test_duplicates_in_a_file_s_dictionary_get_one_code() -> None:
    shared = SharedDictionary()
    odd = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["a", "a", "b"]))
    column = shared.encode(odd, pa.string())
    assert column is not None
    assert column.codes.tolist() == [0, 0, 1]


@pytest.mark.parametrize("codes", [[0, 5], [-1, 0]])
def test_codes_outside_the_dictionary_are_a_data_error(codes: list[int]) -> None:
    odd = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(["a", "b"]), safe=False)
    with pytest.raises(DataError, match="outside"):
        SharedDictionary().encode(odd, pa.string())


def test_null_among_the_values_is_a_data_error() -> None:
    odd = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([None], pa.string()))
    with pytest.raises(DataError, match="NULL"):
        SharedDictionary().encode(odd, pa.string())


def test_only_nulls() -> None:
    column = SharedDictionary().encode(encoded([None, None]), pa.string())
    assert column is not None
    assert column_to_arrow(column).to_pylist() == [None, None]


def test_what_scans_derive_does_not_pile_up() -> None:
    shared = SharedDictionary()
    first = shared.encode(encoded(["a"]), pa.string())
    assert first is not None
    shared.begin_scan()
    second = shared.encode(encoded(["a"]), pa.string())
    assert second is not None
    assert second.dictionary is first.dictionary
    first.dictionary.derived.update({number: number for number in range(100)})
    shared.begin_scan()
    third = shared.encode(encoded(["a"]), pa.string())
    assert third is not None
    assert third.dictionary is not first.dictionary
    assert third.codes.tolist() == first.codes.tolist()


def test_a_known_place_is_translated_once() -> None:
    shared = SharedDictionary()
    first = shared.encode(encoded(["b", "a"]), pa.string(), "here")
    shared.encode(encoded([f"other {i}" for i in range(200)]), pa.string(), "there")
    again = shared.encode(encoded(["b", "a"]), pa.string(), "here")
    assert first is not None
    assert again is not None
    assert again.codes.tolist() == first.codes.tolist()
    assert column_to_arrow(again).to_pylist() == ["b", "a"]
    assert len(again.dictionary) == 202
