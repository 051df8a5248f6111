"""The table of functions: lookup by canonical name, and type rules for plans that leave result types out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from pystachio.errors import NotFound, Unsupported
from pystachio.operators.functions import (
    arithmetic,
    bits,
    boolean,
    comparison,
    conditional,
    dates,
    mathematics,
    strings,
)
from pystachio.operators.functions.function import Function
from pystachio.operators.functions.types import decimal_type

_MODULES: Final = (arithmetic, bits, boolean, comparison, conditional, dates, mathematics, strings)

FUNCTIONS: Final[Mapping[str, Function]] = MappingProxyType(
    {function.name: function for module in _MODULES for function in module.FUNCTIONS}
)

_NEAR: Final = 0.7
"""Names are short: with less, three letters of six would be near."""


def lookup(name: str) -> Function:
    """The function of that canonical name; Unsupported, with the nearest name as a hint, when there is none."""
    found = FUNCTIONS.get(name)
    if found is None:
        near = get_close_matches(name, FUNCTIONS, n=1, cutoff=_NEAR)
        raise Unsupported(f"the function {name}", hint=f"did you mean {near[0]}?" if near else None)
    return found


def result_type(name: str, types: Sequence[pa.DataType]) -> pa.DataType:
    """The type of `name` on arguments of `types`."""
    return lookup(name).result_type(types)


def aggregate_result_type(name: str, argument: pa.DataType | None) -> pa.DataType:
    """The type of an aggregate; `argument` is None for count(*). NotFound for an unknown aggregate."""
    if name in ("count", "approx_distinct"):
        return pa.int64()
    if name in ("bool_and", "bool_or"):
        return pa.bool_()
    if argument is None:
        raise Unsupported(f"the aggregate {name} without an argument")
    if name in ("min", "max", "first_value", "last_value", "any_value"):
        return argument
    if name == "sum":
        if pa.types.is_decimal(argument):
            return decimal_type(argument.precision + 10, argument.scale)
        if pa.types.is_integer(argument):
            return pa.uint64() if pa.types.is_unsigned_integer(argument) else pa.int64()
        return argument if pa.types.is_duration(argument) else pa.float64()
    if name == "avg":
        if pa.types.is_decimal(argument):
            return decimal_type(argument.precision + 4, argument.scale + 4)
        return argument if pa.types.is_duration(argument) else pa.float64()
    if name in ("stddev_samp", "stddev_pop", "var_samp", "var_pop", "median"):
        return pa.float64()
    raise NotFound(f"unknown aggregate function: {name}")
