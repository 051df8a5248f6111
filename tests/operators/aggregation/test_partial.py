"""Which batches are grouped where they are made, by what a sample of them says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from pystachio.operators.aggregation.fold import without_keys_apart
from pystachio.operators.aggregation.partial import PartialFold, _Gain
from pystachio.operators.aggregation.plan import plan_aggregate
from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.batch import Batch, Field
from pystachio.operators.column import Column, FixedColumn
from pystachio.operators.expressions import AggregateCall
from pystachio.operators.kernels.selection import take_late
from pystachio.operators.kernels.views import can_view

CPU = torch.device("cpu")
ROWS = 100_000


def groups_of(key: Column, value: Column, *, texts_stay: bool, smallest: bool = False) -> int:
    """Rows of the partial batch that comes out for one of 100,000 rows."""
    fields = (Field("k", key.type), Field("v", value.type))
    calls = (AggregateCall("min", (1,), value.type),) if smallest else (AggregateCall("count", (), pa.int64()),)
    fold = PartialFold(plan_aggregate(fields, (0,), calls, ()), CPU, True, (_Gain(),), texts_stay=texts_stay)
    return sum(part.length for part in fold.process(Batch((key, value), ROWS, None)))


def texts(rows_of_each: int) -> Column:
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(rows_of_each)) % (ROWS // rows_of_each)
    return column_from_arrow(pa.array([f"text number {number}" for number in order.tolist()], pa.string()))


def numbers(count: int = 9) -> Column:
    return column_from_arrow(pa.array([row % count for row in range(ROWS)], pa.int64()))


@pytest.mark.parametrize(("rows_of_each", "in_place", "moved"), [(1, False, False), (4, False, True), (10, True, True)])
def test_texts_that_stay_in_place_are_grouped_if_groups_are_large(
    rows_of_each: int, in_place: bool, moved: bool
) -> None:
    key = texts(rows_of_each)
    grouped, groups = {True: ROWS // rows_of_each, False: ROWS}, ROWS // rows_of_each
    assert groups_of(key, numbers(), texts_stay=True) == grouped[in_place]
    assert groups_of(key, numbers(), texts_stay=False) == grouped[moved]
    if moved:
        assert groups_of(key, key, texts_stay=True, smallest=True) == groups, "texts of states move"


def test_views_are_grouped_sooner() -> None:
    key = texts(4)
    late = take_late(key, torch.arange(ROWS))
    expected = ROWS // 4 if can_view(key) else ROWS  # type: ignore[arg-type]
    assert groups_of(late, numbers(), texts_stay=True) == expected


@pytest.mark.parametrize("share", [0.2, 0.9, 0.99, 1.0])
def test_rows_without_a_key_are_one_group_and_the_others_are_grouped_however_few_they_are(share: float) -> None:
    draw = np.random.default_rng(1)
    keys = pa.array(draw.integers(0, 10, ROWS) << 40, mask=draw.random(ROWS) < share)
    key, value = column_from_arrow(keys), column_from_arrow(pa.array(draw.integers(0, 100, ROWS)))
    assert groups_of(key, value, texts_stay=False) == len(keys.unique())


def test_what_lies_under_nulls_is_nobodys_key() -> None:
    """The values of a column that has one only are not moved: neither are those under its NULLs."""
    values = torch.full((ROWS,), 7, dtype=torch.int64)
    values[:20_000] = 0
    key = FixedColumn(pa.int64(), values, values == 7, (7, 7))
    fields = (Field("k", key.type), Field("v", pa.int64()))
    plan = plan_aggregate(fields, (0,), (AggregateCall("count", (), pa.int64()),), ())
    keyless, others = without_keys_apart(plan, Batch((key, numbers()), ROWS, None), CPU)
    assert keyless is not None
    assert keyless.length == 1
    assert keyless.columns[0].validity is not None
    assert not keyless.columns[0].validity.any()
    assert others.length == 80_000
    kept = others.columns[0]
    assert isinstance(kept, FixedColumn)
    assert kept.validity is None
    assert bool((kept.values == 7).all())
