"""Calls of scalar functions: canonical name, argument types checked and aligned, result type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from pystachio.errors import InvalidRequest, Unsupported
from pystachio.operators.expressions import Call, Cast, Expression, IfThen, Literal
from pystachio.operators.functions.registry import lookup
from pystachio.operators.functions.types import common_type
from pystachio.planner.rewrites.constants import constant
from pystachio.planner.substrait.functions import scalar_name

COMPARISONS: Final = frozenset(
    {"equal", "not_equal", "lt", "lte", "gt", "gte", "is_distinct_from", "is_not_distinct_from"}
)
_TRUTH_TESTS: Final = frozenset({"is_true", "is_not_true", "is_false", "is_not_false", "not"})
_CHOICES: Final = frozenset({"coalesce", "greatest", "least", "nullif"})
_ARITHMETIC: Final = frozenset({"add", "subtract", "multiply", "divide", "modulus"})

# Arguments that functions take, least and most, where it is not one.
_ARITY: Final = {
    **dict.fromkeys((*COMPARISONS, *_ARITHMETIC), (2, 2)),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right", "gcd"), (2, 2)),
    **dict.fromkeys(("power", "atan2", "nullif", "date_trunc", "left", "right", "repeat", "strpos"), (2, 2)),
    **dict.fromkeys(("starts_with", "ends_with", "contains"), (2, 2)),
    **dict.fromkeys(("like", "ilike", "substring", "regexp_like", "lpad", "rpad"), (2, 3)),
    **dict.fromkeys(("trim", "ltrim", "rtrim", "round", "trunc", "log"), (1, 2)),
    **dict.fromkeys(("coalesce", "greatest", "least", "concat", "concat_operator"), (1, 255)),
    **dict.fromkeys(("replace", "translate", "split_part", "make_date"), (3, 3)),
    "concat_ws": (2, 255),
    "regexp_replace": (3, 4),
    "date_part": (2, 2),
}

_NANOSECONDS_PER: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "day": 86_400 * 10**9}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TEXT_FIRST: Final = _words(
    "like ilike starts_with ends_with contains regexp_like regexp_replace substring left right "
    "char_length octet_length bit_length upper lower initcap reverse trim ltrim rtrim lpad rpad repeat "
    "replace translate split_part strpos ascii"
)

# What further arguments a function of strings takes: kernels get them as plain values.
_INTEGER_AT: Final = {
    **dict.fromkeys(("left", "right", "lpad", "rpad", "repeat"), frozenset({1})),
    "substring": frozenset({1, 2}),
    "split_part": frozenset({2}),
}
_OF_TIME: Final = {
    **dict.fromkeys(("date_part", "date_trunc"), ("a string", "a date or time")),
    "last_day": ("a date or time",),
    "make_date": ("an integer",) * 3,
}


def call(
    name: str, arguments: tuple[Expression, ...], declared: pa.DataType | None, *, is_datafusion: bool
) -> Expression:
    """A call by the name that a plan declares. `declared` is the result type the plan states, None when it does not.

    Unsupported for a function that the registry lacks, InvalidRequest for arguments that the function cannot take.
    """
    canonical, negated = scalar_name(name)
    if canonical == "between":
        return _between(arguments)
    if canonical == "logb":
        # The base comes last in Substrait, first in the registry.
        canonical, arguments = "log", arguments[::-1]
    elif canonical == "concat" and not is_datafusion:
        canonical = "concat_operator"
    elif canonical == "regex_imatch":
        canonical, arguments = "regexp_like", (*arguments, Literal("i", pa.string()))
    elif canonical == "if" or canonical == "iff":
        return _if(arguments)
    function = lookup(canonical)
    arguments = _trimmed(canonical, arguments)
    _check_arity(name, canonical, arguments)
    _check_parameters(name, canonical, arguments)
    arguments = _aligned(name, canonical, arguments)
    derived = _derived(name, function.result_type, arguments)
    if declared is not None and _family(declared) != _family(derived):
        raise InvalidRequest(f"the function {name} of these arguments is {derived}, not {declared}")
    if declared is None or (canonical in _CHOICES and pa.types.is_floating(derived)) or pa.types.is_duration(derived):
        # A float among decimals stays one, whatever the plan says (`substrait.read_plan`), as a duration does.
        declared = derived
    result: Expression = Call(canonical, arguments, declared)
    return Call("not", (result,), pa.bool_()) if negated else result


def comparable(function: str, left: Expression, right: Expression) -> Expression:
    """A comparison with its operands brought to one type where their kinds differ."""
    first, second = typed_alike((left, right))
    return Call(function, (first, second), pa.bool_())


def typed_alike(expressions: Sequence[Expression]) -> list[Expression]:
    """The expressions, cast to a common type unless they are of one kind; InvalidRequest when there is none."""
    expressions = _spans_alike(expressions)
    kinds = {_kind(expression.type) for expression in expressions if not _is_null(expression)}
    if len(kinds) <= 1:
        known = next((expression.type for expression in expressions if not _is_null(expression)), expressions[0].type)
        alike = [Literal(None, known) if _is_null(expression) else expression for expression in expressions]
        return alike if _same_width(alike) else _cast_all(alike)
    return _cast_all(expressions)


def cast(expression: Expression, type_: pa.DataType) -> Expression:
    """The expression as `type_`."""
    if expression.type == type_:
        return expression
    return constant(Cast(expression, type_))


def _cast_all(expressions: Sequence[Expression]) -> list[Expression]:
    types = [expression.type for expression in expressions if not _is_null(expression)]
    kinds = {_kind(type_) for type_ in types}
    if any(map(pa.types.is_duration, types)) and any(map(pa.types.is_interval, types)):
        raise Unsupported("a duration beside an interval of months", hint="say it in days, hours, minutes or seconds")
    if not (kinds <= {"integer", "decimal", "float"} or kinds <= {"date", "timestamp"}):
        raise InvalidRequest(f"values of types that do not go together: {', '.join(sorted({str(t) for t in types}))}")
    target = common_type(types)
    return [cast(expression, target) for expression in expressions]


def _same_width(expressions: Sequence[Expression]) -> bool:
    """Values of one kind may differ in width under a comparison, but not where one of them is the result."""
    return len({expression.type for expression in expressions}) == 1


def _spans_alike(expressions: Sequence[Expression]) -> Sequence[Expression]:
    """Intervals beside durations as durations, unless there are months in them: of these nobody says how long they
    are."""
    unit = next((e.type for e in expressions if pa.types.is_duration(e.type)), None)
    spans = [_nanoseconds(expression) for expression in expressions if pa.types.is_interval(expression.type)]
    if unit is None or not spans or None in spans:
        return expressions
    steps = _NANOSECONDS_PER[unit.unit]
    if any(span % steps for span in spans if span is not None):
        unit, steps = pa.duration("ns"), 1
    return [
        Literal((_nanoseconds(expression) or 0) // steps, unit)
        if pa.types.is_interval(expression.type)
        else cast(expression, unit)
        for expression in expressions
    ]


def _nanoseconds(interval: Expression) -> int | None:
    """How long a constant interval without months is."""
    match interval:
        case Literal(value=(0, days, nanoseconds)):
            return int(days * _NANOSECONDS_PER["day"] + nanoseconds)
        case _:
            return None


def _is_null(expression: Expression) -> bool:
    return isinstance(expression, Literal) and expression.value is None


def _kind(type_: pa.DataType) -> str:
    if pa.types.is_integer(type_):
        return "integer"
    if pa.types.is_decimal(type_):
        return "decimal"
    if pa.types.is_floating(type_):
        return "float"
    if pa.types.is_date(type_):
        return "date"
    return "timestamp" if pa.types.is_timestamp(type_) else str(type_)


def _between(arguments: tuple[Expression, ...]) -> Expression:
    if len(arguments) != 3:
        raise InvalidRequest(f"between takes 3 arguments, not {len(arguments)}")
    value, low, high = arguments
    return Call("and", (comparable("gte", value, low), comparable("lte", value, high)), pa.bool_())


def _if(arguments: tuple[Expression, ...]) -> Expression:
    if len(arguments) != 3 or not pa.types.is_boolean(arguments[0].type):
        raise InvalidRequest("if takes a condition and two values")
    result, otherwise = typed_alike(arguments[1:])
    return IfThen(((arguments[0], result),), otherwise, result.type)


def _trimmed(canonical: str, arguments: tuple[Expression, ...]) -> tuple[Expression, ...]:
    """Without what stands for an absent argument: DataFusion's LIKE has a NULL escape character."""
    if canonical in ("like", "ilike") and len(arguments) == 3 and _is_null(arguments[2]):
        return arguments[:2]
    if canonical in ("date_part", "date_trunc") and len(arguments) >= 2 and isinstance(arguments[0], Literal):
        unit = arguments[0]
        return (Literal(str(unit.value).lower(), pa.string()), *arguments[1:])
    return arguments


