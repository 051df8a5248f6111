"""A sample of a table's rows, on which the planner tries predicates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from pystachio.io_scheduler.client import HostBuffer
from pystachio.io_scheduler.request import Extent
from pystachio.operators.column import Column
from pystachio.operators.kernels.selection import concat, take
from pystachio.operators.parquet_decode import FetchedExtents, RowGroupDecoder
from pystachio.operators.table import ParquetFile, Table

Fetch = Callable[[str, Sequence[Extent]], Sequence[HostBuffer]]
"""Blocking read of extents of a file."""

SAMPLE_ROWS = 20_000
_MOST_ROW_GROUPS = 8
_MOST_DECODED_ROWS = 1 << 19
"""Rows decoded for one column, over all sampled row groups: a few milliseconds."""


@dataclass(frozen=True, slots=True)
class SampledGroup:
    """`count` rows of a row group, evenly spread over its first `reach` rows."""

    file: ParquetFile
    group: int
    reach: int
    count: int

    @property
    def rows(self) -> torch.Tensor:
        """Their positions, ascending, int64."""
        return torch.arange(self.count) * self.reach // self.count


def choose_groups(table: Table, rows: int = SAMPLE_ROWS) -> tuple[SampledGroup, ...]:
    """Row groups spread over the table, and which of their rows to take: all of a table that is small enough."""
    groups = [(file, group) for file in table.files for group, n in enumerate(file.row_group_rows) if n]
    if table.rows <= rows:
        return tuple(SampledGroup(f, g, f.row_group_rows[g], f.row_group_rows[g]) for f, g in groups)
    parts = min(_MOST_ROW_GROUPS, len(groups))
    chosen = [groups[(2 * part + 1) * len(groups) // (2 * parts)] for part in range(parts)]
    reach = max(rows // parts, _MOST_DECODED_ROWS // parts)
    return tuple(_sampled(file, group, rows // parts, reach) for file, group in chosen)


def read_column(table: Table, column: int, groups: Sequence[SampledGroup], fetch: Fetch) -> Column:
    """The sampled rows of one column; DataError when its bytes are corrupt."""
    return concat(list(_parts(table, column, groups, fetch)))


def _sampled(file: ParquetFile, group: int, count: int, reach: int) -> SampledGroup:
    rows = file.row_group_rows[group]
    return SampledGroup(file, group, min(rows, reach), min(rows, reach, count))


def _parts(table: Table, column: int, groups: Sequence[SampledGroup], fetch: Fetch) -> Iterator[Column]:
    coded = table.codes_pay(column)
    shared = table.dictionary(column) if coded else None
    for sampled in groups:
        file = sampled.file
        position = file.positions[table.schema[column].name]
        chunk = file.chunks(position)[sampled.group]
        extents = [Extent(chunk.offset, chunk.length)] if chunk.length else []
        buffers = fetch(file.path, extents)
        views = [(extent.offset, buffer.view) for extent, buffer in zip(extents, buffers, strict=True)]
        source = FetchedExtents(file.path, file.size, views)
        decoder = RowGroupDecoder(file, [sampled.group], source, [position] if coded else [])
        decoded = decoder.decode(position, shared, bounds=table.bounds(column), first_rows=sampled.reach)
        yield take(decoded, sampled.rows)
