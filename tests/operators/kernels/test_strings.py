"""Dictionaries: columns that hold nothing but NULL have an empty one."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch

from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.column import BytesColumn, DictionaryColumn
from pystachio.operators.functions.comparison import compare
from pystachio.operators.kernels.selection import concat
from pystachio.operators.kernels.strings import to_codes


def coded(values: list[str | None]) -> DictionaryColumn:
    column = column_from_arrow(pa.array(values, pa.string()))
    assert isinstance(column, BytesColumn)
    return to_codes(column)


def test_only_nulls_join_with_values() -> None:
    parts = [coded([None, None]), coded(["a", None, "b"]), coded([None])]
    assert column_to_arrow(concat(parts)).to_pylist() == [None, None, "a", None, "b", None]


@pytest.mark.parametrize("function", ["equal", "not_equal"])
@pytest.mark.parametrize(("left", "right"), [([None, None], ["a", "b"]), (["a", "a"], [None, None])])
def test_only_nulls_are_compared(function: str, left: list[str | None], right: list[str | None]) -> None:
    found = compare(function, coded(left), coded(right))
    assert isinstance(found, torch.Tensor)
    assert found.shape == (2,)
