"""Runtime filters never lose a row that the join would keep: against plain sets."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
import torch

from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.column import BytesColumn, Column, Dictionary, DictionaryColumn, FixedColumn
from pystachio.operators.kernels import key_sets, native
from pystachio.operators.kernels.key_sets import BitSet, BloomFilter
from pystachio.operators.runtime_filter import MOST_STRINGS, RuntimeFilter, filter_of_keys


def ints(values: list[int | None], type_: pa.DataType | None = None) -> Column:
    return column_from_arrow(pa.array(values, pa.int64() if type_ is None else type_))


def words(values: list[str | None]) -> Column:
    return column_from_arrow(pa.array(values, pa.string()).dictionary_encode())


def may_match(runtime_filter: RuntimeFilter, low: int, high: int) -> bool:
    return bool(runtime_filter.may_match(np.array([low]), np.array([high]))[0])


def passing(runtime_filter: RuntimeFilter, column: Column) -> list[int]:
    rows = runtime_filter.select(column)
    return list(range(len(column))) if rows is None else rows.tolist()


@pytest.mark.parametrize("type_", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
@pytest.mark.parametrize("spread", [5, 60, 100])
@pytest.mark.parametrize("nulls", [0.0, 0.3])
def test_integers(type_: pa.DataType, spread: int, nulls: float) -> None:
    rng = random.Random(spread)
    for _ in range(30):
        keys = [None if rng.random() < nulls else rng.randint(-spread, spread) for _ in range(rng.randrange(1, 40))]
        probe = [None if rng.random() < nulls else rng.randint(-120, 120) for _ in range(200)]
        runtime_filter = filter_of_keys([ints(keys), ints(keys[:3])])
        assert runtime_filter is not None
        wanted = {key for key in keys if key is not None}
        assert passing(runtime_filter, ints(probe, type_)) == [i for i, value in enumerate(probe) if value in wanted]


def test_bounds_beyond_the_column_s_dtype() -> None:
    wide = RuntimeFilter(pa.int64(), (-(2**40), 2**40))
    assert wide.select(ints([1, -128, 127], pa.int8())) is None
    above = RuntimeFilter(pa.int64(), (1000, 2000))
    assert passing(above, ints([1, 2], pa.int8())) == []


def test_known_bounds_save_the_comparison() -> None:
    column = FixedColumn(pa.int64(), torch.tensor([3, 4, 5]), None, (3, 5))
    assert RuntimeFilter(pa.int64(), (0, 10)).select(column) is None
    keys = BitSet(0, 6, torch.tensor([0b101000], dtype=torch.uint8))
    assert passing(RuntimeFilter(pa.int64(), (0, 5), keys), column) == [0, 2]


def test_bits_and_booleans() -> None:
    keys = BitSet(10, 3, torch.tensor([0b101], dtype=torch.uint8))
    runtime_filter = RuntimeFilter(pa.int64(), (10, 12), keys)
    assert passing(runtime_filter, ints([9, 10, 11, 12, 13, None])) == [1, 3]
    flags = filter_of_keys([column_from_arrow(pa.array([True]))])
    assert flags is not None
    assert passing(flags, column_from_arrow(pa.array([True, False, None]))) == [0]


def test_nothing_passes_an_empty_filter() -> None:
    for keys in (ints([]), ints([None, None]), words([None])):
        runtime_filter = filter_of_keys([keys])
        assert runtime_filter is not None
        assert runtime_filter.empty
        assert passing(runtime_filter, ints([1, 2])) == []
        assert not may_match(runtime_filter, 0, 10)


def test_a_wide_span_has_a_bloom_filter() -> None:
    rng = random.Random(7)
    keys = [rng.randrange(-(2**62), 2**62) for _ in range(20_000)]
    runtime_filter = filter_of_keys([ints(keys)])
    assert runtime_filter is not None
    assert isinstance(runtime_filter.keys, BloomFilter)
    assert passing(runtime_filter, ints(keys)) == list(range(len(keys))), "no key is missed"
    others = [rng.randrange(-(2**62), 2**62) for _ in range(20_000)]
    assert len(passing(runtime_filter, ints(others))) < 1000, "at most 5 % pass in error"


def test_dense_keys_need_no_table() -> None:
    runtime_filter = filter_of_keys([ints([3, 1, 2])])
    assert runtime_filter is not None
    assert runtime_filter.keys is None
    assert runtime_filter.bounds == (1, 3)


@pytest.mark.parametrize(
    ("low", "high", "matches"),
    [(0, 4, False), (0, 5, True), (6, 8, False), (9, 20, True), (10, 20, False), (5, 9, True)],
)
def test_ranges(low: int, high: int, matches: bool) -> None:
    runtime_filter = filter_of_keys([ints([5, 9])])
    assert runtime_filter is not None
    assert may_match(runtime_filter, low, high) is matches


@pytest.mark.parametrize("with_library", [True, False])
def test_ranges_of_a_sparse_set(with_library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_library:
        monkeypatch.setattr(key_sets.native, "library", lambda *_: None)
    rng = np.random.default_rng(11)
    keys = np.unique(rng.integers(-3_000, 3_000_000, 400))
    runtime_filter = filter_of_keys([ints(keys.tolist())])
    assert runtime_filter is not None
    assert isinstance(runtime_filter.keys, BitSet)
    limits = np.iinfo(np.int64)
    low = np.concatenate([rng.integers(-5_000, 3_002_000, 2_000), keys, keys + 1, [limits.min, limits.min, 2**62]])
    high = low + np.concatenate([rng.integers(0, 30_000, 2_000), 0 * keys, 0 * keys + 9, [5, 0, 5]])
    high[-2] = limits.max
    expected = [bool(np.any((keys >= a) & (keys <= b))) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    assert runtime_filter.may_match(low, high).tolist() == expected
    assert runtime_filter.keys.may_have(low, high).tolist() == expected, "also of ranges beyond the keys"


def test_unknown_bounds_pass_all_but_null() -> None:
    runtime_filter = RuntimeFilter(pa.int64())
    assert may_match(runtime_filter, 0, 1)
    assert runtime_filter.select(ints([1, 2])) is None
    assert passing(runtime_filter, ints([1, None, 2])) == [0, 2]


def test_strings_on_codes() -> None:
    runtime_filter = filter_of_keys([words(["b", "c", None])])
    assert runtime_filter is not None
    assert runtime_filter.values is not None
    column = words(["a", "b", None, "c", "b"])
    assert passing(runtime_filter, column) == [1, 3, 4]
    assert passing(runtime_filter, column) == [1, 3, 4], "the second time from the dictionary's cache"
    assert passing(runtime_filter, words([])) == []
    assert runtime_filter.select(words(["b", "c"])) is None


def test_a_dictionary_keeps_the_members_of_a_few_filters() -> None:
    """A table's dictionary lives longer than the filters of all its plans."""
    column = words(["a", "b", "c"])
    assert isinstance(column, DictionaryColumn)
    for _ in range(40):
        runtime_filter = filter_of_keys([words(["b"])])
        assert runtime_filter is not None
        assert passing(runtime_filter, column) == [1]
    assert sum(len(kept) for kept in column.dictionary.derived.values() if isinstance(kept, tuple)) <= 8


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.binary()])
def test_strings_that_are_no_codes(monkeypatch: pytest.MonkeyPatch, type_: pa.DataType, is_compiled: bool) -> None:
    if not is_compiled:
        monkeypatch.setattr(native, "library", lambda *_: None)
    runtime_filter = filter_of_keys([words(["b", "", "long enough to be nowhere in place", None])])
    assert runtime_filter is not None
    texts = ["a", "b", None, "", "b", "long enough to be nowhere in place", "long enough to be anywhere in place"]
    column = column_from_arrow(pa.array(texts, type_))
    assert isinstance(column, BytesColumn)
    assert passing(runtime_filter, column) == [1, 3, 4, 5]
    assert passing(runtime_filter, column_from_arrow(pa.array([], type_))) == []
    assert runtime_filter.select(column_from_arrow(pa.array(["b", ""], type_))) is None


