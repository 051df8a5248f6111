"""Arithmetic and conversions as instructions: exact ones only where ranges prove that nothing overflows."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import torch

from pystachio.operators.functions.exact import limits_of
from pystachio.operators.functions.operands import fits, narrowest_dtype
from pystachio.operators.functions.types import scale_of
from pystachio.operators.fusion.division import quotient
from pystachio.operators.fusion.trace import Form, NotTraceable, Symbol, Trace
from pystachio.operators.kernels.arithmetic import INT64, range_of
from pystachio.operators.kernels.instructions import Operation, Register

_INTEGER_ARITHMETIC: Final = {
    "add": Operation.ADD,
    "subtract": Operation.SUBTRACT,
    "multiply": Operation.MULTIPLY,
}
FLOAT_ARITHMETIC: Final = {
    "add": Operation.ADD_FLOATS,
    "subtract": Operation.SUBTRACT_FLOATS,
    "multiply": Operation.MULTIPLY_FLOATS,
    "divide": Operation.DIVIDE_FLOATS,
}


def bits(number: float) -> int:
    return int(torch.tensor(number, dtype=torch.float64).view(torch.int64))


def float_register(trace: Trace, symbol: Symbol) -> Register:
    """Any number as a double, as `functions.operands.unscaled`."""
    match symbol.form:
        case Form.FLOAT:
            return trace.values(symbol)
        case Form.INTEGER if pa.types.is_decimal(symbol.type) or pa.types.is_integer(symbol.type):
            divisor = bits(float(10 ** scale_of(symbol.type)))
            return trace.assembler.compute(Operation.TO_FLOAT, trace.values(symbol), x=divisor)
        case _:
            raise NotTraceable(f"{symbol.type} as a float")


def as_float(trace: Trace, symbol: Symbol) -> Symbol:
    """The same as a FLOAT."""
    return Symbol(pa.float64(), Form.FLOAT, torch.float64, float_register(trace, symbol), symbol.valid)


def arithmetic(trace: Trace, function: str, left: Symbol, right: Symbol, type_: pa.DataType) -> Symbol:
    valid = _both_valid(trace, left, right)
    if type_ == pa.float64():
        operands = [float_register(trace, side) for side in (left, right)]
        return Symbol(
            type_, Form.FLOAT, torch.float64, trace.assembler.compute(FLOAT_ARITHMETIC[function], *operands), valid
        )
    if function == "divide" and pa.types.is_integer(type_):
        return quotient(trace, left, right, type_)
    if function == "divide" or left.form is not Form.INTEGER or right.form is not Form.INTEGER:
        raise NotTraceable(f"{function} of {left.type} and {right.type}")
    if not all(_is_exact(part) for part in (left.type, right.type, type_)):
        raise NotTraceable(f"{function} as {type_}")
    if function == "multiply":
        if scale_of(type_) != scale_of(left.type) + scale_of(right.type):
            raise NotTraceable("a product in another scale")
    else:
        left, right = (_rescaled(trace, side, scale_of(type_)) for side in (left, right))
    assert left.bounds is not None
    assert right.bounds is not None
    bounds = range_of(function, left.bounds, right.bounds)
    if not fits(bounds, limits_of(type_)) or not fits(bounds, INT64):
        raise NotTraceable("a result that may overflow")
    return Symbol(type_, Form.INTEGER, narrowest_dtype(bounds), _exact(trace, function, left, right), valid, bounds)


def _exact(trace: Trace, function: str, left: Symbol, right: Symbol) -> Register:
    """Constants go into the instruction."""
    compute = trace.assembler.compute
    for first, second, swapped in ((left, right, False), (right, left, True)):
        assert second.bounds is not None
        if second.bounds[0] == second.bounds[1] and second.valid is None:
            constant, operand = second.bounds[0], trace.values(first)
            match function:
                case "multiply":
                    return compute(Operation.SCALE, operand, x=constant)
                case "add":
                    return compute(Operation.SCALE, operand, x=1, y=constant)
                case _ if swapped:
                    return compute(Operation.SCALE, operand, x=-1, y=constant)
                case _:
                    return compute(Operation.SCALE, operand, x=1, y=-constant)
    return compute(_INTEGER_ARITHMETIC[function], trace.values(left), trace.values(right))


def _is_exact(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_decimal(type_))


def _rescaled(trace: Trace, symbol: Symbol, scale: int) -> Symbol:
    digits = scale - scale_of(symbol.type)
    if digits == 0:
        return symbol
    assert symbol.bounds is not None
    factor = 10**digits if digits > 0 else 0
    bounds = (symbol.bounds[0] * factor, symbol.bounds[1] * factor)
    if digits < 0 or not fits(bounds, INT64):
        raise NotTraceable("another scale")
    if bounds[0] == bounds[1] and symbol.valid is None:
        scaled = trace.constant(bounds[0])
    else:
        scaled = trace.assembler.compute(Operation.SCALE, trace.values(symbol), x=factor)
    return Symbol(symbol.type, Form.INTEGER, narrowest_dtype(bounds), scaled, symbol.valid, bounds)


def _both_valid(trace: Trace, left: Symbol, right: Symbol) -> Register | None:
    valid = trace.both(trace.valid(left), trace.valid(right))
    return None if valid is True else trace.mask(valid)


def cast(trace: Trace, symbol: Symbol, type_: pa.DataType) -> Symbol:
    if symbol.type == type_:
        return symbol
    if type_ == pa.float64():
        return as_float(trace, symbol)
    if symbol.form is not Form.INTEGER or not (_is_exact(symbol.type) and _is_exact(type_)):
        raise NotTraceable(f"{symbol.type} as {type_}")
    scaled = _rescaled(trace, symbol, scale_of(type_))
    if not fits(scaled.bounds, limits_of(type_)):
        raise NotTraceable("a cast that may fail")
    return Symbol(type_, Form.INTEGER, scaled.dtype, scaled.values, scaled.valid, scaled.bounds)
