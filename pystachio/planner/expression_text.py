"""Expressions as SQL-like text with column names, for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import assert_never

import pyarrow as pa

from pystachio.operators.expressions import (
    AggregateCall,
    Call,
    Cast,
    Expression,
    FieldReference,
    IfThen,
    InList,
    Literal,
    ScalarSubquery,
)

_INFIX = {
    "or": ("or", 1),
    "and": ("and", 2),
    "equal": ("=", 4),
    "not_equal": ("<>", 4),
    "lt": ("<", 4),
    "lte": ("<=", 4),
    "gt": (">", 4),
    "gte": (">=", 4),
    "like": ("like", 4),
    "ilike": ("ilike", 4),
    "is_distinct_from": ("is distinct from", 4),
    "is_not_distinct_from": ("is not distinct from", 4),
    "add": ("+", 5),
    "subtract": ("-", 5),
    "multiply": ("*", 6),
    "divide": ("/", 6),
    "modulus": ("%", 6),
}
"""How a function is written between its operands, and how strongly it binds."""

_SQL_TYPES = {
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.bool_(): "boolean",
    pa.string(): "varchar",
}
_LONGEST_NAME = 60
_NOT_ASSOCIATIVE = frozenset({"-", "/", "%"})
_PREFIX_BINDING = 3
_TEST_BINDING = 4
_ATOM = 9
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def expression_text(expression: Expression, names: Sequence[str]) -> str:
    """`names` are those of the input's fields."""
    text, _ = _written(expression, names)
    return text


def operand_text(expression: Expression, names: Sequence[str]) -> str:
    """The same, to be put between ANDs."""
    return _bound(expression, names, _INFIX["and"][1])


def call_text(call: AggregateCall, names: Sequence[str]) -> str:
    """An aggregate call: count(*), sum(distinct x)."""
    arguments = ", ".join(names[argument] for argument in call.arguments) or "*"
    condition = "" if call.filter is None else f" filter (where {names[call.filter]})"
    return shortened(f"{call.function}({'distinct ' if call.distinct else ''}{arguments}){condition}")


def shortened(text: str) -> str:
    """Text that still serves as a name."""
    return text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 3] + "..."


def literal_text(value: object, type_: pa.DataType) -> str:
    """A constant in the encoding of `expressions.Literal` as SQL writes it."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, int):
        return str(value)
    try:
        return _integer_text(value, type_)
    except (OverflowError, ValueError):  # beyond the calendar of datetime
        return str(value)


def type_text(type_: pa.DataType) -> str:
    """A type by its SQL name where it has a common one."""
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision}, {type_.scale})"
    return _SQL_TYPES.get(type_, str(type_))


def _integer_text(value: int, type_: pa.DataType) -> str:
    if pa.types.is_decimal(type_):
        return str(Decimal(value).scaleb(-type_.scale))
    if pa.types.is_date32(type_):
        return f"date '{date(1970, 1, 1) + timedelta(days=value)}'"
    if pa.types.is_timestamp(type_) and type_.unit in _MICROSECONDS:
        moment = _EPOCH + timedelta(microseconds=value * _MICROSECONDS[type_.unit])
        return f"timestamp '{moment.replace(tzinfo=None)}'"
    if pa.types.is_time(type_) and type_.unit in _MICROSECONDS:
        moment = datetime.min + timedelta(microseconds=value * _MICROSECONDS[type_.unit])
        clock: time = moment.time()
        return f"time '{clock}'"
    return str(value)


def _written(expression: Expression, names: Sequence[str]) -> tuple[str, int]:
    """The text and how strongly its outermost operator binds."""
    match expression:
        case FieldReference(index=index):
            return (names[index] if index < len(names) else f"#{index}"), _ATOM
        case Literal(value=value, type=type_):
            return literal_text(value, type_), _ATOM
        case ScalarSubquery(index=index):
            return f"(scalar {index})", _ATOM
        case Cast(operand=operand, type=type_, null_on_failure=lenient):
            return (
                f"{'try_cast' if lenient else 'cast'}({expression_text(operand, names)} as {type_text(type_)})",
                _ATOM,
            )
        case IfThen(clauses=clauses, otherwise=otherwise):
            parts = [f"when {expression_text(c, names)} then {expression_text(v, names)}" for c, v in clauses]
            return f"case {' '.join(parts)} else {expression_text(otherwise, names)} end", _ATOM
        case InList(operand=operand, options=options):
            listed = ", ".join(expression_text(option, names) for option in options)
            return f"{_bound(operand, names, _TEST_BINDING + 1)} in ({listed})", _TEST_BINDING
        case Call():
            return _call(expression, names)
        case _:
            assert_never(expression)


def _call(call: Call, names: Sequence[str]) -> tuple[str, int]:
    match call.function, call.arguments:
        case function, (_, _, *_) as arguments if function in _INFIX:
            symbol, binding = _INFIX[function]
            first, *rest = arguments
            lead = binding + (binding == _TEST_BINDING)
            tail = max(lead, binding + (symbol in _NOT_ASSOCIATIVE))
            others = (_bound(operand, names, tail) for operand in rest)
            return f" {symbol} ".join((_bound(first, names, lead), *others)), binding
        case "not", (Call(function="like" | "ilike" as like, arguments=(subject, pattern)),):
            return f"{_bound(subject, names, 5)} not {like} {_bound(pattern, names, 5)}", _TEST_BINDING
        case "not", (operand,):
            return f"not {_bound(operand, names, _PREFIX_BINDING)}", _PREFIX_BINDING
        case "negate", (operand,):
            return f"-{_bound(operand, names, _ATOM)}", _ATOM - 1
        case "is_null", (operand,):
            return f"{_bound(operand, names, _TEST_BINDING + 1)} is null", _TEST_BINDING
        case "is_not_null", (operand,):
            return f"{_bound(operand, names, _TEST_BINDING + 1)} is not null", _TEST_BINDING
        case function, arguments:
            return f"{function}({', '.join(expression_text(a, names) for a in arguments)})", _ATOM


def _bound(expression: Expression, names: Sequence[str], binding: int) -> str:
    """In parentheses when it binds less strongly than its surroundings."""
    text, own = _written(expression, names)
    return text if own >= binding else f"({text})"