def test_only_the_values_in_use_count() -> None:
    full = words(["a", "b", "c"])
    assert isinstance(full, DictionaryColumn)
    used = DictionaryColumn(full.type, full.codes[:1], full.dictionary)
    runtime_filter = filter_of_keys([used, used])
    assert runtime_filter is not None
    assert passing(runtime_filter, full) == [0]


def test_several_dictionaries_and_plain_strings() -> None:
    plain = column_from_arrow(pa.array(["c", None]))
    runtime_filter = filter_of_keys([words(["a"]), words(["b"]), plain])
    assert runtime_filter is not None
    assert passing(runtime_filter, words(["z", "b", "c", "a"])) == [1, 2, 3]


def test_many_strings_say_nothing() -> None:
    runtime_filter = filter_of_keys([column_from_arrow(pa.array([str(i) for i in range(MOST_STRINGS + 1)]))])
    assert runtime_filter is not None
    assert runtime_filter.select(words(["z"])) is None


def test_types_without_filters() -> None:
    assert filter_of_keys([column_from_arrow(pa.array([1.5]))]) is None
    assert filter_of_keys([]) is None


def test_a_filter_of_another_dictionary_object() -> None:
    values = column_from_arrow(pa.array(["x", "b"]))
    assert isinstance(values, BytesColumn)
    assert passing(RuntimeFilter(pa.string(), values=Dictionary(values)), words(["a", "b"])) == [1]


@pytest.mark.parametrize("with_library", [True, False])
def test_bits_say_which_values_are_keys(with_library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_library:
        monkeypatch.setattr(key_sets.native, "library", lambda *_: None)
    rng = random.Random(4)
    for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
        keys = [rng.randrange(-40, 40) for _ in range(10)]
        runtime_filter = filter_of_keys([ints(keys)])
        assert runtime_filter is not None
        assert isinstance(runtime_filter.keys, BitSet)
        probe = [rng.randrange(-100, 101) for _ in range(500)]
        expected = [i for i, value in enumerate(probe) if value in keys]
        assert passing(runtime_filter, ints(probe, type_)) == expected
        assert all(may_match(runtime_filter, value, value) for value in keys)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64])
def test_the_library_and_numpy_make_the_same_set(dtype: type[np.integer], monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, perhaps of several widths."""
    rng = np.random.default_rng(3)
    limits = np.iinfo(dtype)
    keys = rng.integers(max(limits.min, -1000), min(limits.max, 9000), 40, dtype=dtype)
    pieces = (keys, np.array([-5, 100], dtype=np.int64), np.array([True]))
    bounds = (min(int(keys.min()), -5), max(int(keys.max()), 100))
    compiled = key_sets.key_set(pieces, bounds)
    monkeypatch.setattr(key_sets.native, "library", lambda *_: None)
    plain = key_sets.key_set(pieces, bounds)
    assert isinstance(compiled, BitSet)
    assert isinstance(plain, BitSet)
    assert compiled.bits.tolist() == plain.bits.tolist()
