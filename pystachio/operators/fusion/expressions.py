"""Expressions as instructions. What has none of its own becomes a table over the values of the only field it reads."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import pyarrow as pa
import torch

from pystachio.errors import DataError
from pystachio.operators.batch import Batch
from pystachio.operators.column import Bounds, Column, DictionaryColumn, FixedColumn
from pystachio.operators.distinct import result_on_distinct
from pystachio.operators.evaluate import evaluate
from pystachio.operators.expressions import (
    Call,
    Cast,
    Expression,
    FieldReference,
    IfThen,
    InList,
    Literal,
    fields_of,
    shift_fields,
    walk,
)
from pystachio.operators.functions.operands import fits, narrowest_dtype
from pystachio.operators.functions.units import ratio
from pystachio.operators.fusion.arithmetic import FLOAT_ARITHMETIC, arithmetic, bits, cast, float_register
from pystachio.operators.fusion.division import part_of_day, remainder, truncated
from pystachio.operators.fusion.trace import Form, Input, Lookup, NotTraceable, Symbol, Trace
from pystachio.operators.kernels.arithmetic import INT64
from pystachio.operators.kernels.compare import MIRRORED
from pystachio.operators.kernels.instructions import Comparison, Operation, Register, kind_of

Fields = Sequence[Symbol | None]

_MOST_TABULATED: Final = 1 << 16
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
            valid = trace.valid(_field(fields, index))
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
            return _boolean(trace, _field(fields, index), wanted)
        case _:
            return _tabulated_truth(trace, predicate, fields, wanted)


def value(trace: Trace, expression: Expression, fields: Fields) -> Symbol:
    """The expression's value in every row."""
    match expression:
        case FieldReference(index=index):
            return _field(fields, index)
        case Literal():
            return _literal(trace, expression)
    try:
        return _computed(trace, expression, fields)
    except NotTraceable:
        return _tabulated(trace, expression, fields)


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
            return _field(fields, index).valid is None
        case Literal(value=constant):
            return constant is not None
        case Call(function=function):
            return function in _NEVER_NULL
        case Cast(null_on_failure=null_on_failure):
            return not null_on_failure
        case _:
            return isinstance(part, InList | IfThen)


def _field(fields: Fields, index: int) -> Symbol:
    symbol = fields[index]
    if symbol is None:
        raise NotTraceable("a field that is not there")
    return symbol


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


def in_range(trace: Trace, symbol: Symbol, low: int | None, high: int | None) -> Register | bool:
    """Where an INTEGER or a code is in the inclusive range; arbitrary under NULLs."""
    assert symbol.bounds is not None
    first, last = symbol.bounds
    low = first if low is None or low < first else low
    high = last if high is None or high > last else high
    if low > high:
        return False
    if (low, high) == (first, last):
        return True
    if isinstance(symbol.values, Input):
        # Values under NULLs may be outside the bounds, but not outside the dtype.
        number = trace.input(symbol.values)
        kind = kind_of(symbol.dtype)
        return trace.assembler.compute(Operation.INPUT_RANGE, number, x=low, y=high, kind=kind, is_mask=True)
    return trace.assembler.compute(Operation.RANGE, trace.values(symbol), x=low, y=high, is_mask=True)


def is_member(trace: Trace, symbol: Symbol, table: torch.Tensor, low: int, *, is_fixed: bool = False) -> Register:
    """Where table[value - low] (bool or uint8) is set; rows with a value outside the table are not members."""
    number, span = trace.assembler.table(table, is_fixed=is_fixed), table.shape[0]
    if isinstance(symbol.values, Input):
        kind = kind_of(symbol.dtype)
        column = trace.input(symbol.values)
        return trace.assembler.compute(Operation.INPUT_MEMBER, column, number, x=low, y=span, kind=kind, is_mask=True)
    return trace.assembler.compute(Operation.MEMBER, trace.values(symbol), number, x=low, y=span, is_mask=True)


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


def _only_field(expression: Expression, fields: Fields) -> tuple[int, Symbol]:
    positions = fields_of(expression)
    if len(positions) != 1:
        raise NotTraceable(f"an expression over {len(positions)} fields")
    (position,) = positions
    return position, _field(fields, position)


