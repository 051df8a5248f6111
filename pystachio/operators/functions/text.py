"""How functions of strings run: on Arrow arrays, once for each combination of the other arguments' values.

`pyarrow.compute` takes patterns, positions and lengths as constants. Where they are columns, rows with equal parameters
are gathered, computed together and put back in order; nearly always the parameters are literals and this is one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from pystachio.errors import DataError
from pystachio.operators.arrow import column_from_arrow, literal_at
from pystachio.operators.column import BytesColumn, Column, FixedColumn
from pystachio.operators.expressions import Literal
from pystachio.operators.functions.function import Invocation, Kernel, Operand
from pystachio.operators.functions.operands import column
from pystachio.operators.kernels.selection import all_null, plain, take_or_null
from pystachio.operators.kernels.strings import arrow_view, to_codes
from pystachio.operators.placement import column_on, on_device, on_host

TextFunction = Callable[..., pa.Array]
"""From an Arrow array (large_string) and plain Python values to an Arrow array of equal length."""


def on_text(function: TextFunction) -> Kernel:
    """A kernel that calls `function` with the first argument as an array and the others as values."""

    def kernel(invocation: Invocation) -> Operand:
        subject, *parameters = invocation.arguments
        array = text_of(column(subject, invocation.rows, invocation.device))
        try:
            if all(isinstance(parameter, Literal) for parameter in parameters):
                values = [parameter.value for parameter in parameters if isinstance(parameter, Literal)]
                return from_array(function(array, *values), invocation)
            return _by_parameters(function, array, parameters, invocation)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise DataError(f"a function of strings failed: {error}") from error

    return kernel


def or_else(quick: Callable[..., Column | None], function: TextFunction) -> Kernel:
    """`quick` on strings of the host with constant parameters, where it answers; else `function` by Arrow."""
    general = on_text(function)

    def kernel(invocation: Invocation) -> Operand:
        subject, *parameters = invocation.arguments
        constants = [parameter.value for parameter in parameters if isinstance(parameter, Literal)]
        if invocation.device.type == "cpu" and len(constants) == len(parameters) and not isinstance(subject, Literal):
            texts = plain(subject)
            found = quick(texts, *constants) if isinstance(texts, BytesColumn) else None
            if found is not None:
                return found
        return general(invocation)

    return kernel


def text_of(values: Column) -> pa.Array:
    """Strings (or bytes) as an Arrow array on the host."""
    fixed = plain(values)
    if not isinstance(fixed, BytesColumn | FixedColumn):
        raise AssertionError("a decimal where the plan must have cast to a string")
    return arrow_view(fixed)


def from_array(array: pa.Array, invocation: Invocation) -> Column:
    """The Arrow result on the invocation's device, integers as narrow as they were."""
    result = column_on(column_from_arrow(array), invocation.device)
    if isinstance(result, FixedColumn):
        return FixedColumn(invocation.type, result.values, result.validity)
    assert isinstance(result, BytesColumn)
    return BytesColumn(invocation.type, result.offsets, result.data, result.validity)


def _by_parameters(
    function: TextFunction, array: pa.Array, parameters: list[Operand], invocation: Invocation
) -> Operand:
    rows = np.arange(invocation.rows) if invocation.valid is None else np.flatnonzero(on_host(invocation.valid).numpy())
    combined = np.zeros(invocation.rows, np.int64)
    for parameter in parameters:
        if not isinstance(parameter, Literal):
            codes = on_host(to_codes(_plain_fixed(parameter)).codes).numpy()
            combined = combined * (int(codes.max(initial=0)) + 1) + codes
    groups, first, membership = np.unique(combined[rows], return_index=True, return_inverse=True)
    if len(groups) == 0:
        return all_null(invocation.type, invocation.rows, invocation.device)
    order = np.argsort(membership, kind="stable")
    limits = np.searchsorted(membership[order], np.arange(len(groups) + 1))
    results = []
    for group in range(len(groups)):
        members = rows[order[limits[group] : limits[group + 1]]]
        values = [_value(parameter, int(rows[first[group]])) for parameter in parameters]
        results.append(function(array.take(pa.array(members)), *values))
    where = np.full(invocation.rows, -1, np.int64)
    where[rows[order]] = np.arange(len(rows))
    together = from_array(pa.concat_arrays(results), invocation)
    return take_or_null(together, on_device(torch.from_numpy(where), invocation.device))


def _plain_fixed(operand: Column) -> BytesColumn | FixedColumn:
    values = plain(operand)
    assert isinstance(values, BytesColumn | FixedColumn)
    return values


def _value(parameter: Operand, row: int) -> Any:
    return parameter.value if isinstance(parameter, Literal) else literal_at(parameter, row).value
