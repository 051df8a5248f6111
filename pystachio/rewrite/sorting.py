"""Sorting more rows than memory holds: sorted runs in a folder on disk, merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from pystachio.errors import InvalidRequest, NotFound
from pystachio.rewrite.layout import storage_type

_RUN = "__run"
_MERGED_BYTES = 64 << 20
"""Of all runs together, about, while they are merged."""


def require_sortable(schema: pa.Schema, keys: Sequence[str]) -> None:
    """NotFound for a column that is not there, InvalidRequest for one without an order."""
    for position, key in enumerate(keys):
        if key not in schema.names:
            raise NotFound(f"no such column to sort by: {key!r}", hint=f"the columns are {', '.join(schema.names)}")
        type_ = storage_type(schema.field(key).type)
        if pa.types.is_nested(type_) or pa.types.is_null(type_):
            raise InvalidRequest(f"rows cannot be sorted by the column {key!r} of type {type_}")
        if key in keys[:position]:
            raise InvalidRequest(f"the column is named twice to sort by: {key!r}")


def in_order(batches: Iterable[pa.Table], keys: Sequence[str], folder: Path, run_bytes: int) -> Iterator[pa.Table]:
    """The rows ordered by the keys, ascending, NULLs last; `run_bytes` and a half are held at a time.

    `folder` is for the runs, if there are several. Raises OSError where it cannot be written.
    """
    held: list[pa.Table] = []
    nbytes = 0
    runs: list[Path] = []
    for batch in batches:
        held.append(_sortable(batch))
        nbytes += batch.nbytes
        if nbytes >= run_bytes:
            runs.append(_written(_sorted(pa.concat_tables(held), keys), folder / f"{len(runs)}.arrow"))
            held, nbytes = [], 0
    if held and not runs:
        yield from _pieces(_sorted(pa.concat_tables(held), keys))
        return
    if held:
        runs.append(_written(_sorted(pa.concat_tables(held), keys), folder / f"{len(runs)}.arrow"))
    del held
    yield from _merged(runs, keys)


def _sortable(table: pa.Table) -> pa.Table:
    """String views, which cannot be gathered, with offsets."""
    wide = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    small = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return table.cast(pa.schema([f.with_type((wide | small).get(f.type, f.type)) for f in table.schema]))


def _sorted(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    return table.take(_order(table, keys))


def _order(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    columns = [_key(table.column(key)) for key in keys]
    named = pa.table({str(position): column for position, column in enumerate(columns)})
    return pc.sort_indices(named, sort_keys=[(name, "ascending") for name in named.schema.names])


def _key(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column


def _written(table: pa.Table, path: Path) -> Path:
    with path.open("xb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        for piece in _pieces(table):
            writer.write_table(piece)
    return path


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    rows = max(1, min(1 << 16, len(table) * (4 << 20) // max(table.nbytes, 1)))
    for start in range(0, len(table), rows):
        yield table.slice(start, rows).combine_chunks()


@dataclass(slots=True, eq=False)
class _Run:
    reader: pa.ipc.RecordBatchStreamReader
    held: pa.Table
    ended: bool = False

    def refill(self, nbytes: int) -> None:
        parts = [self.held]
        while not self.ended and sum(part.nbytes for part in parts) < nbytes:
            try:
                parts.append(pa.Table.from_batches([self.reader.read_next_batch()]))
            except StopIteration:
                self.ended = True
        self.held = pa.concat_tables(parts)


def _merged(paths: Sequence[Path], keys: Sequence[str]) -> Iterator[pa.Table]:
    """Of what is held of all runs, the rows up to the first last row of a run that goes on: no later row is smaller."""
    files = [path.open("rb") for path in paths]
    try:
        runs = []
        for file in files:
            reader = pa.ipc.open_stream(file)
            runs.append(_Run(reader, reader.schema.empty_table()))
        while True:
            for run in runs:
                run.refill(_MERGED_BYTES // len(runs))
            runs = [run for run in runs if len(run.held)]
            if not runs:
                return
            numbered = [
                run.held.append_column(_RUN, pa.repeat(pa.scalar(number, pa.int32()), len(run.held)))
                for number, run in enumerate(runs)
            ]
            together = pa.concat_tables(numbered)
            order = _order(together, keys)
            together = together.take(order)
            emitted = _safe_rows(together.column(_RUN), [run.ended for run in runs], [len(run.held) for run in runs])
            taken = pc.value_counts(together.column(_RUN).slice(0, emitted).combine_chunks())
            for entry in taken.to_pylist():
                run = runs[entry["values"]]
                run.held = run.held.slice(entry["counts"])
            yield from _pieces(together.slice(0, emitted).drop_columns([_RUN]))
    finally:
        for file in files:
            file.close()


def _safe_rows(numbers: pa.ChunkedArray, ended: Sequence[bool], lengths: Sequence[int]) -> int:
    """So many rows of the merged order are complete. Each run's rows keep their order, so a prefix of each is taken."""
    owners = numbers.to_numpy()
    safe = len(owners)
    for number, (run_ended, length) in enumerate(zip(ended, lengths, strict=True)):
        if not run_ended:
            safe = min(safe, int((owners == number).nonzero()[0][length - 1]) + 1)
    return safe
