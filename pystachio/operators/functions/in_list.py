"""IN over a list: constants as one set, other options as comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pyarrow as pa
import pyarrow.compute as pc
import torch

from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.column import FixedColumn, WideDecimalColumn
from pystachio.operators.expressions import Literal
from pystachio.operators.functions.boolean import Mask, both, either, from_masks
from pystachio.operators.functions.comparison import compare, text_array
from pystachio.operators.functions.function import Operand
from pystachio.operators.functions.operands import is_text, validity_of
from pystachio.operators.functions.units import step_of
from pystachio.operators.kernels.bounds import cheap_bounds
from pystachio.operators.kernels.membership import is_member
from pystachio.operators.kernels.selection import plain


def in_list(operand: Operand, options: Sequence[Operand]) -> Operand:
    """operand IN (options): true where equal to one, else NULL where the operand or an option is NULL, else false."""
    if isinstance(operand, Literal) and operand.value is None:
        return Literal(None if options else False, pa.bool_())
    constants = [option for option in options if isinstance(option, Literal) and option.value is not None]
    true: Mask = False
    null: Mask = any(isinstance(option, Literal) and option.value is None for option in options)
    present = validity_of((operand,))
    if constants:
        true = _among(operand, constants)
    for option in options:
        if not isinstance(option, Literal):
            there = validity_of((option,))
            equal = compare("equal", operand, option)
            true = either(true, equal if there is None else both(equal, there))
            null = either(null, False if there is None else ~there)
    if present is not None:
        true, null = both(true, present), either(null, ~present if options else False)
    return from_masks(true, both(_not(true), _not(null)))


def _not(mask: Mask) -> Mask:
    return not mask if isinstance(mask, bool) else ~mask


def _among(operand: Operand, constants: list[Literal]) -> Mask:
    if isinstance(operand, Literal):
        return any(_equal_literals(operand, constant) for constant in constants)
    if is_text(operand.type):
        large = pa.large_string() if pa.types.is_string(operand.type) else pa.large_binary()
        found = column_from_arrow(pc.is_in(text_array(operand), pa.array([c.value for c in constants], large)))
        assert isinstance(found, FixedColumn)
        return found.values
    values = plain(operand)
    step = step_of(operand.type)
    steps = [step_of(constant.type) for constant in constants]
    exact = isinstance(values, FixedColumn) and values.values.dtype not in (torch.bool, torch.float32, torch.float64)
    if isinstance(values, WideDecimalColumn) or not exact or step is None or None in steps:
        true: Mask = False
        for constant in constants:
            true = either(true, compare("equal", operand, constant))
        return true
    assert isinstance(values, FixedColumn)
    wanted = [
        Fraction(int(constant.value)) * unit / step for constant, unit in zip(constants, steps, strict=True) if unit
    ]
    return is_member(
        values.values, [value.numerator for value in wanted if value.denominator == 1], cheap_bounds(values)
    )


def _equal_literals(left: Literal, right: Literal) -> bool:
    first, second = step_of(left.type), step_of(right.type)
    if first is not None and second is not None:
        return Fraction(int(left.value)) * first == Fraction(int(right.value)) * second
    return bool(left.value == right.value)
