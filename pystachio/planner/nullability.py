"""Which expressions can be NULL: a field that is declared non-NULL must never hold one."""

from __future__ import annotations

from typing import Final

from pystachio.operators.batch import Schema
from pystachio.operators.expressions import (
    Call,
    Cast,
    Expression,
    FieldReference,
    IfThen,
    InList,
    Literal,
    ScalarSubquery,
)

_NEVER: Final = frozenset(
    {
        "is_null",
        "is_not_null",
        "is_true",
        "is_not_true",
        "is_false",
        "is_not_false",
        "is_distinct_from",
        "is_not_distinct_from",
        "concat",
    }
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Functions that are NULL only where an argument is. A function left out here may be NULL anywhere.
STRICT_FUNCTIONS: Final = _words(
    "equal not_equal lt lte gt gte and or not add subtract multiply divide modulus negate abs round floor "
    "ceil like ilike starts_with ends_with contains substring char_length upper lower trim ltrim rtrim "
    "replace strpos concat_operator date_part date_trunc bitwise_and bitwise_or bitwise_xor bitwise_not "
    "shift_left shift_right"
)


def is_nullable(expression: Expression, schema: Schema) -> bool:
    """Whether the expression over rows of `schema` may be NULL; True when in doubt."""
    match expression:
        case FieldReference(index=index):
            return schema[index].nullable
        case Literal(value=value):
            return value is None
        case Call(function=function, arguments=arguments):
            if function in _NEVER:
                return False
            if function == "coalesce":
                return all(is_nullable(argument, schema) for argument in arguments)
            return function not in STRICT_FUNCTIONS or any(is_nullable(argument, schema) for argument in arguments)
        case Cast(operand=operand, null_on_failure=null_on_failure):
            return null_on_failure or is_nullable(operand, schema)
        case IfThen(clauses=clauses, otherwise=otherwise):
            return is_nullable(otherwise, schema) or any(is_nullable(value, schema) for _, value in clauses)
        case InList(operand=operand, options=options):
            return is_nullable(operand, schema) or any(is_nullable(option, schema) for option in options)
        case ScalarSubquery():
            return True
