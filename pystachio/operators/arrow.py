"""Arrow arrays to columns and back, without a copy where the layouts agree (numbers, offsets, bytes, codes)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from pystachio.errors import DataError, Unsupported
from pystachio.operators.batch import Batch, Field, Schema
from pystachio.operators.column import (
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
    WideDecimalColumn,
    normalise_type,
)
from pystachio.operators.expressions import Literal
from pystachio.operators.kernels.views import materialised, slice_views
from pystachio.operators.placement import batch_on_host, on_host

MAXIMUM_STRING_BYTES: Final = 2**31 - 1

# The numpy dtype of an Arrow type's values buffer.
_PHYSICAL: Final[dict[pa.DataType, str]] = {
    pa.int8(): "i1",
    pa.int16(): "i2",
    pa.int32(): "i4",
    pa.int64(): "i8",
    pa.uint8(): "u1",
    pa.uint16(): "u2",
    pa.uint32(): "u4",
    pa.uint64(): "u8",
    pa.float16(): "f2",
    pa.float32(): "f4",
    pa.float64(): "f8",
    pa.date32(): "i4",
    pa.date64(): "i8",
}

# What a column stores where torch has no such dtype, or kernels no use for it.
_ARROW_VALUES: Final = "arrow"
"""The key of a dictionary's Arrow array among what is derived from it."""
_STORED: Final[dict[str, str]] = {"u1": "i2", "u2": "i4", "u4": "i8", "f2": "f4"}


class _Exported:
    """A buffer as numpy sees it. The columns never write, so the view claims to be writable and torch does not warn."""

    __slots__ = ("__array_interface__", "buffer")

    def __init__(self, buffer: pa.Buffer, dtype: str, offset: int, length: int) -> None:
        self.buffer = buffer
        self.__array_interface__ = {
            "version": 3,
            "shape": (length,),
            "typestr": f"{'|' if dtype.endswith('1') else '<'}{dtype}",
            "data": (buffer.address + offset * int(dtype[1:]), False),
        }


def column_from_arrow(array: pa.Array | pa.ChunkedArray) -> Column:
    """The array as a column on the CPU, sharing its memory where it can.

    Raises Unsupported for nested types and for uint64 above int64's range, DataError for codes outside their
    dictionary.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    type_ = array.type
    if pa.types.is_dictionary(type_):
        return _dictionary_column(array)
    if _is_bytes(type_):
        return _bytes_column(array)
    if pa.types.is_decimal(type_):
        return _decimal_column(array)
    if pa.types.is_null(type_):
        nothing = torch.zeros(len(array), dtype=torch.int8)
        return FixedColumn(type_, nothing, torch.zeros(len(array), dtype=torch.bool))
    if pa.types.is_boolean(type_):
        return FixedColumn(type_, _bits(array.buffers()[1], array.offset, len(array)), _validity(array))
    return _fixed_column(array)


def dictionary_from_arrow(values: pa.Array) -> Dictionary:
    """A dictionary of `values`, which must be distinct and not NULL."""
    column = column_from_arrow(values)
    assert isinstance(column, BytesColumn | FixedColumn)
    return Dictionary(column)


def dictionary_to_arrow(dictionary: Dictionary) -> pa.Array:
    """The dictionary's values, made once."""
    if _ARROW_VALUES not in dictionary.derived:
        dictionary.derived[_ARROW_VALUES] = column_to_arrow(dictionary.values)
    return dictionary.derived[_ARROW_VALUES]


def batch_from_arrow(batch: pa.RecordBatch | pa.Table) -> Batch:
    """All columns of a record batch or table, on the CPU."""
    return Batch(tuple(column_from_arrow(column) for column in batch.columns), batch.num_rows, None)


def schema_from_arrow(schema: pa.Schema) -> Schema:
    """Fields with normalised types."""
    return tuple(Field(field.name, normalise_type(field.type), field.nullable) for field in schema)


def column_to_arrow(column: Column) -> pa.Array:
    """The column as an Arrow array of exactly `column.type`, on the host; dictionaries are decoded."""
    match column:
        case FixedColumn():
            return _fixed_array(column)
        case WideDecimalColumn(type=type_, high=high, low=low):
            limbs = np.stack((on_host(low).numpy(), on_host(high).numpy()), axis=1)
            buffers = [validity_buffer(column.validity), pa.py_buffer(limbs)]
            return pa.Array.from_buffers(type_, len(column), buffers)
        case BytesColumn():
            return _bytes_array(column)
        case ViewColumn():
            return column_to_arrow(materialised(column))
        case DictionaryColumn(codes=codes, dictionary=dictionary):
            codes = on_host(codes).contiguous()
            buffers = [validity_buffer(column.validity), buffer_of(codes)]
            indices = pa.Array.from_buffers(pa.from_numpy_dtype(codes.numpy().dtype), len(codes), buffers)
            if len(dictionary) == 0:
                return pa.nulls(len(codes), column.type)
            return dictionary_to_arrow(dictionary).take(indices)


