"""Thrift's compact protocol, as far as a Parquet footer needs it: bytes to plain values, nothing believed.

Arrow aborts the process on some footers that lie about statistics, so what the engine reads of a footer itself it
reads with this. https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

import struct
from typing import Any

Struct = dict[int, Any]
"""Values by field id: bool, int, float, bytes, list, `Struct`; maps are left out, and None in lists."""

_DEEPEST = 24
_TRUE, _FALSE, _I8, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)


class ThriftError(ValueError):
    """The bytes are not what the protocol allows."""


def read_struct(data: bytes) -> Struct:
    """The struct that begins at the first byte. Takes time and memory in proportion to the bytes, whatever they say."""
    try:
        return _struct(data, 0, _DEEPEST)[0]
    except (IndexError, struct.error) as error:
        raise ThriftError("a value goes beyond the end") from error


def _struct(data: bytes, position: int, depth: int) -> tuple[Struct, int]:
    if depth <= 0:
        raise ThriftError("nested too deep")
    fields: Struct = {}
    field = 0
    while kind := (header := data[position]) & 15:
        position += 1
        if header >> 4:
            field += header >> 4
        else:
            field, position = _integer(data, position)
        # The most frequent kinds inline: this loop is the cost of opening a file.
        if kind in (_I64, _I32):
            number = data[position]
            position += 1
            if number & 128:
                number, position = _varint(data, position - 1)
            fields[field] = (number >> 1) ^ -(number & 1)
        elif kind == _BINARY:
            length, position = data[position], position + 1
            if length & 128:
                length, position = _varint(data, position - 1)
            fields[field], position = _take(data, position, length), position + length
        elif kind == _STRUCT:
            fields[field], position = _struct(data, position, depth - 1)
        elif kind in (_TRUE, _FALSE):
            fields[field] = kind == _TRUE
        elif kind == _MAP:
            position = _skip_map(data, position, depth)
        else:
            fields[field], position = _value(data, position, kind, depth)
    return fields, position + 1


def _value(data: bytes, position: int, kind: int, depth: int) -> tuple[Any, int]:
    """A value as it stands in a struct (but booleans, which have no bytes there), a list or a map."""
    match kind:
        case 8:
            length, position = _varint(data, position)
            return _take(data, position, length), position + length
        case 5 | 6 | 4:
            return _integer(data, position)
        case 12:
            return _struct(data, position, depth - 1)
        case 9 | 10:
            return _list(data, position, depth)
        case 1 | 2:
            return data[position] == _TRUE, position + 1
        case 3:
            return data[position], position + 1
        case 7:
            return struct.unpack_from("<d", data, position)[0], position + 8
        case 11:
            return None, _skip_map(data, position, depth)
        case 13:
            return _take(data, position, 16), position + 16
        case _:
            raise ThriftError(f"unknown type {kind}")


def _list(data: bytes, position: int, depth: int) -> tuple[list[Any], int]:
    if depth <= 0:
        raise ThriftError("nested too deep")
    header = data[position]
    size, kind, position = header >> 4, header & 15, position + 1
    if size == 15:
        size, position = _varint(data, position)
    if size > len(data) - position:
        raise ThriftError("a list has more elements than there are bytes")
    small = data[position : position + size]
    if kind == _I32 and max(small, default=0) < 128:
        return [(number >> 1) ^ -(number & 1) for number in small], position + size
    values = []
    for _ in range(size):
        value, position = _value(data, position, kind, depth - 1)
        values.append(value)
    return values, position


def _skip_map(data: bytes, position: int, depth: int) -> int:
    if depth <= 0:
        raise ThriftError("nested too deep")
    size, position = _varint(data, position)
    if not size:
        return position
    kinds = data[position]
    position += 1
    for _ in range(min(size, len(data))):
        position = _value(data, position, kinds >> 4, depth - 1)[1]
        position = _value(data, position, kinds & 15, depth - 1)[1]
    return position


def _take(data: bytes, position: int, length: int) -> bytes:
    if length > len(data) - position:
        raise ThriftError("a value goes beyond the end")
    return data[position : position + length]


def _integer(data: bytes, position: int) -> tuple[int, int]:
    number, position = _varint(data, position)
    return (number >> 1) ^ -(number & 1), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if shift == 63 and byte > 1:
            raise ThriftError("an integer is too long")
        if byte < 128:
            return number, position
        shift += 7
