"""The runtime filters of a scan as instructions."""

from __future__ import annotations

from pystachio.operators.fusion.expressions import in_range, is_member
from pystachio.operators.fusion.trace import Form, Symbol, Trace
from pystachio.operators.kernels.program import Register
from pystachio.operators.runtime_filter import RuntimeFilter, members_of


def passing(trace: Trace, runtime_filter: RuntimeFilter, symbol: Symbol) -> Register | bool:
    """Where a key of the filter may be."""
    if runtime_filter.empty:
        return False
    valid = trace.valid(symbol)
    bounds, table = runtime_filter.bounds, runtime_filter.table
    if symbol.form is Form.INTEGER and bounds is not None:
        within = in_range(trace, symbol, *bounds) if table is None else is_member(trace, symbol, table, bounds[0])
        return trace.both(valid, within)
    if symbol.form is Form.CODES and runtime_filter.values is not None:
        assert symbol.dictionary is not None
        if len(symbol.dictionary) == 0:
            return False
        return trace.both(valid, is_member(trace, symbol, members_of(symbol.dictionary, runtime_filter.values), 0))
    return True if valid is None else valid
