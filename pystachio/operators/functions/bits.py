"""Bitwise operators on integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from pystachio.errors import DataError
from pystachio.operators.column import FixedColumn
from pystachio.operators.functions.exact import checked
from pystachio.operators.functions.function import Function, Invocation, Kernel, Operand, same_as_first
from pystachio.operators.functions.operands import column, integers
from pystachio.operators.functions.types import common_type


def _integer(operand: Operand, invocation: Invocation) -> torch.Tensor:
    values = integers(column(operand, invocation.rows, invocation.device))
    assert isinstance(values, torch.Tensor)
    return values.to(torch.int64)


def _bitwise(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Kernel:
    def kernel(invocation: Invocation) -> Operand:
        left, right = (_integer(operand, invocation) for operand in invocation.arguments)
        return FixedColumn(invocation.type, function(left, right))

    return kernel


def _shift(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Kernel:
    def kernel(invocation: Invocation) -> Operand:
        values, by = (_integer(operand, invocation) for operand in invocation.arguments)
        outside = (by < 0) | (by > 63)
        if bool((outside if invocation.valid is None else outside & invocation.valid).any()):
            raise DataError("a shift by fewer than 0 or more than 63 bits")
        shifted = function(values, torch.where(outside, 0, by))
        return checked(FixedColumn(invocation.type, shifted), invocation.type, invocation.valid)

    return kernel


def _not(invocation: Invocation) -> Operand:
    return FixedColumn(invocation.type, ~_integer(invocation.arguments[0], invocation))


FUNCTIONS: Final = (
    Function("bitwise_and", common_type, _bitwise(torch.bitwise_and)),
    Function("bitwise_or", common_type, _bitwise(torch.bitwise_or)),
    Function("bitwise_xor", common_type, _bitwise(torch.bitwise_xor)),
    Function("bitwise_not", same_as_first, _not),
    Function("shift_left", same_as_first, _shift(torch.bitwise_left_shift)),
    Function("shift_right", same_as_first, _shift(torch.bitwise_right_shift)),
)
