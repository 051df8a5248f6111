"""Whether a condition can hold on a row whose fields of one side are all NULL; if not, an outer join is inner."""

from __future__ import annotations

from collections.abc import Callable

from pystachio.operators.expressions import Call, Cast, Expression, FieldReference, InList, Literal
from pystachio.planner.nullability import STRICT_FUNCTIONS

OfSide = Callable[[int], bool]


def rejects_nulls(predicate: Expression, of_side: OfSide) -> bool:
    """Whether the predicate is never true when every field for which `of_side` holds is NULL. False when in doubt."""
    match predicate:
        case Literal(value=value):
            return value is not True
        case Call(function="and", arguments=arguments):
            return any(rejects_nulls(argument, of_side) for argument in arguments)
        case Call(function="or", arguments=arguments):
            return all(rejects_nulls(argument, of_side) for argument in arguments)
        case Call(function="is_not_null", arguments=(operand,)):
            return _is_null(operand, of_side)
        case Call(function="is_true", arguments=(operand,)):
            return rejects_nulls(operand, of_side)
        case Call(function="is_false", arguments=(operand,)):
            return _is_null(operand, of_side)
        case _:
            return _is_null(predicate, of_side)


def _is_null(expression: Expression, of_side: OfSide) -> bool:
    """Whether the expression is NULL for sure on such a row."""
    match expression:
        case FieldReference(index=index):
            return of_side(index)
        case Literal(value=value):
            return value is None
        case Call(function="and" | "or", arguments=arguments):
            return all(_is_null(argument, of_side) for argument in arguments)
        case Call(function=function, arguments=arguments):
            return function in STRICT_FUNCTIONS and any(_is_null(argument, of_side) for argument in arguments)
        case Cast(operand=operand) | InList(operand=operand):
            return _is_null(operand, of_side)
        case _:
            return False
