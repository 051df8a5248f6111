"""Columns survive a file unchanged; a file that is not what was stored never becomes a column."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.chunks.decoding import NotUsable, decode, decode_all
from pystachio.operators.chunks.encoding import encode, stored_bytes
from pystachio.operators.chunks.format import ChunkKey
from pystachio.operators.chunks.header import PAGE_BYTES, header_page
from pystachio.operators.column import (
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    WideDecimalColumn,
    normalise_type,
)
from pystachio.operators.kernels import native
from pystachio.operators.kernels.selection import slice_column

I64 = 2**63 - 1


def key_of(column: Column, identity: str = "file 7, column 3") -> ChunkKey:
    return ChunkKey(identity, column.type, len(column))


def stored(column: Column) -> bytearray:
    encoded = encode(column, key_of(column))
    assert encoded is not None
    return bytearray(encoded)


def read_back(column: Column) -> Column:
    found = decode(memoryview(stored(column)), key_of(column))
    assert not isinstance(found, NotUsable), found.reason
    return found


ARRAYS = {
    "bool": pa.array([True, None, False]),
    "int8": pa.array([-128, 127, None], pa.int8()),
    "int64": pa.array([-I64 - 1, I64, 0]),
    "uint32": pa.array([0, 2**32 - 1, None], pa.uint32()),
    "float": pa.array([0.5, -0.0, None, float("inf")], pa.float32()),
    "double": pa.array([1e308, -1e-308, None, float("nan")]),
    "date": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "timestamp": pa.array([dt.datetime(2024, 2, 29, 12), None], pa.timestamp("us", tz="UTC")),
    "time": pa.array([dt.time(23, 59, 59), None], pa.time64("us")),
    "decimal": pa.array([Decimal("9.99"), Decimal("-0.01"), None], pa.decimal128(12, 2)),
    "wide decimal": pa.array([Decimal(10) ** 37, -(Decimal(10) ** 37), None], pa.decimal128(38, 0)),
    "string": pa.array(["", "ä" * 3000, None, "z"]),
    "binary": pa.array([b"", b"\x00\xff", None]),
    "dictionary": pa.array(["a", None, "b", "a"]).dictionary_encode(),
    "dictionary of NULLs": pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int8()), pa.array([], pa.string())),
    "all NULL": pa.array([None, None], pa.int32()),
    "nothing but NULL": pa.nulls(3),
    "half": pa.array([1.5, None], pa.float32()).cast(pa.float16()),
    "no rows": pa.array([], pa.int64()),
    "no texts": pa.array([], pa.string()),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_comes_back(name: str) -> None:
    array = ARRAYS[name]
    column = column_from_arrow(array)
    back = read_back(column)
    assert type(back) is type(column)
    expected, found = column_to_arrow(column), column_to_arrow(back)
    assert repr(found.to_pylist()) == repr(expected.to_pylist())
    assert found.type == expected.type
    assert normalise_type(back.type) == normalise_type(array.type)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_narrow_numbers_stay_narrow_and_keep_their_bounds(dtype: torch.dtype) -> None:
    column = FixedColumn(pa.int64(), torch.tensor([3, 99, -4], dtype=dtype), torch.tensor([True, False, True]), (-4, 3))
    back = read_back(column)
    assert isinstance(back, FixedColumn)
    assert (back.values.dtype, back.bounds) == (dtype, (-4, 3))
    assert back.values.tolist() == [3, 99, -4]


def test_only_the_values_that_codes_use_are_stored() -> None:
    values = column_from_arrow(pa.array([f"value {i}" for i in range(50_000)]))
    assert isinstance(values, BytesColumn)
    codes = torch.tensor([40_000, 7, 40_000], dtype=torch.int32)
    back = read_back(DictionaryColumn(pa.string(), codes, Dictionary(values)))
    assert isinstance(back, DictionaryColumn)
    assert column_to_arrow(back).to_pylist() == ["value 40000", "value 7", "value 40000"]
    assert len(back.dictionary) == 2
    assert back.codes.dtype == torch.int8


def test_a_slice_of_texts_takes_only_its_own_bytes() -> None:
    whole = column_from_arrow(pa.array(["x" * 9000, "y", "z"]))
    assert isinstance(whole, BytesColumn)
    part = BytesColumn(pa.string(), whole.offsets[1:], whole.data)
    assert column_to_arrow(read_back(part)).to_pylist() == ["y", "z"]
    assert len(stored(part)) == 3 * PAGE_BYTES
    assert len(stored(slice_column(whole, 1, 3))) == 3 * PAGE_BYTES


def test_files_are_whole_pages_at_an_address_for_direct_writes() -> None:
    column = FixedColumn(pa.int64(), torch.from_numpy(np.random.default_rng(0).integers(-I64, I64, 10_000)))
    encoded = encode(column, key_of(column))
    assert encoded is not None
    assert len(encoded) == stored_bytes(column) == PAGE_BYTES + 80_000 // PAGE_BYTES * PAGE_BYTES + PAGE_BYTES
    assert np.frombuffer(encoded, np.uint8).ctypes.data % PAGE_BYTES == 0


def many(rows: int = 30_000) -> dict[str, Column]:
    """Columns of every kind, of which each can be packed."""
    random = np.random.default_rng(7)
    numbers = torch.from_numpy(random.integers(1000, 5000, rows))
    validity = torch.from_numpy(random.random(rows) < 0.7)
    words = [f"word {number}" for number in range(40)]
    texts = column_from_arrow(pa.array([words[number % 40] for number in range(rows)], pa.string()))
    values = column_from_arrow(pa.array(words))
    assert isinstance(texts, BytesColumn)
    assert isinstance(values, BytesColumn)
    codes = torch.from_numpy(random.integers(0, 40, rows).astype(np.int8))
    return {
        "numbers": FixedColumn(pa.int64(), numbers),
        "bounded": FixedColumn(pa.int32(), numbers.to(torch.int32), None, (0, 9000)),
        "prices": FixedColumn(pa.decimal128(12, 2), (numbers * 100).to(torch.int32), validity, (0, 900_000)),
        "flags": FixedColumn(pa.bool_(), numbers > 3000, validity),
        "wide": WideDecimalColumn(pa.decimal128(38, 0), numbers // 1000, numbers, validity),
        "texts": BytesColumn(pa.string(), texts.offsets, texts.data, validity),
        "codes": DictionaryColumn(pa.string(), codes, Dictionary(values), validity),
        "floats": FixedColumn(pa.float64(), numbers.to(torch.float64), validity),
    }


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("name", many(100))
def test_packed_columns_come_back(name: str, library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are read by a process without the library, or written by one."""
    column = many()[name]
    encoded = stored(column)
    assert len(encoded) <= stored_bytes(column)
    plain = sum(array.nbytes for array in held(column))
    assert len(encoded) < (plain + 3 * PAGE_BYTES if name == "floats" else 0.8 * plain)
    if not library:
        monkeypatch.setattr(native, "library", lambda *_: None)
    assert stored(column) == encoded
    back = decode(memoryview(encoded), key_of(column))
    assert not isinstance(back, NotUsable), back.reason
    assert type(back) is type(column)
    assert [array.dtype for array in held(back)] == [array.dtype for array in held(column)]
    assert column_to_arrow(back).to_pylist() == column_to_arrow(column).to_pylist()
    if isinstance(column, FixedColumn):
        assert isinstance(back, FixedColumn)
        assert back.bounds == column.bounds


