"""Reading operands and writing results: what every kernel of the registry does at its ends."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import torch

from pystachio.errors import Unsupported
from pystachio.operators import decimals
from pystachio.operators.column import (
    Bounds,
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    WideDecimalColumn,
)
from pystachio.operators.expressions import Literal
from pystachio.operators.functions.function import Operand
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.bounds import cheap_bounds, measured_bounds
from pystachio.operators.kernels.selection import all_null, plain

INTEGER_DTYPES: Final = (torch.int8, torch.int16, torch.int32, torch.int64)
_INTEGER_LIMITS: Final = tuple((dtype, torch.iinfo(dtype).min, torch.iinfo(dtype).max) for dtype in INTEGER_DTYPES)


def is_text(type_: pa.DataType) -> bool:
    """string or binary."""
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def constant(literal: Literal, rows: int, device: torch.device) -> Column:
    """The literal in every row. Strings become codes of a dictionary with one value."""
    type_, value = literal.type, literal.value
    if value is None:
        return all_null(type_, rows, device)
    if is_text(type_):
        codes = torch.zeros(rows, dtype=torch.int8, device=device)
        return DictionaryColumn(type_, codes, _single_value(value, type_))
    if isinstance(value, bool):
        return FixedColumn(type_, torch.full((rows,), value, dtype=torch.bool, device=device))
    if isinstance(value, float) or pa.types.is_floating(type_):
        return FixedColumn(type_, torch.full((rows,), float(value), dtype=float_dtype(type_), device=device))
    if not isinstance(value, int):
        raise Unsupported(f"a column of type {type_}")
    if not -(2**63) <= value < 2**63:
        high, low = decimals.constant(value, device)
        return WideDecimalColumn(type_, high.expand(rows).contiguous(), low.expand(rows).contiguous())
    values = torch.full((rows,), value, dtype=narrowest_dtype((value, value)), device=device)
    return FixedColumn(type_, values, None, (value, value))


def column(operand: Operand, rows: int, device: torch.device) -> Column:
    """The operand as a column."""
    return constant(operand, rows, device) if isinstance(operand, Literal) else operand


def float_dtype(type_: pa.DataType) -> torch.dtype:
    """How floats of a type are stored: float32 for half and single precision."""
    return torch.float64 if type_ == pa.float64() else torch.float32


def narrowest_dtype(bounds: Bounds) -> torch.dtype:
    """The smallest integer dtype that holds the range, which must fit int64."""
    for dtype, low, high in _INTEGER_LIMITS:
        if low <= bounds[0] and bounds[1] <= high:
            return dtype
    raise AssertionError(f"the range {bounds} is beyond int64")


def fits(bounds: Bounds | None, limits: Bounds) -> bool:
    """Whether the range is known and lies within `limits`."""
    return bounds is not None and limits[0] <= bounds[0] and bounds[1] <= limits[1]


def operand_bounds(operand: Operand, *, measure: bool) -> Bounds | None:
    """The range of an integer-like operand, read from the values only when `measure`."""
    if isinstance(operand, Literal):
        return (operand.value, operand.value) if isinstance(operand.value, int) else None
    return measured_bounds(operand) if measure else cheap_bounds(operand)


def floats(operand: Operand) -> torch.Tensor | float:
    """Any number as float64: decimals unscaled, booleans 0 and 1."""
    scale = operand.type.scale if pa.types.is_decimal(operand.type) else 0
    if isinstance(operand, Literal):
        return int(operand.value) / int(10**scale) if scale else float(operand.value)
    return unscaled(plain(operand))


def unscaled(value: FixedColumn | WideDecimalColumn | BytesColumn) -> torch.Tensor:
    """float64 values of a numeric column."""
    match value:
        case FixedColumn(type=type_, values=values):
            result = values.to(torch.float64)
        case WideDecimalColumn(type=type_, high=high, low=low):
            result = decimals.to_float(decimals.Limbs(high, low))
        case BytesColumn(type=type_):
            raise Unsupported(f"{type_} as a number")
    return result / float(10**type_.scale) if pa.types.is_decimal(type_) and type_.scale else result


def integers(operand: Operand) -> torch.Tensor | int:
    """The stored integers of an integer-like operand (of a decimal: scaled)."""
    if isinstance(operand, Literal):
        return int(operand.value)
    fixed = plain(operand)
    if not isinstance(fixed, FixedColumn) or fixed.values.dtype.is_floating_point:
        raise Unsupported(f"{operand.type} as an integer")
    return fixed.values.to(torch.int8) if fixed.values.dtype == torch.bool else fixed.values


def validity_of(operands: tuple[Operand, ...]) -> torch.Tensor | None:
    """Rows in which no operand is NULL; None when that is all (literals are taken as not NULL)."""
    valid: torch.Tensor | None = None
    for operand in operands:
        if not isinstance(operand, Literal) and operand.validity is not None:
            valid = operand.validity if valid is None else valid & operand.validity
    return valid


def any_valid(mask: torch.Tensor, valid: torch.Tensor | None) -> bool:
    """Whether the mask is true in a row that counts."""
    kernel = primitives(mask.device)
    return kernel.any_true(mask) and (valid is None or kernel.any_true(mask & valid))


def booleans(operand: Operand) -> tuple[torch.Tensor | bool, torch.Tensor | bool]:
    """(true, false) of a boolean operand: where it is true, where it is false; both False is NULL."""
    if isinstance(operand, Literal):
        return operand.value is True, operand.value is False
    fixed = plain(operand)
    assert isinstance(fixed, FixedColumn)
    values = fixed.values if fixed.values.dtype == torch.bool else fixed.values != 0
    if fixed.validity is None:
        return values, ~values
    return values & fixed.validity, ~values & fixed.validity


def boolean_column(true: torch.Tensor, false: torch.Tensor | None = None) -> FixedColumn:
    """A boolean column from where it is true and (None: elsewhere) false."""
    return FixedColumn(pa.bool_(), true, None if false is None else true | false)


@lru_cache(maxsize=1024)
def _single_value(value: Any, type_: pa.DataType) -> Dictionary:
    """One object per value: batches of a constant share their dictionary, so that nothing needs to be unified."""
    raw = value.encode() if isinstance(value, str) else bytes(value)
    data = torch.tensor(list(raw), dtype=torch.uint8)
    return Dictionary(BytesColumn(type_, torch.tensor([0, len(raw)]), data))
