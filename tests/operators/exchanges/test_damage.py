"""A damaged block is an error or a batch that is safe to use."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import torch

from pystachio.errors import DataError
from pystachio.operators.arrow import batch_from_arrow
from pystachio.operators.batch import Batch, Field, Schema
from pystachio.operators.column import (
    BytesColumn,
    DictionaryColumn,
    FixedColumn,
)
from pystachio.operators.exchanges.layout import MAGIC, PREFIX, aligned
from pystachio.operators.exchanges.reader import BlockReader
from pystachio.operators.exchanges.writer import BlockWriter
from pystachio.operators.kernels.selection import take_batch
from pystachio.operators.kernels.strings import to_codes
from tests.operators.batch_sources import WORDS, coded, schema_of
from tests.operators.payload_edits import edit


def mixed_batch() -> Batch:
    rows = 50
    rng = random.Random(7)
    texts = [rng.choice([*WORDS, None]) for _ in range(rows)]
    plain = batch_from_arrow(
        pa.table(
            {
                "small": pa.array([rng.choice([1, 2, None]) for _ in range(rows)], pa.int8()),
                "number": pa.array([rng.randrange(1000) for _ in range(rows)]),
                "flag": pa.array([rng.random() < 0.5 for _ in range(rows)]),
                "text": pa.array(texts),
                "wide": pa.array([10**20 + number for number in range(rows)], pa.decimal128(38, 0)),
                "ratio": pa.array([rng.random() for _ in range(rows)]),
            }
        )
    )
    number = plain.columns[1]
    text = plain.columns[3]
    assert isinstance(number, FixedColumn)
    assert isinstance(text, BytesColumn)
    bounded = FixedColumn(number.type, number.values, None, (0, 1000))
    return Batch((plain.columns[0], bounded, *plain.columns[2:], to_codes(text)), rows, None)


def require_safe(batch: Batch, schema: Schema) -> None:
    """Everything that a kernel would read by what the batch says lies inside its tensors."""
    for column, field in zip(batch.columns, schema, strict=True):
        assert len(column) == batch.length, field
        assert column.validity is None or column.validity.shape[0] == batch.length
        texts = column.dictionary.values if isinstance(column, DictionaryColumn) else column
        if isinstance(column, DictionaryColumn) and batch.length and len(column.dictionary):
            assert 0 <= int(column.codes.min()) <= int(column.codes.max()) < len(column.dictionary)
        if isinstance(texts, BytesColumn):
            assert int(texts.offsets[0]) == 0
            assert int(texts.offsets[-1]) == texts.data.shape[0]
            assert bool((texts.offsets.diff() >= 0).all())
        if isinstance(column, FixedColumn) and column.bounds is not None and batch.length:
            valid = column.values if column.validity is None else column.values[column.validity]
            assert valid.shape[0] == 0 or column.bounds[0] <= int(valid.min()) <= int(valid.max()) <= column.bounds[1]
    if batch.length:
        take_batch(batch, torch.tensor([batch.length - 1, 0]) if batch.columns else torch.tensor([0]))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_blocks_are_errors_or_safe(seed: int) -> None:
    batch = mixed_batch()
    schema = schema_of(batch)
    block = bytes(BlockWriter().write(batch))
    header = PREFIX.size + PREFIX.unpack_from(block)[1]
    rng = random.Random(seed)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(block)
        for _ in range(rng.choice((1, 1, 2, 5))):
            where = rng.randrange(header) if rng.random() < 0.5 else rng.randrange(len(block))
            damaged[where] = rng.randrange(256)
        if rng.random() < 0.1:
            del damaged[rng.randrange(len(damaged)) :]
        if rng.random() < 0.05:
            damaged += bytes(rng.randrange(1, 100))
        try:
            found = BlockReader().read(memoryview(damaged), schema)
        except DataError:
            refused += 1
        else:
            require_safe(found, schema)
    assert refused > 300


@pytest.mark.parametrize("seed", range(3))
def test_edited_headers_are_errors_or_safe(seed: int) -> None:
    """Of the second of three blocks; the dictionary came with the first."""
    batch = mixed_batch()
    schema, writer = schema_of(batch), BlockWriter()
    first, second, third = (bytes(writer.write(batch)) for _ in range(3))
    header, body = parts_of(second)
    rng = random.Random(seed)
    refused = 0
    for _ in range(500):
        edited = msgspec.msgpack.decode(header)
        edit(edited, rng)
        reader = BlockReader()
        require_safe(reader.read(memoryview(first), schema), schema)
        try:
            require_safe(reader.read(block_of(msgspec.msgpack.encode(edited), body), schema), schema)
            require_safe(reader.read(memoryview(third), schema), schema)
        except DataError:
            refused += 1
    assert refused > 200


def parts_of(block: bytes) -> tuple[bytes, bytes]:
    """The header and the buffers."""
    end = PREFIX.size + PREFIX.unpack_from(block)[1]
    return block[PREFIX.size : end], block[aligned(end) :]


def block_of(header: bytes, body: bytes) -> memoryview:
    head = PREFIX.pack(MAGIC, len(header)) + header
    return memoryview(head.ljust(aligned(len(head)), b"\0") + body)


def rewritten(block: memoryview, change: Any) -> memoryview:
    """The block with another header: `change` gets the header's parts."""
    header, body = parts_of(bytes(block))
    parts = msgspec.msgpack.decode(header)
    change(parts)
    return block_of(msgspec.msgpack.encode(parts), body)


