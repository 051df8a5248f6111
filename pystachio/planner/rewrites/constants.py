"""Expressions over constants alone as the constants that they are, by the evaluation that columns have.

What fails (an overflow, a division by zero, a text that is no date) has no constant: it stays, and fails if and when
a row needs it, as it would over columns.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache, lru_cache
from typing import Final

import pyarrow as pa

from pystachio.errors import PystachioError
from pystachio.operators.evaluate import value_of
from pystachio.operators.expressions import Call, Cast, Expression, Literal, children
from pystachio.operators.functions.function import NullRule
from pystachio.operators.functions.registry import FUNCTIONS
from pystachio.operators.functions.units import is_number, is_point_in_time, step_of
from pystachio.planner.nullability import STRICT_FUNCTIONS

# Functions of texts multiply them: longer ones are left to plans, whose memory is bounded.
_MOST_CHARACTERS: Final = 1024
_LENGTHENING: Final = frozenset({"repeat", "lpad", "rpad"})
# One plan may be rewritten several times; what fails is not tried each time.
_KEPT: Final = 4096

_STRICT: Final = STRICT_FUNCTIONS - {"and", "or"}


def constant(expression: Expression) -> Expression:
    """The value of an expression whose operands are constants; any other expression as it is, and what fails."""
    operands = children(expression)
    literals = [operand for operand in operands if isinstance(operand, Literal)]
    if not literals:
        return expression
    has_null = any(literal.value is None for literal in literals)
    if has_null and isinstance(expression, Call) and _is_strict(expression.function):
        return Literal(None, expression.type)
    if len(literals) < len(operands):
        return expression
    exact = represented(operands[0], expression.type) if isinstance(expression, Cast) else _span(expression)
    return exact or _value(expression) or expression


def represented(constant: Expression, type_: pa.DataType) -> Literal | None:
    """The very value of a constant as one of another type; None where that has none, or that takes an evaluation."""
    if not isinstance(constant, Literal):
        return None
    if constant.value is None or constant.type == type_:
        return Literal(constant.value, type_)
    found = floor(constant, type_)
    return found[0] if found is not None and found[1] else None


def floor(constant: Literal, type_: pa.DataType) -> tuple[Literal, bool] | None:
    """The largest value of another type that is no greater than a constant (not NULL), and whether it is equal; None
    where that takes an evaluation, or is beyond the type's range."""
    if pa.types.is_integer(constant.type) and pa.types.is_integer(type_):
        value, rest = constant.value, 0
    else:
        source, target = _unit(constant.type), _unit(type_)
        if source is None or target is None or source[0] != target[0]:
            return None
        steps = source[1] / target[1]
        value, rest = divmod(constant.value * steps.numerator, steps.denominator)
    return (Literal(value, type_), rest == 0) if _holds(type_, value) else None


@lru_cache(256)
def is_widening(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether each value of `source` has an equal one of `target`: numbers without an exponent, and points in time (of
    those some are beyond a finer unit's range, and fail where they are cast)."""
    narrow, wide = _unit(source), _unit(target)
    if narrow is None or wide is None or narrow[0] != wide[0]:
        return False
    steps = narrow[1] / wide[1]
    if steps.denominator != 1:
        return False
    return narrow[0] != "number" or all(_holds(target, limit * steps.numerator) for limit in _limits(source))


@cache
def _is_strict(name: str) -> bool:
    """Whether the function is NULL wherever an argument is."""
    function = FUNCTIONS.get(name)
    return name in _STRICT or (function is not None and function.nulls is NullRule.STRICT)


def _span(expression: Expression) -> Literal | None:
    """The sum or difference of two intervals, of which there are no columns."""
    match expression:
        case Call("add" | "subtract" as function, (Literal(value=first), Literal(value=second))) if (
            pa.types.is_interval(expression.type)
        ):
            sign = 1 if function == "add" else -1
            return Literal(tuple(a + sign * b for a, b in zip(first, second, strict=True)), expression.type)
        case _:
            return None


@lru_cache(_KEPT)
def _value(expression: Expression) -> Literal | None:
    if isinstance(expression, Call) and _may_grow(expression):
        return None
    try:
        found = value_of(expression)
    except PystachioError:
        return None
    # One NaN for all: it does not equal another, and expressions with it are to equal each other.
    is_nan = isinstance(found.value, float) and math.isnan(found.value)
    return represented(Literal(math.nan if is_nan else found.value, found.type), expression.type)


def _may_grow(call: Call) -> bool:
    if call.function in _LENGTHENING:
        return True
    texts = [operand.value for operand in call.arguments if isinstance(operand, Literal)]
    return sum(len(text) for text in texts if isinstance(text, str | bytes)) > _MOST_CHARACTERS


def _unit(type_: pa.DataType) -> tuple[str, Fraction] | None:
    """What a value counts, and in which steps. None for what is not counted, nor whole, and for moments in a zone."""
    steps = step_of(type_)
    if steps is None or pa.types.is_boolean(type_) or pa.types.is_date64(type_):
        return None
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return None
    if is_number(type_):
        return "number", steps
    return ("time", steps) if is_point_in_time(type_) else None


def _limits(type_: pa.DataType) -> tuple[int, int]:
    if pa.types.is_decimal(type_):
        return 1 - 10**type_.precision, 10**type_.precision - 1
    if pa.types.is_unsigned_integer(type_):
        return 0, (1 << type_.bit_width) - 1
    return -(1 << (type_.bit_width - 1)), (1 << (type_.bit_width - 1)) - 1


def _holds(type_: pa.DataType, value: int) -> bool:
    low, high = _limits(type_)
    return low <= value <= high
