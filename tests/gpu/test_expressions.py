"""Random trees of functions on a device give what they give on the CPU."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pystachio.errors import DataError
from pystachio.operators.arrow import batch_from_arrow, column_to_arrow
from pystachio.operators.batch import Batch
from pystachio.operators.evaluate import evaluate
from pystachio.operators.expressions import Expression
from pystachio.operators.placement import column_on
from tests.gpu.conftest import Device
from tests.operators.functions.oracle import tables
from tests.operators.functions.test_trees import Tree, dates, decimals, integers, texts, truths

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


def evaluated(expression: Expression, table: pa.Table, place: torch.device) -> list[object] | None:
    """None where a value makes it fail."""
    batch = batch_from_arrow(table)
    placed = Batch(tuple(column_on(column, place) for column in batch.columns), batch.length, None)
    try:
        return column_to_arrow(evaluate(expression, placed, place)).to_pylist()  # type: ignore[no-any-return]
    except DataError:
        return None


@pytest.mark.parametrize("rows", ["nullable", "coded, not null", "empty", "all null"])
@settings(max_examples=15, suppress_health_check=CHECKS)
@given(tree=st.one_of(truths(2), integers(2), decimals(2), texts(2), dates(2)))
def test_trees(device: Device, rows: str, tree: Tree) -> None:
    table = tables()[rows]
    with device.job():
        found = evaluated(tree[0], table, device.torch_device)
    assert found == evaluated(tree[0], table, torch.device("cpu"))
    device.require_no_misuse()
