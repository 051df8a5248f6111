"""The Parquet files to be rewritten: one table, read in order and in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pystachio.errors import DataError, InvalidRequest, NotFound, ResourceExhausted

_BATCH_ROWS = 1 << 16
_BATCH_BYTES = 32 << 20
_BUFFER_BYTES = 1 << 20
"""Read at once of a column: whole chunks would be as large as the writer of the file liked."""

_SAMPLE_PARTS = 8
_SAMPLE_ROWS = 1 << 15
"""Of each part; they lie spread over the files."""


class Sources:
    """Files of one schema. `schema` is the first one's, nullable where any is, with its metadata."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._footers = [_footer(path) for path in paths]
        self.schema = _common_schema(self.paths, [_schema(path, footer) for path, footer in self._opened()])
        self.rows = sum(footer.num_rows for footer in self._footers)
        decoded = sum(_decoded_bytes(footer) for footer in self._footers)
        self.batch_rows = int(max(1, min(_BATCH_ROWS, _BATCH_BYTES * self.rows // max(decoded, 1)))) if self.rows else 1

    def batches(self) -> Iterator[pa.Table]:
        """All rows in order, with the columns and types of `schema`."""
        for path in self.paths:
            yield from self._read(path, None)

    def sample(self) -> pa.Table:
        """First rows of row groups all over the files."""
        groups = [
            (path, group)
            for path, footer in self._opened()
            for group in range(footer.num_row_groups)
            if footer.row_group(group).num_rows
        ]
        step = max(1, len(groups) // _SAMPLE_PARTS)
        chosen = groups[::step]
        wanted = max(_SAMPLE_ROWS, _SAMPLE_ROWS * _SAMPLE_PARTS // max(len(chosen), 1))
        parts: list[pa.Table] = []
        for path, group in chosen:
            taken = 0
            for batch in self._read(path, [group]):
                parts.append(batch)
                taken += len(batch)
                if taken >= wanted or batch.nbytes >= _BATCH_BYTES:
                    break
        return pa.concat_tables(parts) if parts else self.schema.empty_table()

    def column_bytes(self) -> dict[str, int]:
        """Compressed bytes by top-level column."""
        total: dict[str, int] = {}
        for footer in self._footers:
            for name, nbytes in column_bytes(footer).items():
                total[name] = total.get(name, 0) + nbytes
        return total

    def _opened(self) -> Iterator[tuple[str, pq.FileMetaData]]:
        return zip(self.paths, self._footers, strict=True)

    def _read(self, path: str, groups: Sequence[int] | None) -> Iterator[pa.Table]:
        yield from read_tables(path, self.schema, self.batch_rows, groups)


def read_tables(
    path: str, schema: pa.Schema, batch_rows: int, groups: Sequence[int] | None = None
) -> Iterator[pa.Table]:
    """The rows of a file in pieces. DataError where they are not what the footer says."""
    with reading(path):
        file = pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)
    with closing(file):
        batches = file.iter_batches(batch_rows, row_groups=groups, use_threads=False)
        while True:
            with reading(path):
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)
                table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
            yield table


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Errors of pyarrow and of the system, while a file is read, with its name."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}") from error
    except MemoryError as error:
        raise ResourceExhausted(f"no memory to read: {path}: {error}", setting="memory") from error
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError) as error:
        raise DataError(f"cannot read the Parquet file: {path}: {error}", hint="nothing was written") from error


def column_bytes(footer: pq.FileMetaData) -> dict[str, int]:
    """Compressed bytes of all chunks by top-level column."""
    total: dict[str, int] = {}
    for group in range(footer.num_row_groups):
        described: Any = footer.row_group(group)
        for leaf in range(described.num_columns):
            chunk = described.column(leaf)
            name = top_level_names(footer)[leaf]
            total[name] = total.get(name, 0) + chunk.total_compressed_size
    return total


def top_level_names(footer: pq.FileMetaData) -> list[str]:
    """By primitive column. A name may have dots in it, so a path is not simply split."""
    schema = footer.schema.to_arrow_schema()
    paths = [footer.schema.column(leaf).path for leaf in range(footer.num_columns)]
    names = sorted(schema.names, key=len, reverse=True)
    return [next(name for name in names if path == name or path.startswith(f"{name}.")) for path in paths]


def _footer(path: str) -> pq.FileMetaData:
    with reading(path):
        return pq.read_metadata(path)


def _decoded_bytes(footer: pq.FileMetaData) -> int:
    return sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))


def _schema(path: str, footer: pq.FileMetaData) -> pa.Schema:
    """Dictionaries, which are a matter of Arrow's memory and not of the file, as their values."""
    with reading(path):
        schema = footer.schema.to_arrow_schema()
    if len(set(schema.names)) < len(schema.names):
        raise DataError(f"a file has several columns of one name: {path}")
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _common_schema(paths: Sequence[str], schemas: Sequence[pa.Schema]) -> pa.Schema:
    first = schemas[0]
    nullable = {f.name: f.nullable for f in first}
    for path, other in zip(paths[1:], schemas[1:], strict=True):
        for name in [*first.names, *other.names]:
            mine, theirs = (s.field(name).type if name in s.names else None for s in (first, other))
            if mine != theirs:
                raise InvalidRequest(
                    f"files of different schemas: column {name!r} is {mine or 'absent'} in {paths[0]} "
                    f"and {theirs or 'absent'} in {path}",
                    hint="rewrite them separately, each with an --output or --name of its own",
                )
            nullable[name] |= other.field(name).nullable
    return pa.schema([f.with_nullable(nullable[f.name]) for f in first], metadata=first.metadata)
