"""Expressions of a plan that came as bytes: fields and functions that exist, constants that their types can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from pystachio.errors import shown
from pystachio.operators.batch import Schema
from pystachio.operators.expressions import (
    Call,
    Expression,
    FieldReference,
    IfThen,
    Literal,
    ScalarSubquery,
    children,
)
from pystachio.operators.functions.registry import FUNCTIONS

_SCALED: Final = range(-(2**127), 2**127)
_SIGNED: Final = {width: range(-(1 << (width - 1)), 1 << (width - 1)) for width in (8, 16, 32, 64)}
_UNSIGNED: Final = {width: range(1 << width) for width in (8, 16, 32, 64)}
_INTERVAL_PARTS: Final = 3


class Inconsistent(Exception):
    """What is wrong, in words."""


def require(condition: bool, what: str) -> None:
    """Inconsistent unless it holds."""
    if not condition:
        raise Inconsistent(what)


def require_positions(positions: Sequence[int], width: int, what: str) -> None:
    """Each is one of `width` places."""
    if positions and (min(positions) < 0 or max(positions) >= width):
        raise Inconsistent(f"{what}: {shown(positions)} among {width}")


def require_types(found: Sequence[pa.DataType], expected: Sequence[pa.DataType], what: str) -> None:
    """The same types in the same order."""
    if list(found) != list(expected):
        raise Inconsistent(f"{what}: types {shown(list(map(str, found)))} instead of {shown(list(map(str, expected)))}")


def require_predicate(predicate: Expression, schema: Schema, scalars: Sequence[pa.DataType]) -> None:
    """An expression that is true, false or NULL."""
    is_null = isinstance(predicate, Literal) and predicate.value is None
    require(is_null or pa.types.is_boolean(predicate.type), f"a predicate of the type {predicate.type}")
    require_expression(predicate, schema, scalars)


def require_expression(expression: Expression, schema: Schema, scalars: Sequence[pa.DataType]) -> None:
    """`schema` is what its fields are of, `scalars` the types of the scalar subqueries that may be asked for."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        match node:
            case FieldReference(index=index, type=type_):
                if not 0 <= index < len(schema):
                    raise Inconsistent(f"a field that is not there: {index} of {len(schema)}")
                if schema[index].type != type_:
                    raise Inconsistent(f"the field {index} is {schema[index].type}, not {type_}")
            case Literal(value=value, type=type_):
                require_constant(value, type_)
            case ScalarSubquery(index=index, type=type_):
                if not 0 <= index < len(scalars):
                    raise Inconsistent(f"a scalar subquery that is not there or not yet: {index} of {len(scalars)}")
                require_types([type_], [scalars[index]], f"the scalar subquery {index}")
            case Call(function=function, arguments=arguments):
                if function not in FUNCTIONS:
                    raise Inconsistent(f"a function that nobody knows: {shown(function)}")
                waiting.extend(arguments)
            case IfThen(clauses=clauses):
                require(bool(clauses), "a CASE without clauses")
                waiting.extend(children(node))
            case _:
                waiting.extend(children(node))


def require_constant(value: object, type_: pa.DataType) -> None:
    """In the encoding of `expressions.Literal`."""
    if value is not None and not _holds(type_, value):
        raise Inconsistent(f"a constant that its type {type_} cannot hold: {shown(value)}")


def _holds(type_: pa.DataType, value: object) -> bool:
    if pa.types.is_boolean(type_):
        return type(value) is bool
    if pa.types.is_floating(type_):
        return type(value) is float
    if pa.types.is_string(type_):
        return type(value) is str
    if pa.types.is_binary(type_):
        return type(value) is bytes
    if pa.types.is_interval(type_):
        return type(value) is tuple and len(value) == _INTERVAL_PARTS and all(part in _SIGNED[64] for part in value)
    if type(value) is not int:
        return False
    if pa.types.is_decimal(type_):
        return value in _SCALED
    if pa.types.is_unsigned_integer(type_):
        return value in _UNSIGNED[type_.bit_width]
    return (pa.types.is_integer(type_) or pa.types.is_temporal(type_)) and value in _SIGNED[type_.bit_width]