def held(column: Column) -> list[torch.Tensor]:
    """What the column is in memory, apart from texts that its codes stand for."""
    match column:
        case FixedColumn(values=values):
            found = [values]
        case WideDecimalColumn(high=high, low=low):
            found = [high, low]
        case BytesColumn(offsets=offsets, data=data):
            found = [offsets, data]
        case DictionaryColumn(codes=codes):
            found = [codes]
        case _:
            raise AssertionError
    return found if column.validity is None else [*found, column.validity]


def test_what_is_known_of_the_values_bounds_what_they_take() -> None:
    """A column is stored if that is worth it, which is asked before it is packed."""
    values = torch.arange(100_000, dtype=torch.int64)
    assert stored_bytes(FixedColumn(pa.int64(), values)) > 800_000
    assert stored_bytes(FixedColumn(pa.int64(), values, None, (0, 99_999))) < 250_000


def test_files_are_read_together_and_each_for_itself() -> None:
    columns = [*many().values(), column_from_arrow(ARRAYS["string"]), column_from_arrow(ARRAYS["no rows"])]
    files = [(memoryview(stored(column)), key_of(column)) for column in columns]
    files[1][0][PAGE_BYTES + 5] ^= 1
    files[2] = files[2][0], key_of(columns[2], "another")
    asked: list[int] = []

    def memory(lengths: Sequence[int]) -> list[memoryview]:
        asked.extend(lengths)
        return [memoryview(bytearray(length)) for length in lengths]

    found = decode_all(files, memory)
    reasons = [one.reason if isinstance(one, NotUsable) else None for one in found]
    assert reasons[1:3] == ["a segment with a wrong checksum", "of another column"]
    assert len(asked) >= 9
    for number, (column, one) in enumerate(zip(columns, found, strict=True)):
        if number not in (1, 2):
            assert not isinstance(one, NotUsable)
            assert column_to_arrow(one).to_pylist() == column_to_arrow(column).to_pylist()


