"""Parts of rows by hash: every row is in one, and equal keys are together."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from pystachio.operators.kernels import host, native, portable
from pystachio.operators.kernels.parts import mix_hashes, parts_of_values, rows_by_part

pytestmark = pytest.mark.skipif(native.library() is None, reason="needs the compiled library")

INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64]


def hashes_of(columns: list[tuple[torch.Tensor, torch.Tensor | None]]) -> torch.Tensor:
    hashes = torch.zeros(len(columns[0][0]), dtype=torch.int64)
    for values, validity in columns:
        mix_hashes(hashes, values, validity)
    return hashes


@pytest.mark.parametrize("dtype", INTEGERS)
def test_hashes_say_nothing_of_dtypes_and_of_what_is_under_nulls(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    values = torch.randint(-100, 100, (500,), generator=generator)
    other = torch.randint(-(2**62), 2**62, (500,), generator=generator)
    validity = torch.rand(500, generator=generator) < 0.7
    narrow = torch.where(validity, values, values + 1).to(dtype)
    assert torch.equal(hashes_of([(values, None), (other, None)]), hashes_of([(values.to(dtype), None), (other, None)]))
    nulls = hashes_of([(values, validity), (other, None)])
    assert torch.equal(nulls, hashes_of([(narrow, validity), (other, None)]))
    assert len(set(hashes_of([(values, validity)]).tolist())) == len(set(values[validity].tolist())) + 1
    assert not torch.equal(hashes_of([(values, None), (other, None)]), hashes_of([(other, None), (values, None)]))


@pytest.mark.parametrize("bits", [0, 3, 5])
@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("rows", [0, 1, 4000])
def test_parts_hold_all_rows_in_their_order(bits: int, most: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    keys = torch.randint(0, 300, (rows,), generator=generator)
    above = torch.randint(0, most, (rows,), generator=generator) if most > 1 else None
    edges, order = rows_by_part(hashes_of([(keys, None)]), bits, above, most)
    assert len(edges) == (most << bits) + 1
    assert sorted(order.tolist()) == list(range(rows))
    part_of: dict[tuple[int, int], int] = {}
    for part, (start, stop) in enumerate(pairwise(edges)):
        mine = order[start:stop].tolist()
        assert mine == sorted(mine)
        for row in mine:
            number = 0 if above is None else int(above[row])
            assert part >> bits == number
            assert part_of.setdefault((number, int(keys[row])), part) == part
    if rows == 4000:
        assert all(stop > start for start, stop in pairwise(edges))


@pytest.mark.parametrize(("bits", "most"), [(0, 1), (6, 1), (8, 1), (5, 3)])
@pytest.mark.parametrize("rows", [0, 1, 1024, 5001])
def test_parts_of_values_are_those_of_their_hashes(bits: int, most: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    above = torch.randint(0, most, (rows,), generator=generator) if most > 1 else None
    validity = torch.rand(rows, generator=generator) < 0.7
    columns: list[tuple[torch.Tensor, torch.Tensor | None]] = [
        (torch.randint(-100, 100, (rows,), generator=generator).to(dtype), valid)
        for dtype, valid in zip(INTEGERS, (None, validity, None, validity), strict=True)
    ]
    found = parts_of_values(columns, bits, above, most)
    expected_edges, expected_order = rows_by_part(hashes_of(columns), bits, above, most)
    assert found.edges.tolist() == expected_edges
    assert torch.equal(found.order, expected_order)
    for values in (*(column for column, _ in columns), validity, torch.rand(rows), torch.rand(rows, 2).double()):
        assert torch.equal(found.scattered(values), values[expected_order.to(torch.int64)])
        strided = values.repeat_interleave(2, dim=0)[::2]
        assert torch.equal(found.scattered(strided), found.scattered(values))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("code_dtype", INTEGERS)
@pytest.mark.parametrize("largest", [True, False])
def test_extremes_are_those_of_torch(dtype: torch.dtype, code_dtype: torch.dtype, largest: bool) -> None:
    limits = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(3)
    values = torch.randint(limits.min, limits.max, (700,), generator=generator, dtype=dtype)
    codes = torch.randint(0, 90, (700,), generator=generator).to(code_dtype)
    start = torch.full((100,), 5, dtype=dtype)
    found = host.group_extremes(values, codes, start.clone(), largest=largest)
    assert torch.equal(found, portable.group_extremes(values, codes, start.clone(), largest=largest))
