"""Offsets of texts in two bytes each, against the plain ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
import torch

from pystachio.operators.batch import column_nbytes
from pystachio.operators.column import BLOCK_ENTRIES, BlockOffsets, BytesColumn, FixedColumn
from pystachio.operators.kernels import native
from pystachio.operators.kernels.block_offsets import packed
from pystachio.operators.kernels.selection import concat, slice_column, take, take_late, with_validity
from pystachio.operators.kernels.views import materialised

pytestmark = pytest.mark.skipif(native.library() is None, reason="columns are kept as they are without the C library")

ROWS = 10_000


def memory(lengths: Sequence[int]) -> list[memoryview]:
    """With content, as memory that was used before has."""
    return [np.full(length, 0xAB, np.uint8).data for length in lengths]


def texts(lengths: np.ndarray, *, first: int = 0, validity: torch.Tensor | None = None) -> BytesColumn:
    offsets = np.concatenate([[first], first + np.cumsum(lengths)]).astype(np.int64)
    data = np.random.default_rng(1).integers(97, 123, int(offsets[-1]), np.uint8)
    return BytesColumn(pa.string(), torch.from_numpy(offsets), torch.from_numpy(data), validity)


def values(column: object) -> list[bytes | None]:
    """Row by row, from the offsets."""
    plain = column if isinstance(column, BytesColumn) else materialised(column)  # type: ignore[arg-type]
    data, offsets = plain.data.numpy().tobytes(), plain.offsets.tolist()
    valid = [True] * len(plain) if plain.validity is None else plain.validity.tolist()
    return [data[a:b] if v else None for a, b, v in zip(offsets, offsets[1:], valid, strict=False)]


def in_blocks(column: BytesColumn) -> BytesColumn:
    found = packed(column, memory)
    assert isinstance(found, BytesColumn)
    assert isinstance(found.places, BlockOffsets)
    return found


@pytest.fixture(params=["short", "empty", "as long as they may be", "from within"])
def column(request: pytest.FixtureRequest) -> BytesColumn:
    random = np.random.default_rng(7)
    match request.param:
        case "short":
            return texts(random.integers(0, 80, ROWS), validity=torch.from_numpy(random.random(ROWS) < 0.9))
        case "empty":
            return texts(np.zeros(ROWS, np.int64))
        case "as long as they may be":
            lengths = np.zeros(ROWS, np.int64)
            lengths[BLOCK_ENTRIES - 2 :: BLOCK_ENTRIES] = 0xFFFF  # the block's last entry is so far from its first
            lengths[BLOCK_ENTRIES - 1 :: BLOCK_ENTRIES] = 100_000  # from the last of one to the first of the next
            return texts(lengths)
        case _:
            return texts(random.integers(0, 300, ROWS), first=12345)


def test_offsets_are_the_same_in_a_quarter_of_the_bytes(column: BytesColumn) -> None:
    found = in_blocks(column)
    assert len(found) == ROWS
    assert found.offsets.dtype == torch.int64
    assert torch.equal(found.offsets, column.offsets)
    assert found.places.nbytes < 0.27 * column.offsets.nbytes
    assert column_nbytes(found) == column_nbytes(column) - column.offsets.nbytes + found.places.nbytes


@pytest.mark.parametrize("compiled", [True, False])
def test_slices(column: BytesColumn, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = in_blocks(column)
    if not compiled:
        monkeypatch.setattr(native, "library", lambda *_: None)
    edges = (0, 1, 63, 64, 65, 128, 4999, 5056, ROWS - 1, ROWS)
    for start in edges:
        for stop in edges:
            if start <= stop:
                mine, others = slice_column(found, start, stop), slice_column(column, start, stop)
                assert isinstance(mine, BytesColumn)
                assert isinstance(others, BytesColumn)
                assert torch.equal(mine.offsets, others.offsets)
                assert torch.equal(mine.data, others.data)
                assert values(mine) == values(others)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_anywhere(column: BytesColumn, dtype: torch.dtype) -> None:
    rows = torch.from_numpy(np.random.default_rng(3).integers(0, ROWS, 500)).to(dtype)
    rows = torch.cat([rows, torch.tensor([0, 63, 64, ROWS - 1], dtype=dtype)])
    found = in_blocks(column)
    expected = values(take(column, rows))
    assert values(take(found, rows)) == expected
    assert values(take_late(found, rows)) == expected
    assert values(take_late(column, rows)) == expected


def test_positions_outside(column: BytesColumn) -> None:
    found = in_blocks(column)
    for row in (-1, ROWS, 1 << 40):
        with pytest.raises(IndexError):
            take(found, torch.tensor([0, row]))


def test_whole_columns(column: BytesColumn) -> None:
    found = in_blocks(column)
    assert values(concat([found, column, found])) == 2 * values(column) + values(column)
    none = torch.zeros(ROWS, dtype=torch.bool)
    changed = with_validity(found, none)
    assert isinstance(changed, BytesColumn)
    assert isinstance(changed.places, BlockOffsets)
    assert values(changed) == [None] * ROWS


def test_texts_too_long_for_two_bytes_stay_as_they_are() -> None:
    lengths = np.full(ROWS, 10)
    lengths[ROWS // 2] = 0x10000
    column = texts(lengths)
    assert packed(column, memory) is column


def test_others_stay_as_they_are() -> None:
    few = texts(np.full(100, 10))
    numbers = FixedColumn(pa.int64(), torch.arange(ROWS))
    once = in_blocks(texts(np.full(ROWS, 10)))
    assert packed(few, memory) is few
    assert packed(numbers, memory) is numbers
    assert packed(once, memory) is once


def test_offsets_that_fall_are_not_taken() -> None:
    column = texts(np.full(ROWS, 10))
    column.offsets[100] = 0
    assert packed(column, memory) is column


def test_slices_outside() -> None:
    found = in_blocks(texts(np.full(ROWS, 10)))
    for start, stop in ((-1, 5), (5, 4), (0, ROWS + 1), (ROWS + 1, ROWS + 1)):
        with pytest.raises(IndexError, match="outside"):
            slice_column(found, start, stop)
