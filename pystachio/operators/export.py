"""Results as plain torch tensors."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import torch

from pystachio.errors import Unsupported
from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.column import FixedColumn


def table_to_torch(table: pa.Table) -> dict[str, torch.Tensor]:
    """One tensor of shape [rows] per column, by name; see `Result.to_torch` for the types and errors."""
    return {name: _tensor(name, column) for name, column in zip(table.column_names, table.columns, strict=True)}


def _tensor(name: str, column: pa.ChunkedArray) -> torch.Tensor:
    if pa.types.is_decimal(column.type):
        column = pc.cast(column, pa.float64())
    if pa.types.is_floating(column.type):
        column = pc.fill_null(column, float("nan"))
    if column.null_count:
        raise Unsupported(f"NULLs in a tensor (column {name!r})", hint="use coalesce(...) in the query, or to_arrow()")
    values = column_from_arrow(column.combine_chunks())
    if not isinstance(values, FixedColumn):
        raise Unsupported(f"a tensor of {column.type} (column {name!r})", hint="use to_arrow()")
    return values.values