def test_every_byte_of_a_packed_file_counts() -> None:
    column = many(5000)["prices"]
    whole = stored(column)
    key = key_of(column)
    expected = column_to_arrow(column).to_pylist()
    for place in [*range(0, PAGE_BYTES, 37), *range(PAGE_BYTES, len(whole), 11)]:
        corrupt = bytearray(whole)
        corrupt[place] ^= 0x41
        found = decode(memoryview(corrupt), key)
        assert isinstance(found, NotUsable) or column_to_arrow(found).to_pylist() == expected


def test_packed_values_outside_their_bounds_are_not_usable() -> None:
    def lying(column: Column, truth: dict[str, object], lie: dict[str, object]) -> str:
        def edit(header: dict[str, Any]) -> None:
            assert {name: header[name] for name in truth} == truth
            header.update(lie)

        return forged(column, edit).reason

    columns = many()
    assert lying(columns["bounded"], {"bounds": [0, 9000]}, {"bounds": [0, 4000]}) == "values outside the bounds"
    # As many codes and texts, and fewer of them in the dictionary: its offsets end early.
    codes = columns["codes"]
    assert isinstance(codes, DictionaryColumn)
    wrong = DictionaryColumn(pa.string(), codes.codes + 1, codes.dictionary, codes.validity)
    assert lying(wrong, {}, {}) == "a code outside the dictionary"

    def with_divisor(divisor: object) -> str:
        def edit(header: dict[str, Any]) -> None:
            assert header["segments"][0][3] == 100
            header["segments"][0][3] = divisor

        return forged(columns["prices"], edit).reason

    for divisor in (0, -1, 1 << 64, "1", 1.0, True):
        assert with_divisor(divisor) == "a segment packed by no divisor"
    assert with_divisor(None) == "a segment of another length"
    assert with_divisor(1000) == "values outside the bounds"


def test_only_integers_are_packed() -> None:
    def packed(position: int) -> Any:
        def edit(header: dict[str, Any]) -> None:
            header["segments"][position][3] = 1

        return edit

    columns = many()
    assert forged(columns["floats"], packed(0)).reason == "packed, and no integers"
    assert forged(columns["texts"], packed(1)).reason == "packed, and no integers"


