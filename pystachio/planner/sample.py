"""A sample of a table's rows, on which the planner tries predicates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeVar

import pyarrow as pa
import torch

from pystachio.io_scheduler.client import HostBuffer
from pystachio.io_scheduler.core.request import Extent
from pystachio.operators.arrow import column_to_arrow
from pystachio.operators.chunks.place import ChunkPlace
from pystachio.operators.column import Column
from pystachio.operators.kernels.selection import all_null, concat, take
from pystachio.operators.parquet.decode import FetchedExtents, RowGroupDecoder
from pystachio.operators.table import ParquetFile, Table
from pystachio.planner.distinct import CountedRun

T = TypeVar("T")

Fetch = Callable[[str, Sequence[Extent]], Sequence[HostBuffer]]
"""Blocking read of extents of a file."""

SAMPLE_ROWS = 20_000
_MOST_RUNS = 8
_MOST_RUNS_OF_SMALL_TABLES = 64
_DECODED_ROWS_OF_FEW_RUNS = 1 << 19
_COUNTED_ROWS = 1 << 16
_COUNTED_STRINGS = 1 << 13
_DECODED_ROWS = 1 << 17
"""Rows decoded for one column, over all runs; more where few row groups must show how values change over the table."""


@dataclass(frozen=True, slots=True)
class SampledRun:
    """`count` rows of adjacent row groups of a file, evenly spread over their first `reach` rows."""

    file: ParquetFile
    groups: tuple[int, ...]
    reach: int
    count: int

    @property
    def rows(self) -> torch.Tensor:
        """Their positions, ascending, int64."""
        return torch.arange(self.count) * self.reach // max(1, self.count)


def choose_runs(table: Table, rows: int = SAMPLE_ROWS) -> tuple[SampledRun, ...]:
    """Row groups spread over the table, and which of their rows to take: all, where a small table has few files."""
    if table.rows <= rows:
        files = [file for file in table.files if file.rows]
        return tuple(_run(file, 0, file.rows, file.rows) for file in _spread(files, _MOST_RUNS_OF_SMALL_TABLES))
    groups = [(file, group) for file in table.files for group, n in enumerate(file.row_group_rows) if n]
    chosen = _spread(groups, _MOST_RUNS)
    count = rows // len(chosen)
    decoded = _DECODED_ROWS_OF_FEW_RUNS if len(chosen) < _MOST_RUNS else _DECODED_ROWS
    return tuple(_run(file, group, count, max(count, decoded // len(chosen))) for file, group in chosen)


class KeptSamples(Protocol):
    """Where samples outlive the process that took them."""

    def ask(self, places: Sequence[ChunkPlace]) -> Callable[[], list[Column | None]]:
        """Begin to read what is kept there. What is returned waits for it; None where nothing is."""
        ...

    def offer(self, place: ChunkPlace, column: Column, *, source_bytes: int, seconds: float) -> None:
        """A sample that took so much to read and to decode. Does not wait."""
        ...


def read_column(
    table: Table, column: int, runs: Sequence[SampledRun], fetch: Fetch, kept: KeptSamples | None = None
) -> Column:
    """The sampled rows of one column; DataError when its bytes are corrupt."""
    parts = [_sampled_from(table, column, of_file, fetch, kept) for of_file in _by_file(runs)]
    return concat(parts) if parts else all_null(table.schema[column].type, 0, torch.device("cpu"))


def ask_kept(
    wanted: Sequence[tuple[Table, int, Sequence[SampledRun]]], kept: KeptSamples
) -> Callable[[], list[Column | None]]:
    """Begin to read the sampled rows of columns, all at once. What is returned waits for them; None where not all of a
    column are kept."""
    places = [[_place(table, column, of_file) for of_file in _by_file(runs)] for table, column, runs in wanted]
    ended = kept.ask([place for of_column in places for place in of_column])

    def wait() -> list[Column | None]:
        found = iter(ended())
        columns = []
        for of_column in places:
            parts = [next(found) for _ in of_column]
            there = [part for part in parts if part is not None]
            columns.append(concat(there) if there and len(there) == len(parts) else None)
        return columns

    return wait


def _sampled_from(
    table: Table, column: int, runs: tuple[SampledRun, ...], fetch: Fetch, kept: KeptSamples | None
) -> Column:
    """The sampled rows of one file."""
    if kept is None:
        return concat(list(_parts(table, column, runs, fetch)))
    place = _place(table, column, runs)
    (found,) = kept.ask([place])()
    if found is None:
        started = time.thread_time()
        found = concat(list(_parts(table, column, runs, fetch)))
        source_bytes = int(place.file.chunks(place.column).lengths[list(place.groups)].sum())
        kept.offer(place, found, source_bytes=source_bytes, seconds=time.thread_time() - started)
    return found


def _by_file(runs: Sequence[SampledRun]) -> list[tuple[SampledRun, ...]]:
    return [tuple(of_file) for _, of_file in groupby(runs, key=lambda run: id(run.file))]


def _place(table: Table, column: int, runs: tuple[SampledRun, ...]) -> ChunkPlace:
    """Where the sampled rows of one file are kept."""
    file = runs[0].file
    position = file.positions[table.schema[column].name]
    groups = tuple(group for run in runs for group in run.groups)
    form = "sample " + " ".join(f"{len(run.groups)}:{run.count}/{run.reach}" for run in runs)
    return ChunkPlace(file, groups, position, sum(run.count for run in runs), form)


def count_run(table: Table, column: int, fetch: Fetch) -> CountedRun | None:
    """Distinct values at the beginning of a row group in the middle; None when the table is empty."""
    groups = [(file, group) for file in table.files for group, n in enumerate(file.row_group_rows) if n]
    if not groups:
        return None
    file, group = groups[len(groups) // 2]
    type_ = table.schema[column].type
    text = pa.types.is_string(type_) or pa.types.is_binary(type_)
    rows = min(file.row_group_rows[group], _COUNTED_STRINGS if text else _COUNTED_ROWS)
    (part,) = _parts(table, column, [SampledRun(file, (group,), rows, rows)], fetch)
    values = column_to_arrow(part).drop_null()
    return CountedRun(len(values.unique()), len(values))


def _spread(items: Sequence[T], most: int) -> list[T]:
    """At most `most` of the items, evenly."""
    parts = min(most, len(items))
    return [items[(2 * part + 1) * len(items) // (2 * parts)] for part in range(parts)]


def _run(file: ParquetFile, first: int, count: int, reach: int) -> SampledRun:
    """From row group `first` on, as many as `count` rows take."""
    rows, last = file.row_group_rows[first], first
    while rows < count and last + 1 < len(file.row_group_rows):
        last += 1
        rows += file.row_group_rows[last]
    return SampledRun(file, tuple(range(first, last + 1)), min(rows, reach), min(rows, count))


def _parts(table: Table, column: int, runs: Sequence[SampledRun], fetch: Fetch) -> Iterator[Column]:
    shared = table.dictionary(column) if table.holds_codes(column) else None
    for run in runs:
        file = run.file
        position = file.positions[table.schema[column].name]
        chunks = [file.chunks(position)[group] for group in run.groups]
        extents = [Extent(chunk.offset, chunk.length) for chunk in chunks if chunk.length]
        buffers = fetch(file.path, extents)
        views = [(extent.offset, buffer.view) for extent, buffer in zip(extents, buffers, strict=True)]
        source = FetchedExtents(file.path, file.size, views)
        decoder = RowGroupDecoder(file, run.groups, source, [] if shared is None else [position])
        decoded = decoder.decode(position, shared, bounds=table.bounds(column), first_rows=run.reach)
        yield take(decoded, run.rows)
