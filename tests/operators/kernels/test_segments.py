"""Segments as they are read back, against xxhash and numpy, in C and without."""

from __future__ import annotations

import random

import numpy as np
import pytest
import xxhash

from pystachio.operators.kernels import native, packing, segments
from pystachio.operators.kernels.segments import Array, Segment

DTYPES = ("i1", "i2", "i4", "i8")
SHORT_BYTES = 240

pytestmark = pytest.mark.usefixtures("instructions")


@pytest.fixture(autouse=True, params=["library", "numpy"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(native, "library", lambda *_: None)
    return


def read(*found: Segment) -> None:
    segments.read(found)


def plain(values: Array) -> Segment:
    return Segment(values.view(np.uint8), values, None)


def packed(values: Array, validity: Array | None = None) -> tuple[Array, int]:
    out = np.empty(packing.most_packed_bytes(len(values), 8 * values.itemsize), np.uint8)
    found = packing.pack(values, validity, out)
    assert found is not None
    return out[: found[0]], found[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_checksum_and_range_of_any_length(dtype: str) -> None:
    chance = random.Random(0)
    lengths = [
        *range(300),
        *(1 << power for power in range(9, 17)),
        *(chance.randrange(300, 200_000) for _ in range(30)),
    ]
    for rows in (length + by for length in lengths for by in (-1, 0, 1) if length + by > 0):
        values = np.random.default_rng(rows).integers(0, 256, rows * np.dtype(dtype).itemsize, np.uint8).view(dtype)
        found = plain(values)
        read(found)
        assert found.is_whole
        assert found.checksum == xxhash.xxh3_64_intdigest(values.tobytes())
        if found.ends is not None or values.nbytes > SHORT_BYTES:
            assert found.ends == (int(values.min()), int(values.max()))


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
def test_other_values_have_a_checksum_and_no_range(dtype: str) -> None:
    for rows in (0, 1, 60, 61, 5000, 70_001):
        values = np.random.default_rng(rows).integers(0, 256, rows * np.dtype(dtype).itemsize, np.uint8).view(dtype)
        found = plain(values)
        read(found)
        assert (found.is_whole, found.ends) == (True, None)
        assert found.checksum == xxhash.xxh3_64_intdigest(values.tobytes())


def test_the_ends_are_found_wherever_they_are() -> None:
    for place in (0, 1, 4095, 4096, 8191, 50_000, 99_998, 99_999):
        for extreme in (-(2**31), 2**31 - 1):
            values = np.zeros(100_000, np.int32)
            values[place] = extreme
            found = plain(values)
            read(found)
            assert found.ends == (min(extreme, 0), max(extreme, 0))


def test_any_changed_byte_changes_the_checksum() -> None:
    values = np.arange(40_000, dtype=np.int16)
    before = plain(values)
    read(before)
    for place in (0, 255, 256, 8191, 8192, 39_967, 39_999):
        changed = values.copy()
        changed[place] ^= 1
        after = plain(changed)
        read(after)
        assert after.checksum != before.checksum


def test_many_at_once() -> None:
    numbers, texts = np.arange(5000, dtype=np.int64), np.arange(7000, dtype=np.int16).view(np.uint8)
    data, divisor = packed(numbers)
    found = [plain(texts), Segment(data, np.empty(5000, np.int64), divisor), plain(numbers[:10])]
    read(*found)
    assert [one.checksum for one in found] == [
        xxhash.xxh3_64_intdigest(bytes(data)) for data in (texts.data, data.data, numbers[:10].data)
    ]
    assert np.array_equal(found[1].values, numbers)
    assert found[1].ends == (0, 4999)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_cannot_have_been_packed_is_not_whole(dtype: str) -> None:
    rows = 3000
    values = np.random.default_rng(1).integers(0, 100, rows).astype(dtype)
    data, divisor = packed(values)
    blocks = -(-rows // packing.BLOCK_ROWS)

    def is_whole(content: Array) -> bool:
        found = Segment(content.copy(), np.empty(rows, dtype), divisor)
        read(found)
        return found.is_whole

    assert is_whole(data)
    for length in (0, 1, 8 * blocks, 8 * blocks + blocks, len(data) - 1, len(data) - 128):
        assert not is_whole(data[:length]), length
    assert not is_whole(np.concatenate([data, np.zeros(1, np.uint8)]))
    for block in range(blocks):
        for width in (0, 6, 8, values.itemsize * 8 + 1, 255):
            changed = data.copy()
            changed[8 * blocks + block] = width
            assert not is_whole(changed), (block, width)