def _check_arity(name: str, canonical: str, arguments: tuple[Expression, ...]) -> None:
    least, most = _ARITY.get(canonical, (1, 1))
    if not least <= len(arguments) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise InvalidRequest(f"the function {name} takes {wanted} arguments, not {len(arguments)}")


def _check_parameters(name: str, canonical: str, arguments: tuple[Expression, ...]) -> None:
    """What functions of strings and of dates take; their kernels rely on it."""
    wanted = _OF_TIME.get(canonical, ())
    if canonical in _TEXT_FIRST:
        integers = _INTEGER_AT.get(canonical, frozenset())
        wanted = tuple("an integer" if at in integers else "a string" for at in range(len(arguments)))
    for argument, kind in zip(arguments, wanted):
        if not (_is_null(argument) or _IS_OF_KIND[kind](argument.type)):
            raise InvalidRequest(f"the function {name} takes {kind}, not {argument.type}")


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


_IS_OF_KIND: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "a string": _is_text,
    "an integer": pa.types.is_integer,
    "a date or time": pa.types.is_temporal,
}


def _aligned(name: str, canonical: str, arguments: tuple[Expression, ...]) -> tuple[Expression, ...]:
    types = [argument.type for argument in arguments]
    if canonical in COMPARISONS:
        if len({_kind(type_) for type_ in types}) > 1:
            return tuple(typed_alike(arguments))
    elif canonical in _CHOICES:
        return tuple(typed_alike(arguments))
    elif canonical in _TRUTH_TESTS and not pa.types.is_boolean(types[0]):
        raise InvalidRequest(f"the function {name} takes a boolean, not {types[0]}")
    elif canonical in _ARITHMETIC:
        unfit = next(
            (t for t in types if pa.types.is_boolean(t) or pa.types.is_string(t) or pa.types.is_binary(t)), None
        )
        if unfit is not None:
            raise InvalidRequest(f"arithmetic ({name}) on {unfit}")
    return arguments


def _derived(name: str, rule: object, arguments: tuple[Expression, ...]) -> pa.DataType:
    assert callable(rule)
    derived = rule([argument.type for argument in arguments])
    assert isinstance(derived, pa.DataType)
    return derived


def _family(type_: pa.DataType) -> str:
    """Result types of one family are told apart by the plan, not by us: how wide a number is, say."""
    if pa.types.is_integer(type_) or pa.types.is_decimal(type_) or pa.types.is_floating(type_):
        return "number"
    if pa.types.is_date(type_) or pa.types.is_timestamp(type_):
        return "point in time"
    if pa.types.is_duration(type_) or pa.types.is_interval(type_):
        return "span of time"
    return str(type_)
