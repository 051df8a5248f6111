"""The kernels under joins, groups and orders give on a GPU what they give on a CPU."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
import torch

from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.column import BytesColumn, Column, Dictionary, DictionaryColumn, FixedColumn, WideDecimalColumn
from pystachio.operators.kernels.exact_sums import exact_sums
from pystachio.operators.kernels.extremes import extreme
from pystachio.operators.kernels.grouping import group_rows
from pystachio.operators.kernels.keys import encode_build
from pystachio.operators.kernels.ordering import Direction, sort_order
from pystachio.operators.kernels.row_index import RangeIndex, UniqueIndex, index_rows
from pystachio.operators.kernels.selection import take
from pystachio.runtime.devices import cuda_device_count

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_device_count() == 0, reason="needs a CUDA device"),
]

GPU = torch.device("cuda")
CPU = torch.device("cpu")
ROWS = 20_000


def moved(column: Column, device: torch.device) -> Column:
    validity = None if column.validity is None else column.validity.to(device)
    match column:
        case FixedColumn(type=type_, values=values, bounds=bounds):
            return FixedColumn(type_, values.to(device), validity, bounds)
        case WideDecimalColumn(type=type_, high=high, low=low):
            return WideDecimalColumn(type_, high.to(device), low.to(device), validity)
        case BytesColumn(type=type_, offsets=offsets, data=data):
            return BytesColumn(type_, offsets.to(device), data.to(device), validity)
        case DictionaryColumn(type=type_, codes=codes, dictionary=dictionary):
            values = moved(dictionary.values, device)
            assert isinstance(values, BytesColumn | FixedColumn)
            return DictionaryColumn(type_, codes.to(device), Dictionary(values), validity)


def columns() -> list[Column]:
    generator = torch.Generator().manual_seed(7)

    def draw(limit: int) -> list[int]:
        return torch.randint(0, limit, (ROWS,), generator=generator).tolist()

    nulls = draw(10)
    arrays = [
        pa.array([None if n == 0 else v for n, v in zip(nulls, draw(300), strict=True)], pa.int32()),
        pa.array([v * 10**14 for v in draw(5000)], pa.int64()),
        pa.array([f"value {v}" for v in draw(40)]).dictionary_encode(),
        pa.array([v / 8 for v in draw(50)], pa.float64()),
        pa.array([Decimal(v) * 10**25 for v in draw(90)], pa.decimal128(38, 0)),
    ]
    return [column_from_arrow(array) for array in arrays]


def rows_of(column: Column) -> list[object]:
    return column_to_arrow(moved(column, CPU)).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("keys", [(0,), (1,), (2,), (3,), (4,), (0, 2), (1, 3, 4)])
@pytest.mark.parametrize("allow_direct", [True, False])
def test_groups(keys: tuple[int, ...], allow_direct: bool) -> None:
    results = []
    for device in (CPU, GPU):
        own = [moved(column, device) for column in columns()]
        grouping = group_rows([own[key] for key in keys], ROWS, device, allow_direct=allow_direct)
        parts = [take(own[key], grouping.representatives) for key in keys]
        parts += [exact_sums(own[position], pa.decimal128(38, 0), grouping) for position in (0, 1, 4)]
        parts += [extreme(column, grouping, largest=True) for column in own]
        results.append(sorted(zip(*(rows_of(part) for part in parts), strict=True), key=repr))
    assert results[0] == results[1]


@pytest.mark.parametrize("keys", [(0,), (1,), (2,), (0, 3), (4, 2)])
@pytest.mark.parametrize("allow_direct", [True, False])
def test_joins(keys: tuple[int, ...], allow_direct: bool) -> None:
    results = []
    for device in (CPU, GPU):
        own = [moved(column, device) for column in columns()]
        build = [take(own[key], torch.arange(0, ROWS, 50, device=device)) for key in keys]
        encoding, codes = encode_build(build, (False,) * len(keys))
        index = index_rows(codes, allow_direct=allow_direct)
        probed = encoding.encode([own[key] for key in keys])
        match index:
            case UniqueIndex():
                found = [(row, number - 1) for row, number in enumerate(index.find(probed).tolist()) if number]
            case RangeIndex():
                found = []
                for pairs in index.find(probed).pairs(1000):
                    assert pairs.probe is not None
                    found += zip(pairs.probe.tolist(), pairs.build.tolist(), strict=True)
        results.append(sorted(found))
    assert results[0] == results[1]


@pytest.mark.parametrize("keys", [(0,), (1,), (2, 0), (3, 1), (4, 3)])
@pytest.mark.parametrize("descending", [False, True])
def test_orders(keys: tuple[int, ...], descending: bool) -> None:
    orders = []
    for device in (CPU, GPU):
        own = [moved(column, device) for column in columns()]
        orders.append(sort_order([(own[key], Direction(descending, descending)) for key in keys], ROWS).tolist())
    assert orders[0] == orders[1]
