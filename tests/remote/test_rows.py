from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pystachio.errors import DataError, Unsupported
from pystachio.remote.messages import MOST_ROWS_BYTES, ROWS_BYTES
from pystachio.remote.rows import pieces, read_rows, read_schema, schema_bytes

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.string())])


def batch_of(rows: int, text: str = "x") -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(rows), pa.int64()), pa.array([text] * rows)], schema=SCHEMA)


@pytest.mark.parametrize("rows", [1, 1000, 500_000])
def test_rows_arrive_in_pieces_and_in_order(rows: int) -> None:
    streams = list(pieces(batch_of(rows)))
    assert max(map(len, streams)) < 2 * ROWS_BYTES
    arrived = [read_rows(stream, SCHEMA) for stream in streams]
    assert pa.Table.from_batches(arrived).equals(pa.Table.from_batches([batch_of(rows)]))


def test_no_rows_are_no_pieces() -> None:
    assert list(pieces(batch_of(0))) == []


def test_a_few_long_rows_are_cut_further() -> None:
    texts = ["short"] * 100_000 + ["long" * (MOST_ROWS_BYTES // 8)] * 4
    batch = pa.record_batch([pa.array(texts)], names=["s"])
    streams = list(pieces(batch))
    assert max(map(len, streams)) <= MOST_ROWS_BYTES
    assert pa.Table.from_batches([read_rows(stream, batch.schema) for stream in streams])["s"].to_pylist() == texts


def test_a_row_that_no_message_holds() -> None:
    with pytest.raises(Unsupported):
        list(pieces(batch_of(2, "x" * (MOST_ROWS_BYTES + 1))))


def test_schemas_arrive() -> None:
    assert read_schema(schema_bytes(SCHEMA)) == SCHEMA
    with pytest.raises(DataError):
        read_schema(b"no schema")


def test_rows_of_another_plan_are_refused() -> None:
    (stream,) = pieces(pa.record_batch([pa.array([1])], names=["m"]))
    with pytest.raises(DataError, match="another plan"):
        read_rows(stream, SCHEMA)


@given(st.integers(0, 10_000), st.integers(1, 255))
@settings(max_examples=200)
def test_damaged_rows_are_refused_or_valid(place: int, change: int) -> None:
    (stream,) = pieces(batch_of(20, "some text"))
    damaged = bytearray(stream)
    damaged[place % len(damaged)] ^= change
    with suppress(DataError):
        read_rows(bytes(damaged), SCHEMA).validate(full=True)