def large_array(column: BytesColumn) -> pa.Array:
    """The column as large_string or large_binary: its own bytes and offsets, nothing copied on a CPU."""
    large = pa.large_string() if pa.types.is_string(column.type) else pa.large_binary()
    buffers = [validity_buffer(column.validity), buffer_of(column.offsets), buffer_of(column.data)]
    return pa.Array.from_buffers(large, len(column), buffers)


def schema_to_arrow(schema: Schema, names: Sequence[str] | None = None) -> pa.Schema:
    """The fields as Arrow has them, under other `names` where these are given."""
    names = [field.name for field in schema] if names is None else names
    return pa.schema([pa.field(name, field.type, field.nullable) for name, field in zip(names, schema, strict=True)])


def batch_to_arrow(batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch under the schema's names and types."""
    arrays = []
    for column, type_ in zip(batch_on_host(batch).columns, schema.types, strict=True):
        array = column_to_arrow(column)
        arrays.append(array if array.type == type_ else array.cast(type_))
    if not arrays:
        # A record batch without columns has no length of its own; a struct array has.
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.length, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def literal_at(column: Column, row: int) -> Literal:
    """One row's value in the encoding of literals."""
    if column.validity is not None and not bool(column.validity[row]):
        return Literal(None, column.type)
    match column:
        case FixedColumn(type=type_, values=values):
            return Literal(values[row].item(), type_)
        case WideDecimalColumn(type=type_, high=high, low=low):
            return Literal(int(high[row]) * 2**64 + int(low[row]) % 2**64, type_)
        case BytesColumn(type=type_, offsets=offsets, data=data):
            raw = data[int(offsets[row]) : int(offsets[row + 1])].cpu().numpy().tobytes()
            try:
                return Literal(raw.decode() if pa.types.is_string(type_) else raw, type_)
            except UnicodeDecodeError as error:
                raise DataError(f"a string is not UTF-8: {raw!r}") from error
        case ViewColumn():
            return literal_at(materialised(slice_views(column, row, row + 1)), 0)
        case DictionaryColumn(codes=codes, dictionary=dictionary):
            return literal_at(dictionary.values, int(codes[row]))


def buffer_of(tensor: torch.Tensor) -> pa.Buffer:
    """The tensor's bytes on the host, kept alive by the buffer."""
    return pa.py_buffer(on_host(tensor).contiguous().numpy())


def validity_buffer(validity: torch.Tensor | None) -> pa.Buffer | None:
    """Arrow's bitmap of a bool tensor."""
    return None if validity is None else pa.py_buffer(np.packbits(on_host(validity).numpy(), bitorder="little"))


def _is_bytes(type_: pa.DataType) -> bool:
    return normalise_type(type_) in (pa.string(), pa.binary())


def _view(buffer: pa.Buffer | None, dtype: str, offset: int, length: int) -> np.ndarray[Any, Any]:
    if buffer is None or length == 0:
        return np.empty(0, dtype)
    return np.asarray(_Exported(buffer, dtype, offset, length))


def _bits(buffer: pa.Buffer | None, offset: int, length: int) -> torch.Tensor:
    first = offset // 8
    packed = _view(buffer, "u1", first, (offset + length + 7) // 8 - first)
    bits = np.unpackbits(packed, bitorder="little")[offset - first * 8 : offset - first * 8 + length]
    return torch.from_numpy(bits.view(np.bool_))


def _validity(array: pa.Array) -> torch.Tensor | None:
    if array.null_count == 0:
        return None
    return _bits(array.buffers()[0], array.offset, len(array))


def _fixed_column(array: pa.Array) -> FixedColumn:
    type_ = array.type
    physical = _PHYSICAL.get(type_) or _temporal_physical(type_)
    if physical is None:
        raise Unsupported(f"values of type {type_}")
    values = _view(array.buffers()[1], physical, array.offset, len(array))
    validity = _validity(array)
    if physical in _STORED:
        values = values.astype(_STORED[physical])
    elif physical == "u8":
        values = values.view(np.int64)
        if (values[validity.numpy()] if validity is not None else values).min(initial=0) < 0:
            raise Unsupported("unsigned 64-bit values above 9223372036854775807")
    return FixedColumn(normalise_type(type_), torch.from_numpy(values), validity)


def _temporal_physical(type_: pa.DataType) -> str | None:
    if pa.types.is_time32(type_):
        return "i4"
    if pa.types.is_time64(type_) or pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        return "i8"
    return None


def _decimal_column(array: pa.Array) -> Column:
    type_ = normalise_type(array.type)
    if array.type != type_:
        try:
            array = array.cast(type_)
        except pa.ArrowInvalid as error:
            raise DataError(f"a decimal needs more than 38 digits: {error}") from error
    validity = _validity(array)
    limbs = _view(array.buffers()[1], "i8", array.offset * 2, len(array) * 2)
    low, high = limbs[0::2], limbs[1::2]
    fits = high == (low >> 63)
    if not (fits.all() if validity is None else (fits | ~validity.numpy()).all()):
        wide_low, wide_high = (torch.from_numpy(np.ascontiguousarray(limb)) for limb in (low, high))
        return WideDecimalColumn(type_, wide_high, wide_low, validity)
    return FixedColumn(type_, torch.from_numpy(np.ascontiguousarray(low)), validity)


def _bytes_column(array: pa.Array) -> BytesColumn:
    type_ = normalise_type(array.type)
    if not (pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)):
        array = array.cast(pa.large_string() if type_ == pa.string() else pa.large_binary())
    _, offsets_buffer, data = array.buffers()
    offsets = _view(offsets_buffer, "i8", array.offset, len(array) + 1 if len(array) else 0)
    if len(offsets) == 0:
        offsets = np.zeros(1, np.int64)
    bytes_ = _view(data, "u1", 0, int(offsets[-1]))
    return BytesColumn(type_, torch.from_numpy(offsets), torch.from_numpy(bytes_), _validity(array))


def _dictionary_column(array: pa.DictionaryArray) -> Column:
    values = array.dictionary
    if len(values) == 0 or values.null_count or len(values.unique()) != len(values):
        return _dictionary_with_distinct_values(array)
    converted = column_from_arrow(values)
    if not isinstance(converted, BytesColumn | FixedColumn):
        return column_from_arrow(array.dictionary_decode())
    codes, validity = codes_from_arrow(array.indices, len(values))
    return DictionaryColumn(converted.type, codes, Dictionary(converted), validity)


def codes_from_arrow(indices: pa.Array, size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Codes and validity from a dictionary array's indices; codes under NULLs become 0.

    Raises DataError when a code is not below `size`, the length of the dictionary.
    """
    physical = _PHYSICAL[indices.type]
    codes = _view(indices.buffers()[1], physical, indices.offset, len(indices))
    if physical.startswith("u"):
        codes = codes.astype(_STORED.get(physical, "i8"))
    validity = _validity(indices)
    if validity is not None:
        codes = codes * validity.numpy()
    if len(codes) and not 0 <= codes.min() <= codes.max() < max(size, 1):
        raise DataError("a dictionary code is outside its dictionary")
    return torch.from_numpy(codes), validity


def _dictionary_with_distinct_values(array: pa.DictionaryArray) -> Column:
    """Arrow allows NULLs and duplicates among a dictionary's values; in a column equal codes mean equal values."""
    distinct = array.dictionary.drop_null().unique()
    if len(distinct) == 0:
        return column_from_arrow(pa.nulls(len(array), normalise_type(array.type)))
    mapping = pc.index_in(array.dictionary, distinct)
    return _dictionary_column(pa.DictionaryArray.from_arrays(mapping.take(array.indices), distinct))


def _fixed_array(column: FixedColumn) -> pa.Array:
    type_, validity = column.type, validity_buffer(column.validity)
    values = on_host(column.values).contiguous().numpy()
    if pa.types.is_null(type_):
        return pa.nulls(len(column))
    if pa.types.is_boolean(type_):
        return pa.Array.from_buffers(
            type_, len(column), [validity, pa.py_buffer(np.packbits(values, bitorder="little"))]
        )
    if pa.types.is_decimal(type_):
        limbs = np.empty((len(values), 2), dtype=np.int64)
        limbs[:, 0] = values
        np.right_shift(limbs[:, 0], 63, out=limbs[:, 1])
        return pa.Array.from_buffers(type_, len(column), [validity, pa.py_buffer(limbs)])
    physical = _PHYSICAL.get(type_) or _temporal_physical(type_)
    if physical is None:
        raise Unsupported(f"values of type {type_}")
    return pa.Array.from_buffers(type_, len(column), [validity, pa.py_buffer(values.astype(physical, copy=False))])


def _bytes_array(column: BytesColumn) -> pa.Array:
    """Strings or bytes with offsets of 32 bits, and the column's own bytes on a CPU."""
    offsets, data = on_host(column.offsets).numpy(), column.data
    first, last = int(offsets[0]), int(offsets[-1])
    if last > MAXIMUM_STRING_BYTES:
        if last - first > MAXIMUM_STRING_BYTES:
            raise DataError(f"a batch holds more than {MAXIMUM_STRING_BYTES} bytes of strings")
        offsets, data = offsets - first, data[first:last]
    buffers = [validity_buffer(column.validity), pa.py_buffer(offsets.astype(np.int32)), buffer_of(data)]
    return pa.Array.from_buffers(column.type, len(column), buffers)
