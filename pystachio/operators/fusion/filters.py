"""The runtime filters of a scan as instructions."""

from __future__ import annotations

from pystachio.operators.column import Bounds
from pystachio.operators.fusion.expressions import in_range, is_member
from pystachio.operators.fusion.trace import Form, Symbol, Trace
from pystachio.operators.kernels.instructions import Operation, Register
from pystachio.operators.kernels.key_sets import BitSet, BloomFilter, KeySet
from pystachio.operators.runtime_filter import RuntimeFilter, members_of


def passing(trace: Trace, runtime_filter: RuntimeFilter, symbol: Symbol) -> Register | bool:
    """Where a key of the filter may be."""
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
    return True if valid is None else valid


def _among(trace: Trace, symbol: Symbol, bounds: Bounds, keys: KeySet | None) -> Register | bool:
    compute = trace.assembler.compute
    match keys:
        case None:
            return in_range(trace, symbol, *bounds)
        case BitSet(low=low, span=span, bits=bits):
            number = trace.assembler.table(bits)
            return compute(Operation.BIT, trace.values(symbol), number, x=low, y=span, is_mask=True)
        case BloomFilter(words=words, shift=shift):
            number = trace.assembler.table(words)
            return compute(Operation.BLOOM, trace.values(symbol), number, x=shift, is_mask=True)
