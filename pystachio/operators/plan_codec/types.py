"""Arrow types as plain numbers and text, by a closed list: what a type on the wire may be is what is written here.

A type is a list that begins with its name. Nested types occur only in the schemas of tables, as columns that no scan
can read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from pystachio.errors import DataError, Unsupported, shown

Written = list[Any]

_MOST_NESTED: Final = 32
_MOST_FIELDS: Final = 1 << 16
_MOST_ZONE: Final = 64

_PLAIN: Final[Mapping[str, pa.DataType]] = {
    str(type_): type_
    for type_ in (
        *(pa.null(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.date64(), pa.month_day_nano_interval()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
        *(pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view()),
    )
}
_NAMES: Final = {type_: name for name, type_ in _PLAIN.items()}
_DECIMALS: Final[Mapping[str, tuple[Callable[[int, int], pa.DataType], int]]] = {
    "decimal32": (pa.decimal32, 9),
    "decimal64": (pa.decimal64, 18),
    "decimal128": (pa.decimal128, 38),
    "decimal256": (pa.decimal256, 76),
}
_LISTS: Final[Mapping[str, Callable[[pa.Field], pa.DataType]]] = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}
_UNITS: Final = ("s", "ms", "us", "ns")


def storage_of(type_: pa.DataType) -> pa.DataType:
    """The type without extension types: what the bytes are, the same on every node whatever is registered there."""
    if isinstance(type_, pa.BaseExtensionType):
        return storage_of(type_.storage_type)
    if pa.types.is_struct(type_):
        return pa.struct([_stored(type_.field(place)) for place in range(type_.num_fields)])
    if pa.types.is_map(type_):
        return pa.map_(_stored(type_.key_field), _stored(type_.item_field), type_.keys_sorted)
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_stored(type_.value_field), type_.list_size)
    if _list_name(type_) is not None:
        return _LISTS[_list_name(type_) or ""](_stored(type_.value_field))
    return type_


def write_type(type_: pa.DataType) -> Written:
    """The type in msgpack's terms. Unsupported for one that is not on the list."""
    name = _NAMES.get(type_)
    if name is not None:
        return [name]
    if pa.types.is_timestamp(type_):
        return ["timestamp", type_.unit, type_.tz]
    if pa.types.is_decimal(type_):
        return [f"decimal{type_.bit_width}", type_.precision, type_.scale]
    if pa.types.is_fixed_size_binary(type_):
        return ["fixed_size_binary", type_.byte_width]
    if pa.types.is_struct(type_):
        return ["struct", *(_write_field(type_.field(place)) for place in range(type_.num_fields))]
    if pa.types.is_map(type_):
        return ["map", _write_field(type_.key_field), _write_field(type_.item_field), type_.keys_sorted]
    if pa.types.is_fixed_size_list(type_):
        return ["fixed_size_list", _write_field(type_.value_field), type_.list_size]
    if pa.types.is_dictionary(type_):
        return ["dictionary", write_type(type_.index_type), write_type(type_.value_type), type_.ordered]
    listed = _list_name(type_)
    if listed is not None:
        return [listed, _write_field(type_.value_field)]
    raise Unsupported(f"sending a column of the type {type_} to another node")


def read_type(written: object, depth: int = 0) -> pa.DataType:
    """The type that `write_type` wrote; DataError for anything else."""
    match written:
        case [str(name)] if name in _PLAIN:
            return _PLAIN[name]
        case ["timestamp", str(unit), None] if unit in _UNITS:
            return pa.timestamp(unit)
        case ["timestamp", str(unit), str(zone)] if unit in _UNITS and zone and len(zone) <= _MOST_ZONE:
            return pa.timestamp(unit, zone)
        case [str(name), int(precision), int(scale)] if name in _DECIMALS and not isinstance(scale, bool):
            make, most = _DECIMALS[name]
            if 1 <= precision <= most and -most <= scale <= most:
                return make(precision, scale)
        case ["fixed_size_binary", int(width)] if 0 <= width < 1 << 31 and not isinstance(width, bool):
            return pa.binary(width)
        case [str(), *_] if depth < _MOST_NESTED:
            try:
                nested = _read_nested(written, depth + 1)
            except (pa.ArrowException, ValueError, TypeError):  # parts that Arrow does not put together
                nested = None
            if nested is not None:
                return nested
    raise DataError(f"an encoded plan has a type that nobody knows: {shown(written)}")


def _read_nested(written: Sequence[object], depth: int) -> pa.DataType | None:
    match written:
        case ["struct", *fields] if len(fields) <= _MOST_FIELDS:
            return pa.struct([_read_field(field, depth) for field in fields])
        case ["map", key, item, bool(is_sorted)]:
            field = _read_field(key, depth)
            return None if field.nullable else pa.map_(field, _read_field(item, depth), is_sorted)
        case ["fixed_size_list", value, int(size)] if 0 <= size < 1 << 31 and not isinstance(size, bool):
            return pa.list_(_read_field(value, depth), size)
        case ["dictionary", index, value, bool(is_ordered)]:
            codes = read_type(index, depth)
            return pa.dictionary(codes, read_type(value, depth), is_ordered) if pa.types.is_integer(codes) else None
        case [str(name), value] if name in _LISTS:
            return _LISTS[name](_read_field(value, depth))
        case _:
            return None


def _stored(field: pa.Field) -> pa.Field:
    return pa.field(field.name, storage_of(field.type), field.nullable)


def _write_field(field: pa.Field) -> Written:
    return [field.name, write_type(field.type), field.nullable]


def _read_field(written: object, depth: int) -> pa.Field:
    match written:
        case [str(name), type_, bool(is_nullable)]:
            return pa.field(name, read_type(type_, depth), is_nullable)
    raise DataError(f"an encoded plan has a type that nobody knows: {shown(written)}")


def _list_name(type_: pa.DataType) -> str | None:
    if pa.types.is_list(type_):
        return "list"
    if pa.types.is_large_list(type_):
        return "large_list"
    if pa.types.is_list_view(type_):
        return "list_view"
    return "large_list_view" if pa.types.is_large_list_view(type_) else None
