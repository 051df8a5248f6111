"""Filters that nodes make of their parts of the keys: unions and encoded forms never lose a key."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pystachio.errors import DataError
from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.exchanges.filter_wire import (
    MOST_FILTER_BYTES,
    bounded,
    decode_filter,
    encode_filter,
    union_of_filters,
)
from pystachio.operators.kernels import native
from pystachio.operators.kernels.key_set_unions import MOST_SET_BYTES, Part, union_of
from pystachio.operators.kernels.key_sets import BitSet, BloomFilter, bit_set, bloom_filter
from pystachio.operators.runtime_filter import MOST_STRINGS, RuntimeFilter, filter_of_keys
from tests.operators.test_runtime_filter import passing

needs_c = pytest.mark.skipif(native.library() is None, reason="Bloom filters are made in C")

NARROW = st.integers(-300, 300)
WIDE = st.integers(-(2**62), 2**62)


def made(keys: list[Any], type_: pa.DataType, parts: int = 3) -> RuntimeFilter | None:
    return bounded(filter_of_keys([column_from_arrow(pa.array(keys, type_))], parts))


def sent(part: RuntimeFilter | None, type_: pa.DataType) -> RuntimeFilter | None:
    block = encode_filter(part)
    assert len(block) <= MOST_FILTER_BYTES
    return decode_filter(memoryview(block), type_)


def union(parts: list[list[Any]], type_: pa.DataType) -> RuntimeFilter:
    whole = union_of_filters([sent(made(keys, type_), type_) for keys in parts], type_)
    assert whole is not None
    return whole


@settings(max_examples=150)
@given(st.lists(st.lists(st.none() | NARROW, max_size=40), min_size=1, max_size=5), st.lists(st.none() | NARROW))
def test_a_union_of_bits_is_exact(parts: list[list[int | None]], probe: list[int | None]) -> None:
    whole = union(parts, pa.int64())
    keys = {key for part in parts for key in part} - {None}
    found = passing(whole, column_from_arrow(pa.array(probe, pa.int64())))
    assert found == [row for row, value in enumerate(probe) if value in keys]


@needs_c
@settings(max_examples=100)
@given(st.lists(st.lists(NARROW | WIDE, max_size=40), min_size=1, max_size=5), st.randoms())
def test_unions_of_every_kind_lose_no_key(parts: list[list[int]], random: Any) -> None:
    whole = union(parts, pa.int64())
    keys = sorted({key for part in parts for key in part})
    probe = column_from_arrow(pa.array(keys, pa.int64()))
    assert passing(whole, probe) == list(range(len(keys)))
    for _ in range(5):
        low, high = sorted((random.randrange(-400, 400), random.choice(keys) if keys else 0))
        assert whole.may_match(np.array([low]), np.array([high])).all() or not any(low <= key <= high for key in keys)


@needs_c
@settings(max_examples=60)
@given(st.lists(st.tuples(st.lists(WIDE, min_size=1, max_size=30), st.sampled_from([64, 128, 1024])), min_size=2))
def test_bloom_filters_of_different_sizes(parts: list[tuple[list[int], int]]) -> None:
    made = [Part((min(keys), max(keys)), bloom_filter(np.array(keys, dtype=np.int64), words)) for keys, words in parts]
    whole = union_of(made)
    assert isinstance(whole.keys, BloomFilter)
    every = np.array([key for keys, _ in parts for key in keys], dtype=np.int64)
    assert whole.keys.contains(every).all()
    assert whole.keys.words.shape[0] == max(words for _, words in parts)


@needs_c
def test_a_union_of_bloom_filters_still_tells_keys_apart() -> None:
    rng = np.random.default_rng(3)
    parts = [rng.integers(-(2**62), 2**62, 20_000) for _ in range(3)]
    filters = [filter_of_keys([column_from_arrow(pa.array(part))], len(parts)) for part in parts]
    whole = union_of_filters(filters, pa.int64())
    assert whole is not None
    assert isinstance(whole.keys, BloomFilter)
    others = rng.integers(-(2**62), 2**62, 50_000)
    assert whole.keys.contains(others).mean() < 0.03


def test_ranges_of_which_all_values_may_be_keys() -> None:
    full = Part((10, 29), None)
    few = Part((25, 40), bit_set((np.array([25, 40]),), 25, 16))
    whole = union_of([full, few])
    assert whole.bounds == (10, 40)
    assert isinstance(whole.keys, BitSet)
    values = np.arange(0, 60)
    assert values[whole.keys.contains(values)].tolist() == [*range(10, 30), 40]
    assert union_of([Part((0, 7), None), Part((8, 12), None)]) == Part((0, 12), None)
    far = union_of([full, Part((2**40, 2**40 + 9), bit_set((np.array([2**40]),), 2**40, 10))])
    assert far == Part((10, 2**40 + 9), None)


@settings(max_examples=60)
@given(st.lists(st.lists(st.none() | st.text(max_size=4), max_size=20), min_size=1, max_size=4))
def test_texts(parts: list[list[str | None]]) -> None:
    whole = union(parts, pa.string())
    keys = {key for part in parts for key in part} - {None}
    assert whole.empty == (not keys)
    probe = [*sorted(key for key in keys if key is not None), "not among them", None]
    coded = column_from_arrow(pa.array(probe, pa.string()).dictionary_encode())
    assert passing(whole, coded) == list(range(len(keys)))


def test_parts_of_which_nothing_is_known() -> None:
    ints = made([1, 2], pa.int64())
    assert union_of_filters([ints, None], pa.int64()) is None
    assert sent(None, pa.int64()) is None
    unbounded = union_of_filters([made(["a"], pa.string()), RuntimeFilter(pa.string())], pa.string())
    assert unbounded is not None
    assert unbounded.values is None
    assert not unbounded.empty
    nobody = union_of_filters([made([], pa.int64()), made([None], pa.int64())], pa.int64())
    assert nobody is not None
    assert nobody.empty


@needs_c
def test_what_is_too_large_is_left_out() -> None:
    keys = np.arange(0, 9 * MOST_SET_BYTES, 40)
    part = filter_of_keys([column_from_arrow(pa.array(keys))], 64)
    assert part is not None
    assert isinstance(part.keys, BitSet)
    assert part.keys.bits.nbytes > MOST_SET_BYTES
    smaller = sent(bounded(part), pa.int64())
    assert smaller is not None
    assert isinstance(smaller.keys, BloomFilter)
    assert smaller.keys.contains(keys).all()
    huge = RuntimeFilter(pa.int64(), (0, 2**62), BloomFilter(torch.zeros(MOST_SET_BYTES // 4, dtype=torch.int64)))
    only_bounds = sent(bounded(huge), pa.int64())
    assert only_bounds is not None
    assert only_bounds.keys is None
    assert only_bounds.bounds == (0, 2**62)
    long = made([f"{number:0400}" for number in range(5000)], pa.string())
    assert long is not None
    assert long.values is None
    many = union([[str(number) for number in range(MOST_STRINGS)], ["one more"]], pa.string())
    assert many.values is None
    assert not many.empty


DAMAGED: dict[str, tuple[object, pa.DataType]] = {
    "bounds in the wrong order": ([True, False, [3, 2], None, None], pa.int64()),
    "bounds of texts": ([True, False, [1, 2], None, None], pa.string()),
    "bounds beyond int64": ([True, False, [1, 2**63], None, None], pa.int64()),
    "keys without bounds": ([True, False, None, ["keys", bytes(8)], None], pa.int64()),
    "too few bits": ([True, False, [0, 64], ["bits", bytes(8)], None], pa.int64()),
    "a key out of bounds": ([True, False, [0, 9], ["keys", (10).to_bytes(8, "little")], None], pa.int64()),
    "half a key": ([True, False, [0, 9], ["keys", bytes(7)], None], pa.int64()),
    "keys in a huge range": ([True, False, [0, 2**60], ["keys", bytes(8)], None], pa.int64()),
    "an odd number of words": ([True, False, [0, 9], ["bloom", bytes(8 * 65)], None], pa.int64()),
    "too few words": ([True, False, [0, 9], ["bloom", bytes(8 * 32)], None], pa.int64()),
    "texts of numbers": ([True, False, None, None, [b"a"]], pa.int64()),
    "a text twice": ([True, False, None, None, [b"a", b"a"]], pa.string()),
    "no text": ([True, False, None, None, [b"\xff"]], pa.string()),
    "something else": ({"is_known": True}, pa.int64()),
    "more fields": ([True, False, None, None, None, 1], pa.int64()),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_filters_are_refused(case: str) -> None:
    written, type_ = DAMAGED[case]
    with pytest.raises(DataError, match="damaged"):
        decode_filter(msgspec.msgpack.encode(written), type_)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_filter_or_refused(data: bytes) -> None:
    with contextlib.suppress(DataError):
        decode_filter(data, pa.int64())
