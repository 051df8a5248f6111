"""Packed integers come back, and C packs as numpy does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pystachio.operators.kernels import native, packing, segments
from pystachio.operators.kernels.packing import BLOCK_ROWS, most_packed_bytes
from pystachio.operators.kernels.segments import Array, Segment

DTYPES = ("i1", "i2", "i4", "i8")
LENGTHS = (1, 7, 1023, 1024, 1025, 2048, 5000)

pytestmark = pytest.mark.usefixtures("instructions")


def pack(values: Array, validity: Array | None = None) -> tuple[Array, int]:
    """By C and by numpy, which must agree; without the library by numpy only."""
    found = []
    for library in (native.library, lambda *_: None):
        out = np.full(most_packed_bytes(len(values), 8 * values.itemsize), 0x5A, np.uint8)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "library", library)
            packed = packing.pack(values, validity, out)
        assert packed is not None
        found.append((out[: packed[0]], packed[1]))
    (first, divisor), (second, other_divisor) = found
    assert divisor == other_divisor
    assert np.array_equal(first, second)
    return first, divisor


def unpack(packed: Array, divisor: int, like: Array) -> Array:
    """By C and by numpy, which must agree, with the range."""
    found = []
    for library in (native.library, lambda *_: None):
        segment = Segment(packed, np.empty_like(like), divisor)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "library", library)
            segments.read([segment])
        assert segment.is_whole
        assert segment.ends == (int(segment.values.min()), int(segment.values.max()))
        found.append(segment.values)
    assert np.array_equal(*found)
    return found[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_width_comes_back(dtype: str) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    random = np.random.default_rng(0)
    for rows in LENGTHS:
        for width in range(bits + 1):
            top = (1 << width) - 1
            raw = random.integers(0, top, rows, np.uint64, endpoint=True)
            raw[: min(rows, 2)] = (0, top)[: min(rows, 2)]
            values = raw.astype(f"u{bits // 8}").view(dtype)
            packed, divisor = pack(values)
            assert np.array_equal(unpack(packed, divisor, values), values)
            if width < bits:
                assert len(packed) <= most_packed_bytes(rows, width)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_extremes_of_the_type_come_back(dtype: str) -> None:
    limits = np.iinfo(dtype)
    for values in (
        np.array([limits.min, limits.max] * 700, dtype),
        np.full(3000, limits.min, dtype),
        np.full(3000, limits.max, dtype),
        np.where(np.arange(3000) < 1024, limits.min, limits.max).astype(dtype),
    ):
        packed, divisor = pack(values)
        assert np.array_equal(unpack(packed, divisor, values), values)


@pytest.mark.parametrize("dtype", ["i2", "i4", "i8"])
def test_what_divides_all_differences_is_not_stored(dtype: str) -> None:
    steps = np.random.default_rng(2).integers(0, 50, 4000)
    values = (steps * 600 - 12_345).astype(dtype)
    packed, divisor = pack(values)
    assert divisor == 600
    assert len(packed) == most_packed_bytes(4000, 6)
    assert np.array_equal(unpack(packed, divisor, values), values)


def test_a_block_takes_what_its_own_values_need() -> None:
    """Keys in order, of which each block has a small range."""
    values = np.arange(64 * BLOCK_ROWS, dtype=np.int64) + 10**15
    packed, _ = pack(values)
    assert len(packed) == most_packed_bytes(len(values), 10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_lies_under_nulls_takes_no_room(dtype: str) -> None:
    random = np.random.default_rng(3)
    validity = random.random(5000) < 0.5
    validity[1024:2048] = False
    values = np.where(validity, random.integers(100, 108, 5000), np.iinfo(dtype).min).astype(dtype)
    packed, divisor = pack(values, validity)
    assert len(packed) <= most_packed_bytes(5000, 3)
    assert np.array_equal(unpack(packed, divisor, values)[validity], values[validity])
    nothing = np.zeros(5000, np.bool_)
    packed, divisor = pack(values, nothing)
    assert len(packed) == most_packed_bytes(5000, 0)


def test_what_needs_more_room_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(4).integers(0, 1 << 12, 4096).astype(np.int16)
    needed = len(pack(values)[0])
    for library in (native.library, lambda *_: None):
        monkeypatch.setattr(native, "library", library)
        assert packing.pack(values, None, np.empty(needed - 1, np.uint8)) is None
        found = packing.pack(values, None, np.empty(needed, np.uint8))
        assert found is not None
        assert found[0] == needed
        assert packing.pack(values, None, np.empty(0, np.uint8)) is None


@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: st.tuples(
            st.just(dtype),
            st.lists(st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)), min_size=1, max_size=2500),
        )
    ),
    st.integers(1, 1000),
)
@settings(max_examples=60, deadline=None)
def test_random_integers_come_back(drawn: tuple[str, list[int]], step: int) -> None:
    dtype, numbers = drawn
    values = np.array([number // step * step if number >= 0 else number for number in numbers], dtype)
    packed, divisor = pack(values)
    assert np.array_equal(unpack(packed, divisor, values), values)
