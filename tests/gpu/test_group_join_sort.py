"""The kernels under joins, groups and orders give on a GPU what they give on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest
import torch

from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.column import Column
from pystachio.operators.kernels.exact_sums import exact_sums
from pystachio.operators.kernels.extremes import extreme
from pystachio.operators.kernels.grouping import group_rows
from pystachio.operators.kernels.keys import encode_build
from pystachio.operators.kernels.ordering import Direction, sort_order
from pystachio.operators.kernels.row_index import UniqueIndex, index_rows
from pystachio.operators.kernels.selection import take
from pystachio.operators.placement import column_on
from tests.gpu.conftest import Device

CPU = torch.device("cpu")
ROWS = 5_000


Rows = list[object]


def require_equal_on(device: Device, compute: Callable[[torch.device], Rows]) -> None:
    with device.job():
        assert compute(device.torch_device) == compute(CPU)
    device.require_no_misuse()


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


def columns_on(place: torch.device) -> list[Column]:
    return [column_on(column, place) for column in columns()]


def rows_of(column: Column) -> Rows:
    return column_to_arrow(column).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("keys", [(0,), (1,), (2,), (3,), (4,), (0, 2), (1, 3, 4)])
@pytest.mark.parametrize("allow_direct", [True, False])
def test_groups(device: Device, keys: tuple[int, ...], allow_direct: bool) -> None:
    def compute(place: torch.device) -> Rows:
        own = columns_on(place)
        grouping = group_rows([own[key] for key in keys], ROWS, place, allow_direct=allow_direct)
        parts = [take(own[key], grouping.representatives) for key in keys]
        parts += [exact_sums(own[position], pa.decimal128(38, 0), grouping) for position in (0, 1, 4)]
        parts += [extreme(column, grouping, largest=True) for column in own]
        return sorted(zip(*(rows_of(part) for part in parts), strict=True), key=repr)

    require_equal_on(device, compute)


@pytest.mark.parametrize("keys", [(0,), (1,), (2,), (0, 3), (4, 2)])
@pytest.mark.parametrize("allow_direct", [True, False])
def test_joins(device: Device, keys: tuple[int, ...], allow_direct: bool) -> None:
    def compute(place: torch.device) -> Rows:
        own = columns_on(place)
        build = [take(own[key], torch.arange(0, ROWS, 50, device=place)) for key in keys]
        encoding, codes = encode_build(build, (False,) * len(keys))
        probed = encoding.encode([own[key] for key in keys])
        index = index_rows(codes, allow_direct=allow_direct)
        if isinstance(index, UniqueIndex):
            return [(row, number - 1) for row, number in enumerate(index.find(probed).tolist()) if number]
        found: Rows = []
        for pairs in index.find(probed).pairs(1000):
            assert pairs.probe is not None
            found += zip(pairs.probe.tolist(), pairs.build.tolist(), strict=True)
        return sorted(found, key=repr)

    require_equal_on(device, compute)


@pytest.mark.parametrize("keys", [(0,), (1,), (2, 0), (3, 1), (4, 3)])
@pytest.mark.parametrize("descending", [False, True])
def test_orders(device: Device, keys: tuple[int, ...], descending: bool) -> None:
    def compute(place: torch.device) -> Rows:
        own = columns_on(place)
        return sort_order([(own[key], Direction(descending, descending)) for key in keys], ROWS).tolist()  # type: ignore[no-any-return]

    require_equal_on(device, compute)
