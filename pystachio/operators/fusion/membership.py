"""Whether values are in a range or in a set, as instructions."""

from __future__ import annotations

import torch

from pystachio.operators.fusion.trace import Input, Symbol, Trace
from pystachio.operators.kernels.instructions import Operation, Register, kind_of


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
