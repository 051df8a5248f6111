"""Batches for tests of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import torch

from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.batch import Batch, Field, Schema
from pystachio.operators.column import (
    BytesColumn,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
)

WORDS = ["", "a", "naïve", "日本", "x" * 40]


def schema_of(batch: Batch) -> Schema:
    return tuple(Field(f"column {place}", column.type) for place, column in enumerate(batch.columns))


def coded(values: Sequence[Any], codes: Sequence[int], dictionary: Dictionary | None = None) -> Batch:
    made = column_from_arrow(pa.array(values))
    assert isinstance(made, BytesColumn | FixedColumn)
    column = DictionaryColumn(made.type, torch.tensor(codes, dtype=torch.int32), dictionary or Dictionary(made))
    return Batch((column,), len(codes), None)
