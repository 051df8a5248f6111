"""Key codes and the indexes over them against comparisons of Python values."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pystachio.operators import kernels as kernel_choice
from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.column import Column
from pystachio.operators.kernels import host, portable
from pystachio.operators.kernels.keys import KeyCodes, encode_build, group_words
from pystachio.operators.kernels.row_index import RangeIndex, RowIndex, UniqueIndex, index_members, index_rows

TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.one_of(st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1, 2**40])),
    pa.int16(): st.sampled_from([-(2**15), 2**15 - 1, 0, 1]),
    pa.int32(): st.sampled_from([-(2**31), 2**31 - 1, 0, 1]),
    pa.bool_(): st.booleans(),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, float("inf"), 1e-300]),
    pa.string(): st.sampled_from(["", "a", "b", "ab", "ä"]),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["", "a", "b", "x"]),
    pa.date32(): st.dates(datetime.date(1992, 1, 1), datetime.date(1992, 1, 5)),
    pa.decimal128(38, 1): st.sampled_from([Decimal("1e30"), Decimal("-1e30"), Decimal("0.5"), Decimal(2**64)]),
    pa.decimal128(9, 2): st.sampled_from([Decimal("1.25"), Decimal("-1.25"), Decimal(0)]),
}


@st.composite
def two_tables(draw: st.DrawFn) -> tuple[list[pa.DataType], list[bool], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    types = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=3))
    null_equal = [draw(st.booleans()) for _ in types]
    row = st.tuples(*(st.one_of(st.none(), TYPES[type_], TYPES[type_]) for type_ in types))
    return types, null_equal, draw(st.lists(row, max_size=25)), draw(st.lists(row, max_size=25))


def columns(rows: list[tuple[Any, ...]], types: list[pa.DataType]) -> list[Column]:
    return [column_from_arrow(pa.array([row[i] for row in rows], type_)) for i, type_ in enumerate(types)]


def equal(left: tuple[Any, ...], right: tuple[Any, ...], null_equal: list[bool]) -> bool:
    return all(
        (a is None and b is None and null) or (a is not None and b is not None and a == b)
        for a, b, null in zip(left, right, null_equal, strict=True)
    )


def matches(index: RowIndex, codes: KeyCodes, rows: int) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in range(rows)]
    match index:
        case UniqueIndex():
            for row, number in enumerate(index.find(codes).tolist()):
                found[row] |= {number - 1} if number else set()
        case RangeIndex():
            for pairs in index.find(codes).pairs(7):
                assert pairs.probe is not None
                assert len(pairs.build) <= 7
                for row, other in zip(pairs.probe.tolist(), pairs.build.tolist(), strict=True):
                    found[row].add(other)
    return found


@given(two_tables(), st.booleans())
@settings(max_examples=300)
def test_indexes_find_equal_keys(
    tables: tuple[list[pa.DataType], list[bool], list[tuple[Any, ...]], list[tuple[Any, ...]]], allow_direct: bool
) -> None:
    types, null_equal, build, probe = tables
    encoding, codes = encode_build(columns(build, types), null_equal)
    wanted = [{i for i, b in enumerate(build) if equal(p, b, null_equal)} for p in probe]
    probed = encoding.encode(columns(probe, types))
    assert matches(index_rows(codes, allow_direct=allow_direct), probed, len(probe)) == wanted
    members = index_members(codes, allow_direct=allow_direct).contains(probed)
    assert members.tolist() == [bool(found) for found in wanted]


@given(two_tables())
@settings(max_examples=200)
def test_group_words_are_equal_where_the_keys_are(
    tables: tuple[list[pa.DataType], list[bool], list[tuple[Any, ...]], list[tuple[Any, ...]]],
) -> None:
    types, _, rows, _ = tables
    words = group_words(columns(rows, types))
    numbers = list(zip(*(word.values.tolist() for word in words), strict=True)) or [()] * len(rows)
    for i, left in enumerate(rows):
        for j, right in enumerate(rows):
            assert (numbers[i] == numbers[j]) == equal(left, right, [True] * len(types))
    for word in words:
        if word.span is not None:
            assert all(0 <= number < word.span for number in word.values.tolist())


@given(st.sampled_from([torch.int32, torch.int64]), st.data())
def test_offsets_are_the_same_on_every_device(dtype: torch.dtype, data: st.DataObject) -> None:
    limits = torch.iinfo(dtype)
    edges = [limits.min, limits.min + 1, -1, 0, 1, limits.max - 1, limits.max]
    value = st.one_of(st.integers(limits.min, limits.max), st.sampled_from(edges))
    low = data.draw(value)
    span = data.draw(st.integers(1, min(2**31 - 2 if dtype == torch.int32 else 2**62 - 1, limits.max - low + 1)))
    values = data.draw(st.lists(value, max_size=20))
    wanted = [v - low if 0 <= v - low < span else span for v in values]
    for kernels in (host, portable):
        assert kernels.offsets_within(torch.tensor(values, dtype=dtype), low, span).tolist() == wanted


@given(two_tables())
@settings(max_examples=50)
def test_indexes_without_numpy(
    tables: tuple[list[pa.DataType], list[bool], list[tuple[Any, ...]], list[tuple[Any, ...]]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_choice, "host", portable)
        test_indexes_find_equal_keys.hypothesis.inner_test(tables, True)  # type: ignore[attr-defined]


def test_a_build_of_narrow_decimals_meets_wide_ones() -> None:
    type_ = pa.decimal128(38, 0)
    narrow = column_from_arrow(pa.array([Decimal(5), Decimal(-7)], type_))
    wide = column_from_arrow(pa.array([Decimal(2**64 + 5), Decimal(5), Decimal(-7), None], type_))
    encoding, codes = encode_build([narrow], (False,))
    found = index_rows(codes, allow_direct=True)
    assert isinstance(found, UniqueIndex)
    assert found.find(encoding.encode([wide])).tolist() == [0, 1, 2, 0]
    encoding, codes = encode_build([wide], (False,))
    found = index_rows(codes, allow_direct=True)
    assert isinstance(found, UniqueIndex)
    assert found.find(encoding.encode([narrow])).tolist() == [2, 3]


@pytest.mark.parametrize("count", [3, 6])
def test_more_key_columns_than_one_integer_holds(count: int) -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(-(2**40), 2**40, (500,), generator=generator)
    rows = [[int(values[(i * (c + 3)) % 100]) for c in range(count)] for i in range(400)]
    build = [column_from_arrow(pa.array([row[c] for row in rows])) for c in range(count)]
    encoding, codes = encode_build(build, (False,) * count)
    index = index_rows(codes, allow_direct=True)
    assert matches(index, encoding.encode(build), 400) == [{j for j in range(400) if rows[j] == row} for row in rows]
    shuffled = [*build[1:], build[0]]
    wanted = [{j for j in range(400) if rows[j] == [*row[1:], row[0]]} for row in rows]
    assert matches(index, encoding.encode(shuffled), 400) == wanted
