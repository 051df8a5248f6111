"""AND, OR, NOT and tests of truth, in SQL's three-valued logic (Kleene's)."""

from __future__ import annotations

from functools import reduce
from typing import Final

import pyarrow as pa
import torch

from pystachio.operators.column import FixedColumn
from pystachio.operators.expressions import Literal
from pystachio.operators.functions.function import Function, Invocation, Kernel, NullRule, Operand, always
from pystachio.operators.functions.operands import boolean_column, booleans
from pystachio.operators.kernels.selection import plain

Mask = torch.Tensor | bool


def both(left: Mask, right: Mask) -> Mask:
    """left & right, where a bool stands for all rows."""
    if isinstance(left, bool):
        return right if left else False
    if isinstance(right, bool):
        return left if right else False
    return left & right


def either(left: Mask, right: Mask) -> Mask:
    """left | right, where a bool stands for all rows."""
    if isinstance(left, bool):
        return True if left else right
    if isinstance(right, bool):
        return True if right else left
    return left | right


def truth(operand: Operand) -> Mask:
    """Where a boolean operand is true: neither false nor NULL."""
    if isinstance(operand, Literal):
        return operand.value is True
    fixed = plain(operand)
    assert isinstance(fixed, FixedColumn)
    values = fixed.values if fixed.values.dtype == torch.bool else fixed.values != 0
    return values if fixed.validity is None else values & fixed.validity


def from_masks(true: Mask, false: Mask) -> Operand:
    """A boolean operand that is NULL where neither mask is set."""
    if isinstance(true, bool) and isinstance(false, bool):
        return Literal(True if true else False if false else None, pa.bool_())
    if true is True or false is True:
        return Literal(true is True, pa.bool_())
    if isinstance(true, bool):
        assert isinstance(false, torch.Tensor)
        return FixedColumn(pa.bool_(), torch.zeros_like(false), false)
    if isinstance(false, bool):
        return FixedColumn(pa.bool_(), true, true)
    return boolean_column(true, false)


def conjoin(operands: tuple[Operand, ...]) -> Operand:
    """AND: false where any operand is false, else NULL where any is NULL."""
    if _without_nulls(operands):
        true = reduce(both, map(truth, operands))
        return Literal(true, pa.bool_()) if isinstance(true, bool) else boolean_column(true)
    masks = [booleans(operand) for operand in operands]
    return from_masks(reduce(both, (true for true, _ in masks)), reduce(either, (false for _, false in masks)))


def disjoin(operands: tuple[Operand, ...]) -> Operand:
    """OR: true where any operand is true, else NULL where any is NULL."""
    if _without_nulls(operands):
        true = reduce(either, map(truth, operands))
        return Literal(true, pa.bool_()) if isinstance(true, bool) else boolean_column(true)
    masks = [booleans(operand) for operand in operands]
    return from_masks(reduce(either, (true for true, _ in masks)), reduce(both, (false for _, false in masks)))


def _without_nulls(operands: tuple[Operand, ...]) -> bool:
    return all(
        operand.value is not None if isinstance(operand, Literal) else operand.validity is None for operand in operands
    )


def _not(invocation: Invocation) -> Operand:
    (operand,) = invocation.arguments
    true, false = booleans(operand)
    return from_masks(false, true)


def _null_test(when_null: bool) -> Kernel:
    def kernel(invocation: Invocation) -> Operand:
        (operand,) = invocation.arguments
        if isinstance(operand, Literal):
            return Literal((operand.value is None) == when_null, pa.bool_())
        if operand.validity is None:
            return Literal(not when_null, pa.bool_())
        return boolean_column(~operand.validity if when_null else operand.validity)

    return kernel


def _truth_test(value: bool, negated: bool) -> Kernel:
    def kernel(invocation: Invocation) -> Operand:
        true, false = booleans(invocation.arguments[0])
        mask = true if value else false
        if isinstance(mask, bool):
            return Literal(mask != negated, pa.bool_())
        return boolean_column(~mask if negated else mask)

    return kernel


FUNCTIONS: Final = (
    Function("and", always(pa.bool_()), lambda invocation: conjoin(invocation.arguments), NullRule.OWN),
    Function("or", always(pa.bool_()), lambda invocation: disjoin(invocation.arguments), NullRule.OWN),
    Function("not", always(pa.bool_()), _not, NullRule.OWN),
    Function("is_null", always(pa.bool_()), _null_test(True), NullRule.OWN),
    Function("is_not_null", always(pa.bool_()), _null_test(False), NullRule.OWN),
    Function("is_true", always(pa.bool_()), _truth_test(True, False), NullRule.OWN),
    Function("is_not_true", always(pa.bool_()), _truth_test(True, True), NullRule.OWN),
    Function("is_false", always(pa.bool_()), _truth_test(False, False), NullRule.OWN),
    Function("is_not_false", always(pa.bool_()), _truth_test(False, True), NullRule.OWN),
)
