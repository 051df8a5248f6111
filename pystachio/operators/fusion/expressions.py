"""Expressions as instructions. What has none of its own becomes a table (`fusion.tabulated`)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import pyarrow as pa
import torch

from pystachio.operators.expressions import (
    Call,
    Cast,
    Expression,
    FieldReference,
    IfThen,
    InList,
    Literal,
    walk,
)
from pystachio.operators.functions.operands import fits, narrowest_dtype
from pystachio.operators.functions.units import ratio
from pystachio.operators.fusion.arithmetic import FLOAT_ARITHMETIC, arithmetic, bits, cast, float_register
from pystachio.operators.fusion.division import part_of_day, remainder, truncated
from pystachio.operators.fusion.membership import in_range
from pystachio.operators.fusion.tabulated import Fields, field, of_rows, tabulated, truth_of_values
from pystachio.operators.fusion.trace import Form, Input, NotTraceable, Symbol, Trace
from pystachio.operators.kernels.arithmetic import INT64
from pystachio.operators.kernels.compare import MIRRORED
from pystachio.operators.kernels.instructions import Comparison, Operation, Register, kind_of

_MOST_EQUALS: Final = 8

_INVERSE: Final = {
    "equal": "not_equal",
    "not_equal": "equal",
    "lt": "gte",
    "gte": "lt",
    "gt": "lte",
    "lte": "gt",
}
_COMPARISONS: Final = {
    "equal": Comparison.EQUAL,
    "not_equal": Comparison.NOT_EQUAL,
    "lt": Comparison.LESS,
    "lte": Comparison.LESS_EQUAL,
}
_NEVER_NULL: Final = frozenset(
    {*_INVERSE, *FLOAT_ARITHMETIC, "and", "or", "not", "is_null", "is_not_null", "like", "starts_with"}
)
"""Functions whose result is NULL only where an argument is."""


def truth(trace: Trace, predicate: Expression, fields: Fields, *, wanted: bool = True) -> Register | bool:
    """The mask of the rows in which the predicate is true (false, where that is `wanted`): never those with NULL."""
    match predicate:
        case Literal(value=value):
            return value is wanted
        case Call(function="not", arguments=(operand,)):
            return truth(trace, operand, fields, wanted=not wanted)
        case Call(function="and" | "or" as function, arguments=arguments):
            combine = trace.both if (function == "and") is wanted else trace.either
            result = truth(trace, arguments[0], fields, wanted=wanted)
            for argument in arguments[1:]:
                result = combine(result, truth(trace, argument, fields, wanted=wanted))
            return result
        case Call(function="is_null" | "is_not_null" as function, arguments=(FieldReference(index=index),)):
            valid = trace.valid(field(fields, index))
            present: Register | bool = True if valid is None else valid
            return present if (function == "is_not_null") is wanted else trace.inverse(present)
        case Call(function=function, arguments=(left, right)) if function in _INVERSE:
            try:
                return _comparison(trace, function if wanted else _INVERSE[function], left, right, fields)
            except NotTraceable:
                return _tabulated_truth(trace, predicate, fields, wanted)
        case InList(operand=operand, options=options):
            try:
                return _among(trace, operand, options, fields, wanted)
            except NotTraceable:
                return _tabulated_truth(trace, predicate, fields, wanted)
        case FieldReference(index=index):
            return _boolean(trace, field(fields, index), wanted)
        case _:
            return _tabulated_truth(trace, predicate, fields, wanted)


def value(trace: Trace, expression: Expression, fields: Fields) -> Symbol:
    """The expression's value in every row."""
    match expression:
        case FieldReference(index=index):
            return field(fields, index)
        case Literal():
            return _literal(trace, expression)
    for way in (_computed, tabulated):
        try:
            return way(trace, expression, fields)
        except NotTraceable:
            pass
    return of_rows(trace, expression, fields)