def test_a_dictionary_of_numbers_has_no_place_in_the_format() -> None:
    numbers = FixedColumn(pa.int64(), torch.tensor([5, 6]))
    column = DictionaryColumn(pa.int64(), torch.tensor([0, 1], dtype=torch.int8), Dictionary(numbers))
    assert encode(column, key_of(column)) is None


@pytest.mark.parametrize("name", ["int8", "string", "dictionary", "wide decimal", "bool"])
def test_every_corrupt_byte_is_found_or_harmless(name: str) -> None:
    column = column_from_arrow(ARRAYS[name])
    whole, expected = stored(column), column_to_arrow(column).to_pylist()
    detected = 0
    for place in range(len(whole)):
        corrupt = bytearray(whole)
        corrupt[place] ^= 0x41
        found = decode(memoryview(corrupt), key_of(column))
        if isinstance(found, NotUsable):
            detected += 1
        else:
            assert column_to_arrow(found).to_pylist() == expected
    assert detected > PAGE_BYTES


@pytest.mark.parametrize("length", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 5])
def test_a_file_of_another_length_is_not_usable(length: int) -> None:
    column = column_from_arrow(ARRAYS["string"])
    whole = stored(column)
    assert isinstance(decode(memoryview(whole[:length]), key_of(column)), NotUsable)
    assert isinstance(decode(memoryview(whole + bytes(PAGE_BYTES)), key_of(column)), NotUsable)
    assert isinstance(decode(memoryview(bytearray(len(whole))), key_of(column)), NotUsable)


def test_a_file_of_another_key_is_not_usable() -> None:
    column = column_from_arrow(pa.array([1, 2, 3]))
    whole = memoryview(stored(column))
    for other in (
        key_of(column, "another"),
        ChunkKey("file 7, column 3", pa.int32(), 3),
        ChunkKey("file 7, column 3", pa.int64(), 4),
    ):
        assert isinstance(decode(whole, other), NotUsable)


def forged(column: Column, edit: Any, data: Any = None) -> NotUsable:
    """A file whose checksums are right and whose content is not."""
    whole = stored(column)
    if data is not None:
        data(whole)
    length = int.from_bytes(whole[12:16], "little")
    header = json.loads(bytes(whole[24 : 24 + length]))
    for segment in header["segments"]:
        start, nbytes = segment[:2]
        segment[2] = xxhash.xxh3_64_hexdigest(bytes(whole[start : start + nbytes]))
    edit(header)
    page = header_page(header)
    assert page is not None
    whole[:PAGE_BYTES] = page
    found = decode(memoryview(whole), key_of(column))
    assert isinstance(found, NotUsable)
    return found


@pytest.mark.parametrize(
    "edit",
    [
        {"kind": "codes"},
        {"kind": "wide"},
        {"kind": 7},
        {"kind": []},
        {"dtype": "int32"},
        {"dtype": "float64"},
        {"dtype": "object"},
        {"dtype": None},
        {"bounds": [1, 2]},
        {"bounds": [3, 1]},
        {"bounds": "all"},
        {"bounds": [0.5, 9.5]},
        {"nulls": True},
        {"nulls": None},
        {"values": 3},
        {"segments": []},
        {"segments": None},
        {"segments": [[4096, -24, "0", None]]},
        {"segments": [[4096, 10**30, "0", None]]},
        {"segments": [["4096", 24, "0", None]]},
        {"segments": [[4096, True, "0", None]]},
        {"segments": 5 * [[4096, 24, "0", None]]},
        {"segments": [[4096, 24, "0"]]},
        {"segments": [[4096, 24, "0", 1]]},
        {"segments": [[8192, 24, "0", None]]},
        {"rows": "3"},
        {"type": None},
    ],
)
def test_a_header_that_lies_is_not_usable(edit: dict[str, object]) -> None:
    forged(column_from_arrow(pa.array([1, 2, 3])), lambda header: header.update(edit))