def damage() -> Iterator[tuple[Batch, Any, str]]:
    texts = batch_from_arrow(pa.table({"text": ["ab", "c"]}))
    numbers = batch_from_arrow(pa.table({"number": [1, 2]}))

    def set_rows(parts: Any) -> None:
        parts[2][0][3] = 3

    def set_text_bytes(parts: Any) -> None:
        parts[2][0][6] = 2

    def set_dtype(parts: Any) -> None:
        parts[2][0][2] = "int65"

    def set_type(parts: Any) -> None:
        parts[2][0][1] = ["int65"]

    yield texts, set_rows, "rows"
    yield texts, set_text_bytes, "texts from 0 to 3 of 2 bytes"
    yield numbers, set_dtype, "an unknown dtype: 'int65'"
    yield numbers, set_type, "a type that nobody knows"


def test_what_is_wrong_is_named_with_its_column() -> None:
    for batch, change, message in damage():
        block = BlockWriter().write(batch)
        with pytest.raises(DataError, match="column 'column 0': ") as raised:
            BlockReader().read(rewritten(block, change), schema_of(batch))
        assert message in raised.value.message


def changed(block: memoryview, tensor: torch.Tensor, place: int, value: int) -> memoryview:
    """The block with another number where `tensor`, which lies in it, has the row `place`."""
    begin = np.frombuffer(block, np.uint8).ctypes.data
    offset = tensor.data_ptr() - begin + place * tensor.itemsize
    copy = bytearray(block)
    copy[offset : offset + tensor.itemsize] = value.to_bytes(tensor.itemsize, "little", signed=True)
    return memoryview(copy)


@pytest.mark.parametrize(("place", "value"), [(0, 1), (1, -1), (1, 4), (1, 2**62), (2, 4), (2, 2)])
def test_offsets_outside_their_bytes(place: int, value: int) -> None:
    batch = batch_from_arrow(pa.table({"text": ["ab", "c"]}))
    block = BlockWriter().write(batch)
    (column,) = BlockReader().read(block, schema_of(batch)).columns
    assert isinstance(column, BytesColumn)
    with pytest.raises(DataError, match=r"a text of less than no bytes|texts from"):
        BlockReader().read(changed(block, column.offsets, place, value), schema_of(batch))


@pytest.mark.parametrize("value", [-1, 2, 2**31 - 1])
def test_codes_outside_their_dictionary(value: int) -> None:
    batch = coded(["a", "b"], [0, 1])
    block = BlockWriter().write(batch)
    (column,) = BlockReader().read(block, schema_of(batch)).columns
    assert isinstance(column, DictionaryColumn)
    with pytest.raises(DataError, match="codes from"):
        BlockReader().read(changed(block, column.codes, 1, value), schema_of(batch))


def test_a_dictionary_that_was_never_sent() -> None:
    writer = BlockWriter()
    batch = coded(["a", "b"], [0, 1])
    writer.write(batch)
    with pytest.raises(DataError, match="column 'column 0': a dictionary that no block brought: 0"):
        BlockReader().read(writer.write(batch), schema_of(batch))


def test_dictionaries_beyond_the_readers_bound() -> None:
    batch = coded(["x" * 1000, "b"], [0, 1])
    with pytest.raises(DataError, match="dictionaries of more than 100 bytes"):
        BlockReader(100).read(BlockWriter().write(batch), schema_of(batch))


def test_columns_of_another_type_or_number() -> None:
    batch = batch_from_arrow(pa.table({"text": ["ab", "c"]}))
    block = BlockWriter().write(batch)
    with pytest.raises(DataError, match="column 'a': values of the type string for int64"):
        BlockReader().read(block, (Field("a", pa.int64()),))
    with pytest.raises(DataError, match="1 columns, its exchange 0"):
        BlockReader().read(block, ())
    for short in (b"", b"PXB1", bytes(block[:20]), b"PAR1" + bytes(100)):
        with pytest.raises(DataError):
            BlockReader().read(memoryview(short), schema_of(batch))