def _table(trace: Trace, expression: Expression, fields: Fields) -> tuple[Symbol, Column, Literal, int]:
    """The field that the expression reads, its result for each value of that from the last number on, and for NULL."""
    position, symbol = _only_field(expression, fields)
    if symbol.form is Form.CODES:
        assert symbol.dictionary is not None
        known = result_on_distinct(expression, position, symbol.dictionary, trace.rows, evaluate)
        if known is None:
            raise NotTraceable("an expression that must be evaluated row by row")
        return symbol, known.values, known.on_null, 0
    if symbol.form is not Form.INTEGER or symbol.bounds is None:
        raise NotTraceable("an expression over other values")
    low, high = symbol.bounds
    if high - low >= min(_MOST_TABULATED, max(trace.rows, 1)):
        raise NotTraceable("an expression over a wide range of values")
    single = shift_fields(expression, lambda _: 0)
    numbers = (torch.arange(high - low + 1) + low).to(symbol.dtype)  # high + 1 may be none of 64 bits
    values = FixedColumn(symbol.type, numbers, None, symbol.bounds)
    try:
        result = evaluate(single, Batch((values,), len(values), None))
        if symbol.valid is None:
            return symbol, result, Literal(None, expression.type), low
        null = FixedColumn(symbol.type, values.values[:1], torch.zeros(1, dtype=torch.bool))
        on_null = evaluate(single, Batch((null,), 1, None))
    except DataError as error:
        raise NotTraceable(str(error)) from None
    if on_null.validity is None or bool(on_null.validity[0]):
        raise NotTraceable("a value for NULL")
    return symbol, result, Literal(None, expression.type), low


def _tabulated_truth(trace: Trace, predicate: Expression, fields: Fields, wanted: bool) -> Register | bool:
    symbol, result, on_null, low = _table(trace, predicate, fields)
    if not isinstance(result, FixedColumn) or result.values.dtype != torch.bool:
        raise NotTraceable("a condition that is not boolean")
    table = result.values if wanted else ~result.values
    if result.validity is not None:
        table = table & result.validity
    if bool(table.all()):
        found: Register | bool = True
    elif not bool(table.any()):
        found = False
    else:
        found = _by_table(trace, symbol, table, low)
    valid = trace.valid(symbol)
    found = trace.both(valid, found)
    if valid is not None and on_null.value is wanted:
        found = trace.either(found, trace.inverse(valid))
    return found


def _by_table(trace: Trace, symbol: Symbol, table: torch.Tensor, low: int) -> Register | bool:
    """One range of values is compared, others are looked up."""
    true = torch.nonzero(table).squeeze(1)
    first, last = int(true[0]), int(true[-1])
    if last - first + 1 == true.shape[0]:
        return in_range(trace, symbol, low + first, low + last)
    return is_member(trace, symbol, table.contiguous(), low, is_fixed=True)


def _tabulated(trace: Trace, expression: Expression, fields: Fields) -> Symbol:
    symbol, result, on_null, low = _table(trace, expression, fields)
    if symbol.valid is not None and on_null.value is not None:
        raise NotTraceable("a value for NULL")
    index = trace.values(symbol)
    if symbol.valid is not None:
        # What lies under a NULL may be outside the table.
        index = trace.assembler.compute(Operation.OFFSET, index, x=low, y=len(result) - 1)
        low = 0
    valid = trace.valid(symbol)
    if result.validity is not None:
        there = trace.load(Lookup(result.validity, index, -low, is_fixed=True), Form.BOOLEAN, torch.bool)
        valid = trace.mask(trace.both(valid, there))
    bounds: Bounds | None = None
    match result:
        case FixedColumn(type=type_, values=values) if values.dtype == torch.bool:
            return Symbol(type_, Form.BOOLEAN, torch.bool, Lookup(values, index, -low, is_fixed=True), valid)
        case FixedColumn(type=type_, values=values) if values.dtype.is_floating_point:
            return Symbol(type_, Form.FLOAT, values.dtype, Lookup(values, index, -low, is_fixed=True), valid)
        case FixedColumn(type=type_, values=values):
            bounds = int(values.min()), int(values.max())
            return Symbol(type_, Form.INTEGER, values.dtype, Lookup(values, index, -low, is_fixed=True), valid, bounds)
        case DictionaryColumn(type=type_, codes=codes, dictionary=dictionary):
            bounds = 0, max(0, len(dictionary) - 1)
            return Symbol(
                type_, Form.CODES, codes.dtype, Lookup(codes, index, -low, is_fixed=True), valid, bounds, dictionary
            )
        case _:
            raise NotTraceable(f"a table of {result.type}")
