"""IN over a list: constants as one set, other options as comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pyarrow as pa
import pyarrow.compute as pc
import torch

from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.column import FixedColumn
from pystachio.operators.expressions import Literal
from pystachio.operators.functions.boolean import Mask, both, either, from_masks
from pystachio.operators.functions.comparison import compare, text_array
from pystachio.operators.functions.function import Operand
from pystachio.operators.functions.operands import INTEGER_DTYPES, boolean_column, is_text, validity_of
from pystachio.operators.functions.units import ratio
from pystachio.operators.kernels.bounds import cheap_bounds
from pystachio.operators.kernels.membership import is_member
from pystachio.operators.kernels.selection import device_of, plain
from pystachio.operators.placement import on_device


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
    if null is False and isinstance(true, torch.Tensor):
        return boolean_column(true)
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
        return on_device(found.values, device_of(operand))
    values = plain(operand)
    steps = {constant.type: ratio(operand.type, constant.type) for constant in constants}
    if not isinstance(values, FixedColumn) or values.values.dtype not in INTEGER_DTYPES or None in steps.values():
        true: Mask = False
        for constant in constants:
            true = either(true, compare("equal", operand, constant))
        return true
    wanted = [_in_steps(int(constant.value), steps[constant.type]) for constant in constants]
    whole = [value.numerator for value in wanted if value.denominator == 1]
    return is_member(values.values, whole, cheap_bounds(values))


def _in_steps(value: int, steps: Fraction | None) -> int | Fraction:
    return value if steps is None or steps == 1 else value / steps


def _equal_literals(left: Literal, right: Literal) -> bool:
    steps = ratio(left.type, right.type)
    return bool(left.value == right.value if steps is None else int(left.value) * steps == int(right.value))
