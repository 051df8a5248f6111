"""BlockReader: blocks of bytes as batches, after everything in them is checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import torch

from pystachio.errors import DataError, shown
from pystachio.operators.batch import Batch, Field, Schema
from pystachio.operators.column import BytesColumn, Column, Dictionary, DictionaryColumn, FixedColumn, WideDecimalColumn
from pystachio.operators.exchanges.layout import (
    ALIGNMENT,
    DTYPES,
    INTEGERS,
    MAGIC,
    MOST_DICTIONARY_BYTES,
    MOST_HEADER_BYTES,
    PREFIX,
    TEXTS,
    WIDE,
    BlockHeader,
    CodedHeader,
    PlainHeader,
    aligned,
    buffers_of,
    dtypes_for,
    stands_for,
)
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.bounds import with_measured_bounds
from pystachio.operators.plan_codec.types import read_type

_DECODER: Final = msgspec.msgpack.Decoder(BlockHeader)
_HOST: Final = torch.device("cpu")


class BlockReader:
    """Reads the blocks of one BlockWriter, all of them and in their order; one thread at a time."""

    def __init__(self, most_dictionary_bytes: int = MOST_DICTIONARY_BYTES) -> None:
        """`most_dictionary_bytes` is the writer's."""
        self._most = most_dictionary_bytes
        self._kept: dict[int, tuple[Dictionary, int]] = {}
        self._held = 0

    @property
    def dictionary_bytes(self) -> int:
        """Held for later blocks."""
        return self._held

    def read(self, block: memoryview, schema: Schema) -> Batch:
        """The batch, on the host. Its tensors are views of the block and keep it alive; nobody may write into it any
        more. Where the block does not begin at a multiple of 64 bytes it is copied first.

        DataError, naming the column, for whatever a BlockWriter would not have written; the reader is then of no use.
        """
        header, begin = _header_of(block)
        if len(header.columns) != len(schema):
            raise DataError(f"a block has {len(header.columns)} columns, its exchange {len(schema)}")
        whole = _tensor_of(block)
        for number in header.forget:
            if number not in self._kept:
                raise DataError(f"a block forgets a dictionary that is not there: {number}")
            self._held -= self._kept.pop(number)[1]
        parts = _Parts(whole, begin)
        columns = []
        for described, field in zip(header.columns, schema, strict=True):
            try:
                columns.append(self._column(described, field, header.rows, parts))
            except _Damaged as error:
                raise DataError(f"a block is damaged: column {field.name!r}: {error}") from error
        if parts.position != whole.shape[0]:
            raise DataError(f"a block is longer than its columns: {whole.shape[0]} bytes, {parts.position} used")
        return Batch(tuple(columns), header.rows, None)

    def _column(self, header: PlainHeader | CodedHeader, field: Field, rows: int, parts: _Parts) -> Column:
        type_ = _type_of(header, field.type)
        if header.rows != rows:
            raise _Damaged(f"{header.rows} rows of {rows}")
        if isinstance(header, PlainHeader):
            return _plain_column(header, type_, parts.take(header))
        buffers = parts.take(header)
        if header.values is None:
            dictionary = self._known(header.dictionary)
        else:
            dictionary = self._introduced(header, type_, buffers)
        _require(dictionary.values.type == type_, f"a dictionary of {dictionary.values.type} for {type_}")
        codes = next(buffers).view(DTYPES[header.dtype])
        validity = _bits(next(buffers), rows) if header.has_validity else None
        if rows and len(dictionary):
            low, high = primitives(_HOST).minimum_and_maximum(codes)
            _require(low >= 0 and high < len(dictionary), f"codes from {low} to {high} of {len(dictionary)} values")
        elif rows:
            _require(validity is not None and not bool(validity.any()), "a code of a dictionary without values")
        return DictionaryColumn(type_, codes, dictionary, validity)

    def _known(self, number: int | None) -> Dictionary:
        if number is None or number not in self._kept:
            raise _Damaged(f"a dictionary that no block brought: {number}")
        return self._kept[number][0]

    def _introduced(self, header: CodedHeader, type_: pa.DataType, buffers: Iterator[torch.Tensor]) -> Dictionary:
        described = header.values
        assert described is not None
        _require(not described.has_validity, "a dictionary with NULLs")
        _require(_type_of(described, type_) == type_, "a dictionary of another type")
        values = _plain_column(described, type_, buffers)
        if not isinstance(values, BytesColumn | FixedColumn):
            raise _Damaged("a dictionary of wide decimals")
        if header.dictionary is None:
            return Dictionary(values)
        nbytes = sum(buffers_of(described))
        _require(header.dictionary not in self._kept, f"the dictionary {header.dictionary} twice")
        _require(self._held + nbytes <= self._most, f"dictionaries of more than {self._most} bytes")
        # A copy, or the dictionary would keep the block.
        kept = Dictionary(_copied(values))
        self._kept[header.dictionary] = kept, nbytes
        self._held += nbytes
        return kept