def test_content_that_no_writer_of_ours_stores_is_not_usable() -> None:
    def at_first_segment(content: bytes) -> Any:
        def write(whole: bytearray) -> None:
            whole[PAGE_BYTES : PAGE_BYTES + len(content)] = content

        return write

    texts = column_from_arrow(pa.array(["ab", "cd"]))
    falling = np.array([0, 9, 4], np.int64).tobytes()
    assert forged(texts, lambda header: None, at_first_segment(falling)).reason == "offsets that fall"
    early = np.array([1, 2, 4], np.int64).tobytes()
    assert "do not fit" in forged(texts, lambda header: None, at_first_segment(early)).reason
    codes = column_from_arrow(pa.array(["a", "b"]).dictionary_encode())
    for code in (2, 255):
        reason = forged(codes, lambda header: None, at_first_segment(bytes([code]))).reason
        assert reason == "a code outside the dictionary"
    flags = column_from_arrow(pa.array([True, False]))
    assert "flags" in forged(flags, lambda header: None, at_first_segment(b"\x02")).reason
    bounded = FixedColumn(pa.int64(), torch.tensor([1, 2], dtype=torch.int8), None, (1, 2))
    assert "bounds" in forged(bounded, lambda header: None, at_first_segment(b"\x63")).reason


def test_many_values_outside_their_bounds_are_not_usable_but_under_nulls() -> None:
    """Of so many that their range is found with their checksum, and too different to be packed."""
    random = np.random.default_rng(3)

    def at(place: int, content: bytes) -> Any:
        def write(whole: bytearray) -> None:
            whole[PAGE_BYTES + place : PAGE_BYTES + place + len(content)] = content

        return write

    values = torch.from_numpy(random.integers(-128, 128, 6000).astype(np.int8))
    values[:2] = torch.tensor([-128, 127])
    bounded = FixedColumn(pa.int64(), values, None, (-128, 127))
    header_says_plain(bounded, plain=True)
    narrow = FixedColumn(pa.int64(), values, None, (-128, 126))
    assert forged(narrow, lambda header: None).reason == "values outside the bounds"
    for place in (0, 4097, 5999):
        changed = values.clone().clamp(max=90)
        changed[place] = 99
        # Under a NULL, where it is anything.
        column = FixedColumn(pa.int64(), changed, changed != 99, (-128, 90))
        header_says_plain(column, plain=True)
        back = read_back(column)
        assert isinstance(back, FixedColumn)
        assert back.bounds == (-128, 90)
        assert torch.equal(back.values, changed)
        bad = FixedColumn(pa.int64(), values.clone().clamp(max=90), None, (-128, 90))
        assert forged(bad, lambda header: None, at(place, b"\x63")).reason == "values outside the bounds"


def header_says_plain(column: Column, *, plain: bool) -> None:
    whole = stored(column)
    length = int.from_bytes(whole[12:16], "little")
    header = json.loads(bytes(whole[24 : 24 + length]))
    assert (header["segments"][0][3] is None) == plain


VALUES = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=20),
    pa.decimal128(38, 3): st.integers(-(10**38) + 1, 10**38 - 1).map(lambda i: Decimal(f"{i}e-3")),
    pa.bool_(): st.booleans(),
}


@given(st.data())
@settings(max_examples=150)
def test_random_columns_come_back(data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from(list(VALUES)))
    values = data.draw(st.lists(st.none() | VALUES[type_].filter(lambda v: not isinstance(v, str) or v.isprintable())))
    array = pa.array(values, type_)
    if type_ in (pa.string(), pa.binary()) and data.draw(st.booleans()):
        array = array.dictionary_encode()
    column = column_from_arrow(array)
    back = read_back(column)
    assert isinstance(back, FixedColumn | WideDecimalColumn | BytesColumn | DictionaryColumn)
    assert column_to_arrow(back).to_pylist() == column_to_arrow(column).to_pylist() == values