def _computed(trace: Trace, expression: Expression, fields: Fields) -> Symbol:
    match expression:
        case Call(function=function, arguments=(left, right), type=type_) if function in FLOAT_ARITHMETIC:
            return arithmetic(trace, function, value(trace, left, fields), value(trace, right, fields), type_)
        case Call(function="modulus", arguments=(left, right), type=type_):
            return remainder(trace, value(trace, left, fields), value(trace, right, fields), type_)
        case Call(function="date_trunc", arguments=(unit, operand), type=type_):
            return truncated(trace, unit, value(trace, operand, fields), type_)
        case Call(function="date_part", arguments=(unit, operand), type=type_):
            return part_of_day(trace, unit, value(trace, operand, fields), type_)
        case Cast(operand=operand, type=type_, null_on_failure=False):
            return cast(trace, value(trace, operand, fields), type_)
        case IfThen(clauses=clauses, otherwise=otherwise, type=type_):
            return _if_then(trace, clauses, otherwise, type_, fields)
        case _ if pa.types.is_boolean(expression.type):
            true = truth(trace, expression, fields)
            false = truth(trace, expression, fields, wanted=False)
            known = trace.either(true, false)
            valid = None if all(_is_never_null(part, fields) for part in walk(expression)) else trace.mask(known)
            return Symbol(expression.type, Form.BOOLEAN, torch.bool, trace.mask(true), valid)
        case _:
            raise NotTraceable(str(type(expression)))


def _is_never_null(part: Expression, fields: Fields) -> bool:
    """Whether this node has a value in every row in which its operands have."""
    match part:
        case FieldReference(index=index):
            return field(fields, index).valid is None
        case Literal(value=constant):
            return constant is not None
        case Call(function=function):
            return function in _NEVER_NULL
        case Cast(null_on_failure=null_on_failure):
            return not null_on_failure
        case _:
            return isinstance(part, InList | IfThen)


def _literal(trace: Trace, literal: Literal) -> Symbol:
    type_, constant = literal.type, literal.value
    if isinstance(constant, bool):
        return Symbol(type_, Form.BOOLEAN, torch.bool, trace.mask(constant))
    if isinstance(constant, int) and not pa.types.is_floating(type_) and fits((constant, constant), INT64):
        bounds = (constant, constant)
        return Symbol(type_, Form.INTEGER, narrowest_dtype(bounds), trace.constant(constant), None, bounds)
    if type_ == pa.float64() and isinstance(constant, float | int):
        return Symbol(type_, Form.FLOAT, torch.float64, trace.constant(bits(float(constant))))
    raise NotTraceable(f"a constant of {type_}")


def _boolean(trace: Trace, symbol: Symbol, wanted: bool) -> Register | bool:
    if symbol.form is not Form.BOOLEAN:
        raise NotTraceable(f"{symbol.type} as a condition")
    mask = trace.values(symbol)
    return trace.both(trace.valid(symbol), mask if wanted else trace.inverse(mask))


def _comparison(trace: Trace, function: str, left: Expression, right: Expression, fields: Fields) -> Register | bool:
    if isinstance(left, Literal):
        left, right, function = right, left, MIRRORED[function]
    first = value(trace, left, fields)
    if isinstance(right, Literal) and right.value is None:
        return False
    if first.form is Form.INTEGER and isinstance(right, Literal) and not pa.types.is_floating(right.type):
        return trace.both(trace.valid(first), _against_constant(trace, function, first, right))
    second = value(trace, right, fields)
    if function in ("gt", "gte"):
        first, second, function = second, first, MIRRORED[function]
    comparison = _COMPARISONS[function]
    valid = trace.both(trace.valid(first), trace.valid(second))
    if Form.FLOAT in (first.form, second.form):
        if torch.float32 in (first.dtype, second.dtype):
            raise NotTraceable("single precision")
        registers = [float_register(trace, side) for side in (first, second)]
        mask = trace.assembler.compute(Operation.COMPARE_FLOATS, *registers, kind=comparison, is_mask=True)
        return trace.both(valid, mask)
    if first.form is not Form.INTEGER or second.form is not Form.INTEGER:
        raise NotTraceable(f"comparing {first.type} and {second.type}")
    steps = ratio(first.type, second.type)
    if steps is None:
        raise NotTraceable(f"comparing {first.type} and {second.type}")
    origins = first.values, second.values
    if steps == 1 and first.dtype == second.dtype and isinstance(origins[0], Input) and isinstance(origins[1], Input):
        columns, kind = (trace.input(origins[0]), trace.input(origins[1])), kind_of(first.dtype)
        mask = trace.assembler.compute(Operation.INPUT_COMPARE, *columns, comparison, kind=kind, is_mask=True)
        return trace.both(valid, mask)
    pair = [trace.values(first), trace.values(second)]
    scaled, factor = (0, steps) if steps >= 1 else (1, 1 / steps)
    if factor != 1:
        bounds = (first, second)[scaled].bounds
        assert bounds is not None
        if not fits((bounds[0] * factor.numerator, bounds[1] * factor.numerator), INT64):
            raise NotTraceable("a scaled value beyond int64")
        pair[scaled] = trace.assembler.compute(Operation.SCALE, pair[scaled], x=factor.numerator)
    return trace.both(valid, trace.assembler.compute(Operation.COMPARE, *pair, kind=comparison, is_mask=True))


