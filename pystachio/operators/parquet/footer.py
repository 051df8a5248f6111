"""Reading a Parquet file's footer through the I/O scheduler, with nothing in it believed unchecked."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pystachio.errors import DataError, NotFound, Unauthorized, Unsupported
from pystachio.io_scheduler.client import TransferClient
from pystachio.io_scheduler.core.request import Extent
from pystachio.operators.column import normalise_type
from pystachio.operators.parquet.column_chunks import FIRST_DATA_BYTE
from pystachio.operators.table import FileVersion, ParquetFile, parquet_fields
from pystachio.runtime.failures import root_cause

_FIRST_READ = 64 << 10
"""Most footers fit: one read instead of two."""

_CONCURRENT_FOOTERS = 16
_MOST_FOOTER_BYTES = 256 << 20
"""A thousand row groups of a thousand columns take half of it. What is said to be more is not read into memory to find
out."""

_TRAILER = 8
_MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"

_ARROW_SCHEMA_KEY = b"\x18\x0cARROW:schema\x18"
_HIDDEN_KEY = b"\x18\x0carrow:schema\x18"
"""The Thrift encoding of the key under which writers keep their Arrow schema, and one of the same length that no reader
knows."""


def file_version(path: str) -> FileVersion:
    """The file as it is now. NotFound, Unauthorized, or DataError when it is not a regular file."""
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}") from error
    except PermissionError as error:
        raise Unauthorized(f"no permission to read: {path}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"cannot look at the file: {path}: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"not a regular file: {path}")
    return FileVersion(path, status.st_size, status.st_mtime_ns)


async def read_footers(client: TransferClient, versions: Sequence[FileVersion]) -> list[ParquetFile]:
    """The footers of several files, concurrently; the first error cancels the rest."""
    room = asyncio.Semaphore(_CONCURRENT_FOOTERS)

    async def read_one(version: FileVersion) -> ParquetFile:
        async with room:
            return await read_footer(client, version)

    tasks: list[asyncio.Task[ParquetFile]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read_one(version)) for version in versions]
    except BaseExceptionGroup as failures:
        raise root_cause(failures) from None
    return [task.result() for task in tasks]


async def read_footer(client: TransferClient, version: FileVersion) -> ParquetFile:
    """One file's footer. DataError when the file is not Parquet or its footer cannot be true."""
    if version.size < FIRST_DATA_BYTE + _TRAILER:
        raise DataError(f"too short for a Parquet file: {version.path}: {version.size} bytes")
    tail = await _read(client, version, min(_FIRST_READ, version.size))
    needed = _footer_length(version, tail) + _TRAILER
    if needed > len(tail):
        tail = await _read(client, version, needed)
    return parse_footer(version, tail[-needed:])


async def _read(client: TransferClient, version: FileVersion, length: int) -> bytes:
    """The last `length` bytes; copied, because the footer outlives the transfer's buffer."""
    (buffer,) = await client.read(version.path, [Extent(version.size - length, length)])
    try:
        return bytes(buffer.view)
    finally:
        buffer.release()


def _footer_length(version: FileVersion, tail: bytes) -> int:
    magic = tail[-4:]
    if magic == _ENCRYPTED_MAGIC:
        raise Unsupported(f"encrypted Parquet: {version.path}")
    if magic != _MAGIC:
        raise DataError(f"not a Parquet file (no magic bytes at its end): {version.path}")
    length = int.from_bytes(tail[-_TRAILER:-4], "little")
    if not 0 < length <= version.size - _TRAILER - FIRST_DATA_BYTE:
        raise DataError(f"the Parquet footer's length is outside the file: {version.path}: {length}")
    if length > _MOST_FOOTER_BYTES:
        raise Unsupported(f"a Parquet footer of {length} bytes: {version.path}; at most {_MOST_FOOTER_BYTES} are read")
    return length


def parse_footer(version: FileVersion, footer: bytes) -> ParquetFile:
    """`footer`: the Thrift bytes, their length and the magic, to the file's end."""
    try:
        metadata, schema = _without_layouts(footer)
        fields = parquet_fields(schema)
        rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        writer = metadata.created_by or ""
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"cannot read the Parquet footer: {version.path}: {error}") from error
    if any(count < 0 for count in rows) or sum(rows) != metadata.num_rows:
        raise DataError(f"the Parquet footer's row counts contradict each other: {version.path}: {metadata.num_rows}")
    return ParquetFile(version, metadata, footer, version.size - len(footer), writer, fields, rows)


def _without_layouts(footer: bytes) -> tuple[pq.FileMetaData, pa.Schema]:
    """The footer, without its stored Arrow schema where that says nothing about the values.

    By a stored schema the decoder makes string views, which alias the transfer's buffers, and dictionaries of its own
    choice; but time zones, durations and extension types are only found there.
    """
    metadata = pq.read_metadata(pa.BufferReader(footer))
    schema = metadata.schema.to_arrow_schema()
    if _ARROW_SCHEMA_KEY in footer:
        plain = pq.read_metadata(pa.BufferReader(footer.replace(_ARROW_SCHEMA_KEY, _HIDDEN_KEY)))
        plain_schema = plain.schema.to_arrow_schema()
        if [normalise_type(f.type) for f in schema] == [normalise_type(f.type) for f in plain_schema]:
            return plain, plain_schema
    return metadata, schema
