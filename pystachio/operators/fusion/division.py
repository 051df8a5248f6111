"""Division by constants as instructions: quotients and remainders of integers, units of time."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

import pyarrow as pa

from pystachio.operators.column import Bounds
from pystachio.operators.expressions import Expression, Literal
from pystachio.operators.functions.dates import unit_name
from pystachio.operators.functions.exact import limits_of
from pystachio.operators.functions.operands import fits, narrowest_dtype
from pystachio.operators.functions.units import SECONDS_PER_DAY, ticks
from pystachio.operators.fusion.trace import Form, NotTraceable, Symbol, Trace
from pystachio.operators.kernels.arithmetic import INT64
from pystachio.operators.kernels.instructions import Operation, Register

_UNIT_SECONDS: Final = {
    "day": Fraction(SECONDS_PER_DAY),
    "hour": Fraction(3600),
    "minute": Fraction(60),
    "second": Fraction(1),
    "millisecond": Fraction(1, 1_000),
    "microsecond": Fraction(1, 1_000_000),
}
_PARTS: Final = {"hour": 24, "minute": 60, "second": 60}
"""How many there are in what they are counted from."""

_EXACT_IN_DOUBLES: Final = (-(2**52), 2**52)


def quotient(trace: Trace, dividend: Symbol, divisor: Symbol, type_: pa.DataType) -> Symbol:
    """Of integers, towards zero."""
    bounds, by = _dividend(dividend, type_), _constant(divisor)
    register = _divided(trace, dividend, abs(by), towards_zero=True)
    if by < 0:
        register = trace.assembler.compute(Operation.SCALE, register, x=-1)
    ends = sorted(_towards_zero(end, by) for end in bounds)
    result = ends[0], ends[1]
    if not fits(result, limits_of(type_)):
        raise NotTraceable("a quotient that may overflow")
    return Symbol(type_, Form.INTEGER, narrowest_dtype(result), register, dividend.valid, result)


def remainder(trace: Trace, dividend: Symbol, divisor: Symbol, type_: pa.DataType) -> Symbol:
    """Of integers, with the dividend's sign."""
    bounds, by = _dividend(dividend, type_), abs(_constant(divisor))
    whole = _divided(trace, dividend, by, towards_zero=True)
    register = trace.assembler.compute(Operation.APPEND, whole, trace.values(dividend), x=-by)
    result = max(min(bounds[0], 0), 1 - by), min(max(bounds[1], 0), by - 1)
    return Symbol(type_, Form.INTEGER, narrowest_dtype(result), register, dividend.valid, result)


def truncated(trace: Trace, unit: Expression, time: Symbol, type_: pa.DataType) -> Symbol:
    """`date_trunc` to a unit of fixed length."""
    step = _steps(_name(unit), time, _UNIT_SECONDS)
    if type_ != time.type:
        raise NotTraceable(f"{time.type} truncated to {type_}")
    assert time.bounds is not None
    low, high = (end // step * step for end in time.bounds)
    if not fits((low, high), INT64):
        raise NotTraceable("a time before the first one")
    whole = _divided(trace, time, step, towards_zero=False)
    register = trace.assembler.compute(Operation.SCALE, whole, x=step)
    return Symbol(type_, Form.INTEGER, narrowest_dtype((low, high)), register, time.valid, (low, high), step=step)


def part_of_day(trace: Trace, unit: Expression, time: Symbol, type_: pa.DataType) -> Symbol:
    """`date_part` of hours, minutes and whole seconds."""
    name = _name(unit)
    step = _steps(name, time, _PARTS)
    if not pa.types.is_integer(type_):
        raise NotTraceable(f"a part of a day as {type_}")
    count = _PARTS[name]
    assert time.bounds is not None
    low, high = (end // step for end in time.bounds)
    whole = _divided(trace, time, step, towards_zero=False)
    passed = _divided(trace, Symbol(type_, Form.INTEGER, time.dtype, whole, None, (low, high)), count)
    register = trace.assembler.compute(Operation.APPEND, passed, whole, x=-count)
    bounds = (0, count - 1)
    return Symbol(type_, Form.INTEGER, narrowest_dtype(bounds), register, time.valid, bounds)


def divided(trace: Trace, register: Register, by: int, bounds: Bounds) -> Register:
    """`register` divided by a positive constant, rounded down; `bounds` hold for what counts of it."""
    return _by(trace, register, by, bounds, towards_zero=False)


def _divided(trace: Trace, symbol: Symbol, by: int, *, towards_zero: bool = False) -> Register:
    assert symbol.bounds is not None
    return _by(trace, trace.values(symbol), by, symbol.bounds, towards_zero=towards_zero)


def _by(trace: Trace, register: Register, by: int, bounds: Bounds, *, towards_zero: bool) -> Register:
    if by == 1:
        return register
    kind = int(towards_zero) + 2 * (fits(bounds, _EXACT_IN_DOUBLES) and by <= _EXACT_IN_DOUBLES[1])
    return trace.assembler.compute(Operation.DIVIDE, register, x=by, kind=kind)


def _towards_zero(dividend: int, by: int) -> int:
    whole = abs(dividend) // abs(by)
    return whole if (dividend < 0) == (by < 0) else -whole


def _dividend(symbol: Symbol, type_: pa.DataType) -> Bounds:
    if symbol.form is not Form.INTEGER or not (pa.types.is_integer(symbol.type) and pa.types.is_integer(type_)):
        raise NotTraceable(f"{symbol.type} divided")
    assert symbol.bounds is not None
    return symbol.bounds


def _constant(symbol: Symbol) -> int:
    if not pa.types.is_integer(symbol.type) or symbol.bounds is None or symbol.valid is not None:
        raise NotTraceable("division by what is not constant")
    low, high = symbol.bounds
    if low != high or low == 0 or low == INT64[0]:
        raise NotTraceable("division by what is not constant, or by zero")
    return low


def _name(unit: Expression) -> str:
    if not isinstance(unit, Literal):
        raise NotTraceable("a unit of time that is not constant")
    return unit_name(unit)


def _steps(unit: str, time: Symbol, known: Mapping[str, object]) -> int:
    """Stored steps of a timestamp in one `unit`, if that is among the `known` ones."""
    if unit not in known:
        raise NotTraceable("another unit of time")
    if time.form is not Form.INTEGER or not pa.types.is_timestamp(time.type):
        raise NotTraceable(f"a unit of {time.type}")
    steps = _UNIT_SECONDS[unit] * ticks(time.type)
    if steps < 1:
        raise NotTraceable("a unit below one step")
    return int(steps)