def _against_constant(trace: Trace, function: str, symbol: Symbol, literal: Literal) -> Register | bool:
    """Integers against a constant in another unit are integers in a range."""
    steps = ratio(symbol.type, literal.type)
    if steps is None:
        raise NotTraceable(f"comparing {symbol.type} and {literal.type}")
    constant = Fraction(int(literal.value)) / steps
    below = constant.numerator // constant.denominator
    whole = constant.denominator == 1
    match function:
        case "equal" | "not_equal":
            if not whole:
                return function == "not_equal"
            mask = in_range(trace, symbol, below, below)
            return mask if function == "equal" else trace.inverse(mask)
        case "lt":
            return in_range(trace, symbol, None, below - 1 if whole else below)
        case "lte":
            return in_range(trace, symbol, None, below)
        case "gt":
            return in_range(trace, symbol, below + 1, None)
        case _:
            return in_range(trace, symbol, below if whole else below + 1, None)


def _among(
    trace: Trace, operand: Expression, options: Sequence[Expression], fields: Fields, wanted: bool
) -> Register | bool:
    symbol = value(trace, operand, fields)
    if symbol.form is not Form.INTEGER or symbol.bounds is None or len(options) > _MOST_EQUALS:
        raise NotTraceable("a list of other values")
    found: Register | bool = False
    for option in options:
        if not isinstance(option, Literal) or option.value is None or pa.types.is_floating(option.type):
            raise NotTraceable("a list of other than constants")
        found = trace.either(found, _against_constant(trace, "equal", symbol, option))
    return trace.both(trace.valid(symbol), found if wanted else trace.inverse(found))


def _if_then(
    trace: Trace,
    clauses: Sequence[tuple[Expression, Expression]],
    otherwise: Expression,
    type_: pa.DataType,
    fields: Fields,
) -> Symbol:
    """From the last clause to the first. Computing all values everywhere is allowed: none of them can fail."""
    result = value(trace, otherwise, fields)
    symbols = [result, *(value(trace, then, fields) for _, then in clauses)]
    form = result.form
    if form not in (Form.INTEGER, Form.FLOAT) or any(
        symbol.form is not form or symbol.valid is not None or symbol.type != type_ for symbol in symbols
    ):
        raise NotTraceable("a choice among other values")
    chosen = trace.values(result)
    for condition, then in reversed(clauses):
        mask = trace.mask(truth(trace, condition, fields))
        chosen = trace.assembler.compute(Operation.CHOOSE, mask, trace.values(value(trace, then, fields)), chosen)
    if form is Form.FLOAT:
        return Symbol(type_, form, torch.float64, chosen)
    ranges = [symbol.bounds for symbol in symbols if symbol.bounds is not None]
    bounds = min(low for low, _ in ranges), max(high for _, high in ranges)
    return Symbol(type_, form, narrowest_dtype(bounds), chosen, None, bounds)


def _tabulated_truth(trace: Trace, predicate: Expression, fields: Fields, wanted: bool) -> Register | bool:
    try:
        return truth_of_values(trace, predicate, fields, wanted)
    except NotTraceable:
        return _boolean(trace, of_rows(trace, predicate, fields), wanted)
