"""Few rows by numpy, many by torch: the same tensors."""

from __future__ import annotations

import pytest
import torch

from pystachio.operators.kernels.host_memory import NUMPY, as_dtype, copied, empty, joined, taken, zeros
from pystachio.operators.kernels.native import FEW_ROWS

SIZES = [0, 1, 5, FEW_ROWS, FEW_ROWS + 1, 1 << 17]

every_size = pytest.mark.parametrize("rows", SIZES)
every_dtype = pytest.mark.parametrize("dtype", NUMPY, ids=str)


def some(rows: int, dtype: torch.dtype) -> torch.Tensor:
    chance = torch.Generator().manual_seed(rows)
    if dtype == torch.bool:
        return torch.randint(0, 2, (rows,), generator=chance).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(rows, generator=chance, dtype=torch.float64).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, (rows,), generator=chance, dtype=torch.int64).to(dtype)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
    assert found.is_contiguous()


@every_size
@every_dtype
def test_tensors_are_as_torch_makes_them(rows: int, dtype: torch.dtype) -> None:
    same(zeros(rows, dtype), torch.zeros(rows, dtype=dtype))
    made = empty(rows, dtype)
    assert made.shape == (rows,)
    assert made.dtype == dtype


@every_size
@every_dtype
def test_copies_are_copies(rows: int, dtype: torch.dtype) -> None:
    values = some(2 * rows + 3, dtype)
    part = values[1 : rows + 1]
    copy = copied(part)
    same(copy, part.clone())
    assert rows == 0 or copy.untyped_storage().data_ptr() != values.untyped_storage().data_ptr()
    assert copy.untyped_storage().nbytes() <= rows * values.itemsize + 8, "nothing larger is kept alive"


@every_size
@every_dtype
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_rows_are_taken(rows: int, dtype: torch.dtype, index: torch.dtype) -> None:
    values = some(max(1, rows), dtype)
    chosen = torch.randint(0, len(values), (rows,), generator=torch.Generator().manual_seed(1)).to(index)
    same(taken(values, chosen), values.index_select(0, chosen))


@pytest.mark.parametrize("row", [-7, 5])
def test_a_row_that_is_not_there_is_no_row(row: int) -> None:
    with pytest.raises(IndexError):
        taken(some(5, torch.int32), torch.tensor([row]))


@every_size
@every_dtype
def test_parts_are_joined(rows: int, dtype: torch.dtype) -> None:
    parts = [some(rows, dtype), some(0, dtype), some(3, dtype)]
    same(joined(parts, dtype), torch.cat(parts))


def test_narrow_parts_are_joined_as_wide_ones() -> None:
    parts = [some(4, torch.int8), some(2, torch.int64), some(3, torch.int16)]
    same(joined(parts, torch.int64), torch.cat([part.to(torch.int64) for part in parts]))


@every_size
@pytest.mark.parametrize("to", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool], ids=str)
def test_integers_become_others(rows: int, dtype: torch.dtype, to: torch.dtype) -> None:
    values = some(rows, dtype)
    same(as_dtype(values, to), values.to(to))
    assert as_dtype(values, dtype) is values


def test_what_is_not_on_the_host_is_left_to_torch() -> None:
    away = torch.zeros(3, dtype=torch.int32, device="meta")
    assert as_dtype(away, torch.int64).device.type == "meta"
    assert joined([away, away], torch.int32).shape == (6,)
    assert taken(away, torch.zeros(2, dtype=torch.int64, device="meta")).shape == (2,)
