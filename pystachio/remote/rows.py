"""Rows and schemas as bytes: Arrow IPC, examined by who receives it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pystachio.errors import DataError, Unsupported
from pystachio.remote.messages import MOST_ROWS_BYTES, ROWS_BYTES


def pieces(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The batch as streams of `ROWS_BYTES` or so. Raises Unsupported for a row that no answer holds."""
    rows = max(1, batch.num_rows * ROWS_BYTES // max(batch.nbytes, 1))
    for first in range(0, batch.num_rows, rows):
        yield from _short_pieces(batch.slice(first, rows))


def _short_pieces(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Cut further where a few rows are much longer than the others."""
    stream = _stream(batch)
    if len(stream) <= MOST_ROWS_BYTES:
        yield stream
        return
    if batch.num_rows == 1:
        raise Unsupported(
            f"rows of more than {MOST_ROWS_BYTES:,} bytes for a client elsewhere",
            hint="select fewer columns, or shorter parts of their values (substr), or ask where the data is",
        )
    half = batch.num_rows // 2
    yield from _short_pieces(batch.slice(0, half))
    yield from _short_pieces(batch.slice(half))


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read_rows(stream: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The batch, every value of it examined. Raises DataError for anything else than one batch of the schema."""
    try:
        with pa.ipc.open_stream(stream) as reader:
            batches = list(reader)
        if len(batches) != 1 or batches[0].schema != schema:
            raise DataError("a node sent rows of another plan")
        batches[0].validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"a node sent rows that are damaged: {error}") from error
    batch: pa.RecordBatch = batches[0]
    return batch


def schema_bytes(schema: pa.Schema) -> bytes:
    content: bytes = schema.serialize().to_pybytes()
    return content


def read_schema(content: bytes) -> pa.Schema:
    """Raises DataError."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(content))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"a node sent a schema that is damaged: {error}") from error