class _Damaged(Exception):
    """What is wrong, in words."""


class _Parts:
    """The buffers of a block, one after the other."""

    def __init__(self, block: torch.Tensor, position: int) -> None:
        self._block = block
        self.position = position

    def take(self, header: PlainHeader | CodedHeader) -> Iterator[torch.Tensor]:
        """Those of the next column, as uint8; all are inside the block."""
        _require_dtype(header)
        found = []
        for length in buffers_of(header):
            begin = aligned(self.position)
            end = begin + length
            if end > self._block.shape[0]:
                raise _Damaged(f"bytes {begin} to {end} of a block of {self._block.shape[0]}")
            found.append(self._block[begin:end])
            self.position = end
        return iter(found)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise _Damaged(what)


def _header_of(block: memoryview) -> tuple[BlockHeader, int]:
    """And where it ends."""
    if block.nbytes < PREFIX.size:
        raise DataError(f"a block of {block.nbytes} bytes is too short")
    magic, length = PREFIX.unpack_from(block)
    if magic != MAGIC or length > min(MOST_HEADER_BYTES, block.nbytes - PREFIX.size):
        raise DataError("a block does not begin as one", hint="run the same release on all nodes")
    end = PREFIX.size + length
    try:
        return _DECODER.decode(block[PREFIX.size : end]), end
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"the header of a block is malformed: {error}") from error


def _type_of(header: PlainHeader | CodedHeader, expected: pa.DataType) -> pa.DataType:
    try:
        type_ = read_type(header.type)
    except DataError as error:
        raise _Damaged(error.message) from error
    if not stands_for(type_, expected):
        raise _Damaged(f"values of the type {type_} for {expected}")
    return type_


def _require_dtype(header: PlainHeader | CodedHeader) -> None:
    if isinstance(header, CodedHeader):
        _require(header.dtype in INTEGERS, f"codes of the dtype {shown(header.dtype)}")
        if header.values is not None:
            _require_dtype(header.values)
    elif header.dtype not in DTYPES and header.dtype not in (TEXTS, WIDE):
        raise _Damaged(f"an unknown dtype: {shown(header.dtype)}")


def _plain_column(
    header: PlainHeader, type_: pa.DataType, buffers: Iterator[torch.Tensor]
) -> FixedColumn | BytesColumn | WideDecimalColumn:
    if header.dtype not in dtypes_for(type_):
        raise _Damaged(f"{type_} as {shown(header.dtype)}")
    rows, has_validity = header.rows, header.has_validity
    if header.dtype == TEXTS:
        offsets, data = next(buffers).view(torch.int64), next(buffers)
        _require_offsets(offsets.numpy(), data.shape[0])
        return BytesColumn(type_, offsets, data, _bits(next(buffers), rows) if has_validity else None)
    if header.dtype == WIDE:
        high, low = next(buffers).view(torch.int64), next(buffers).view(torch.int64)
        return WideDecimalColumn(type_, high, low, _bits(next(buffers), rows) if has_validity else None)
    packed = next(buffers)
    values = _bits(packed, rows) if header.dtype == "bool" else packed.view(DTYPES[header.dtype])
    column = FixedColumn(type_, values, _bits(next(buffers), rows) if has_validity else None)
    if not header.bounded:
        return column
    measured = with_measured_bounds(column)
    assert isinstance(measured, FixedColumn)
    return measured


def _require_offsets(offsets: np.ndarray[Any, Any], nbytes: int) -> None:
    _require(offsets[0] == 0 and offsets[-1] == nbytes, f"texts from {offsets[0]} to {offsets[-1]} of {nbytes} bytes")
    _require(bool((offsets[1:] >= offsets[:-1]).all()), "a text of less than no bytes")


def _bits(packed: torch.Tensor, rows: int) -> torch.Tensor:
    """bool [rows]; nothing but 0 and 1, whatever the bytes are."""
    return torch.from_numpy(np.unpackbits(packed.numpy(), count=rows, bitorder="little").view(np.bool_))


def _copied(values: BytesColumn | FixedColumn) -> BytesColumn | FixedColumn:
    if isinstance(values, BytesColumn):
        return BytesColumn(values.type, values.offsets.clone(), values.data.clone())
    return FixedColumn(values.type, values.values.clone(), None, values.bounds)


class _Readable:
    """A block as numpy sees it. Columns never write, so the view claims to be writable and torch does not warn."""

    __slots__ = ("__array_interface__", "block")

    def __init__(self, block: np.ndarray[Any, Any]) -> None:
        self.block = block
        self.__array_interface__ = {
            "version": 3,
            "shape": block.shape,
            "typestr": "|u1",
            "data": (block.ctypes.data, False),
        }


def _tensor_of(block: memoryview) -> torch.Tensor:
    bytes_: np.ndarray[Any, Any] = np.frombuffer(block, dtype=np.uint8)
    whole = torch.from_numpy(np.asarray(_Readable(bytes_)))
    return whole if whole.data_ptr() % ALIGNMENT == 0 else whole.clone()
