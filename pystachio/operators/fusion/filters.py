"""The runtime filters of a scan as instructions."""

from __future__ import annotations

from typing import Final

import torch

from pystachio.operators.column import Bounds
from pystachio.operators.fusion.membership import in_range, is_member
from pystachio.operators.fusion.trace import Form, Input, NotTraceable, Symbol, Trace
from pystachio.operators.kernels.instructions import Operation, Register, kind_of
from pystachio.operators.kernels.key_sets import BitSet, BloomFilter, KeySet
from pystachio.operators.runtime_filter import RuntimeFilter, members_of

_NARROW: Final = (torch.int8, torch.int16, torch.int32)
_LOW: Final = -(2**31)
_HIGH: Final = 2**31 - 1


def passing(trace: Trace, runtime_filter: RuntimeFilter, symbol: Symbol) -> Register | bool:
    """Where a key of the filter may be. NotTraceable for strings that are no codes."""
    if runtime_filter.empty:
        return False
    valid = trace.valid(symbol)
    if symbol.form is Form.INTEGER and runtime_filter.bounds is not None:
        return trace.both(valid, _among(trace, symbol, runtime_filter.bounds, runtime_filter.keys))
    if symbol.form is Form.CODES and runtime_filter.values is not None:
        assert symbol.dictionary is not None
        if len(symbol.dictionary) == 0:
            return False
        return trace.both(valid, is_member(trace, symbol, members_of(symbol.dictionary, runtime_filter.values), 0))
    if runtime_filter.values is not None:
        raise NotTraceable("texts that are no codes")
    return True if valid is None else valid


def _among(trace: Trace, symbol: Symbol, bounds: Bounds, keys: KeySet | None) -> Register | bool:
    compute = trace.assembler.compute
    match keys:
        case None:
            return in_range(trace, symbol, *bounds)
        case BitSet(low=low, span=span, bits=bits):
            number = trace.assembler.table(bits)
            if isinstance(symbol.values, Input) and symbol.dtype in _NARROW and low >= _LOW and low + span <= _HIGH:
                column, kind = trace.input(symbol.values), kind_of(symbol.dtype)
                return compute(Operation.INPUT_BIT, column, number, x=low, y=span, kind=kind, is_mask=True)
            return compute(Operation.BIT, trace.values(symbol), number, x=low, y=span, is_mask=True)
        case BloomFilter(words=words, shift=shift):
            number = trace.assembler.table(words)
            return compute(Operation.BLOOM, trace.values(symbol), number, x=shift, is_mask=True)
