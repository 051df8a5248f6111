"""Protobuf bytes to messages, also where they nest deeper than protobuf's default of 100.

A left-deep chain of conditions or a join of thirty tables passes that default. The limit exists because the parser
recurses on the C stack, so the depth is measured first, by a scan that does not recurse.
"""

from __future__ import annotations

from typing import Final

from google.protobuf import descriptor
from google.protobuf.message import DecodeError
from substrait import plan_pb2

from pystachio.errors import InvalidRequest, Unsupported

# About 400 bytes of C stack each; threads may have as little as 512 KiB.
MOST_MESSAGES_DEEP: Final = 1000

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def parse(data: bytes) -> plan_pb2.Plan:
    """The plan; InvalidRequest when the bytes are none, Unsupported when it nests too deep."""
    plan = plan_pb2.Plan()
    try:
        plan.ParseFromString(data)
        return plan
    except DecodeError:
        depth = message_depth(data, plan_pb2.Plan.DESCRIPTOR)
    if depth > MOST_MESSAGES_DEEP:
        raise Unsupported(f"a Substrait plan whose messages nest {depth} deep; at most {MOST_MESSAGES_DEEP} are read")
    return _parse_deep(data)


def _parse_deep(data: bytes) -> plan_pb2.Plan:
    from google._upb import _message

    plan = plan_pb2.Plan()
    # The switch is the process's: a parse on another thread in between is only more lenient.
    _message.SetAllowOversizeProtos(True)
    try:
        plan.ParseFromString(data)
    except DecodeError:
        raise InvalidRequest("the bytes are no Substrait plan") from None
    finally:
        _message.SetAllowOversizeProtos(False)
    return plan


def message_depth(data: bytes, message: descriptor.Descriptor) -> int:
    """How deep messages nest in `data`; InvalidRequest when it does not scan."""
    deepest = 0
    waiting = [(0, len(data), message, 1)]
    children: dict[str, dict[int, descriptor.Descriptor]] = {}
    while waiting:
        at, end, kind, depth = waiting.pop()
        deepest = max(deepest, depth)
        if kind.full_name not in children:
            children[kind.full_name] = {f.number: f.message_type for f in kind.fields if f.message_type is not None}
        inner = children[kind.full_name]
        while at < end:
            tag, at = _varint(data, at, end)
            number, wire = tag >> 3, tag & 7
            if wire == _VARINT:
                _, at = _varint(data, at, end)
            elif wire in (_FIXED64, _FIXED32):
                at += 8 if wire == _FIXED64 else 4
            elif wire == _LENGTH:
                length, at = _varint(data, at, end)
                if number in inner:
                    waiting.append((at, at + length, inner[number], depth + 1))
                at += length
            else:
                raise InvalidRequest("the bytes are no Substrait plan")
            if at > end:
                raise InvalidRequest("the bytes are no Substrait plan")
    return deepest


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise InvalidRequest("the bytes are no Substrait plan")
