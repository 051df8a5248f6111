"""Choosing between values: CASE, COALESCE, NULLIF, GREATEST, LEAST."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
import torch

from pystachio.operators.arrow import literal_at
from pystachio.operators.column import Bounds, BytesColumn, Column, DictionaryColumn, FixedColumn, WideDecimalColumn
from pystachio.operators.expressions import Literal
from pystachio.operators.functions.boolean import Mask
from pystachio.operators.functions.casts import cast
from pystachio.operators.functions.comparison import compare
from pystachio.operators.functions.function import Function, Invocation, Kernel, NullRule, Operand
from pystachio.operators.functions.operands import (
    INTEGER_DTYPES,
    column,
    float_dtype,
    is_text,
    narrowest_dtype,
    validity_of,
)
from pystachio.operators.functions.types import common_type
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.selection import (
    concat,
    plain,
    take,
    union_bounds,
    widen,
    with_validity,
)
from pystachio.operators.kernels.strings import unify


def choose(
    clauses: Sequence[tuple[Mask, Operand]], otherwise: Operand, type_: pa.DataType, rows: int, device: torch.device
) -> Operand:
    """Per row the operand of the first clause whose mask is true, else `otherwise`, as `type_`."""
    useful: list[tuple[torch.Tensor, Operand]] = []
    for mask, operand in clauses:
        if mask is True:
            otherwise = operand
            break
        if isinstance(mask, torch.Tensor):
            useful.append((mask, _as_type(operand, type_)))
    otherwise = _as_type(otherwise, type_)
    if not useful:
        return otherwise
    operands = [operand for _, operand in useful] + [otherwise]
    if all(_is_null(operand) for operand in operands):
        return Literal(None, type_)
    if len(useful) == 1 and _is_null(otherwise):
        # CASE WHEN mask THEN value END only takes rows away.
        mask, operand = useful[0]
        value = column(operand, rows, device)
        return with_validity(value, mask if value.validity is None else mask & value.validity)
    masks = [mask for mask, _ in useful]
    validity = _chosen_validity(masks, operands, rows, device)
    if is_text(type_):
        return with_validity(_choose_text(masks, operands, type_, rows, device), validity)
    columns = [plain(operand) for operand in operands if not isinstance(operand, Literal)]
    large = any(
        isinstance(o, Literal) and isinstance(o.value, int) and not -(2**63) <= o.value < 2**63 for o in operands
    )
    if large or any(isinstance(part, WideDecimalColumn) for part in columns):
        return _choose_wide(masks, [column(operand, rows, device) for operand in operands], type_, validity)
    return _choose_fixed(masks, operands, type_, validity, device)


def _as_type(operand: Operand, type_: pa.DataType) -> Operand:
    """Plans cast where they should; decimals of another scale would silently be wrong where one does not."""
    if operand.type == type_:
        return operand
    if not isinstance(operand, Literal):
        return cast(operand, type_)
    if operand.value is None:
        return Literal(None, type_)
    return literal_at(cast(column(operand, 1, torch.device("cpu")), type_), 0)


def _is_null(operand: Operand) -> bool:
    return isinstance(operand, Literal) and operand.value is None


def _chosen_validity(
    masks: list[torch.Tensor], operands: list[Operand], rows: int, device: torch.device
) -> torch.Tensor | None:
    if not any(_is_null(operand) or validity_of((operand,)) is not None for operand in operands):
        return None

    def present(operand: Operand) -> torch.Tensor | bool:
        if isinstance(operand, Literal):
            return operand.value is not None
        return True if operand.validity is None else operand.validity

    values = [present(operand) for operand in operands]
    last = values[-1]
    result = torch.full((rows,), last, device=device) if isinstance(last, bool) else last
    for mask, value in zip(reversed(masks), reversed(values[:-1]), strict=True):
        result = mask & value | ~mask & result
    return result


def _choose_fixed(
    masks: list[torch.Tensor],
    operands: list[Operand],
    type_: pa.DataType,
    validity: torch.Tensor | None,
    device: torch.device,
) -> FixedColumn:
    parts: list[torch.Tensor | bool | int | float] = []
    dtypes: list[torch.dtype] = []
    known: list[Bounds | None] = []
    for operand in operands:
        if isinstance(operand, Literal):
            value = 0 if operand.value is None else operand.value
            parts.append(value)
            if isinstance(value, int) and not isinstance(value, bool):
                dtypes.append(narrowest_dtype((value, value)))
                known.append((value, value))
            continue
        fixed = plain(operand)
        assert isinstance(fixed, FixedColumn)
        parts.append(fixed.values)
        dtypes.append(fixed.values.dtype)
        known.append(fixed.bounds)
    dtype = _common_dtype(type_, dtypes)
    if len(masks) == 1 and _is_zero(parts[-1]) and dtype in INTEGER_DTYPES:
        # A product with a mask of zeros and ones costs a quarter of a choice.
        kept = primitives(device).arithmetic("multiply", parts[0], masks[0].view(torch.int8), dtype)
        return FixedColumn(type_, kept, validity, union_bounds(known))
    result = _tensor(parts[-1], dtype, device)
    for mask, part in zip(reversed(masks), reversed(parts[:-1]), strict=True):
        result = torch.where(mask, _tensor(part, dtype, device), result)
    bounds = None if dtype == torch.bool or dtype.is_floating_point else union_bounds(known)
    return FixedColumn(type_, result, validity, bounds)


def _is_zero(value: torch.Tensor | bool | int | float) -> bool:
    return not isinstance(value, torch.Tensor) and value == 0


def _common_dtype(type_: pa.DataType, dtypes: list[torch.dtype]) -> torch.dtype:
    if pa.types.is_boolean(type_):
        return torch.bool
    if pa.types.is_floating(type_):
        return float_dtype(type_)
    return reduce(torch.promote_types, dtypes)


def _tensor(value: torch.Tensor | bool | int | float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return value.to(dtype) if isinstance(value, torch.Tensor) else torch.full((), value, dtype=dtype, device=device)


def _choose_wide(
    masks: list[torch.Tensor], columns: list[Column], type_: pa.DataType, validity: torch.Tensor | None
) -> WideDecimalColumn:
    wide = [widen(plain(part)) for part in columns]
    high, low = wide[-1].high, wide[-1].low
    for mask, part in zip(reversed(masks), reversed(wide[:-1]), strict=True):
        high, low = torch.where(mask, part.high, high), torch.where(mask, part.low, low)
    return WideDecimalColumn(type_, high, low, validity)


def _choose_text(
    masks: list[torch.Tensor], operands: list[Operand], type_: pa.DataType, rows: int, device: torch.device
) -> Column:
    """On codes where all operands have them (constants do); else rows are gathered from the operands put together."""
    columns = [
        _any_text(type_, rows, device) if _is_null(operand) else column(operand, rows, device) for operand in operands
    ]
    if all(isinstance(part, DictionaryColumn) for part in columns):
        unified = unify([part for part in columns if isinstance(part, DictionaryColumn)])
        dtype = reduce(torch.promote_types, (part.codes.dtype for part in unified))
        codes = unified[-1].codes.to(dtype)
        for mask, part in zip(reversed(masks), reversed(unified[:-1]), strict=True):
            codes = torch.where(mask, part.codes.to(dtype), codes)
        return DictionaryColumn(type_, codes, unified[0].dictionary)
    own = torch.arange(rows, device=device)
    positions = own + rows * (len(columns) - 1)
    for number in reversed(range(len(masks))):
        positions = torch.where(masks[number], own + rows * number, positions)
    together = concat([plain(with_validity(part, None)) for part in columns])
    assert isinstance(together, BytesColumn)
    return take(together, positions)


def _any_text(type_: pa.DataType, rows: int, device: torch.device) -> Column:
    return column(Literal("" if pa.types.is_string(type_) else b"", type_), rows, device)


def _coalesce(invocation: Invocation) -> Operand:
    clauses: list[tuple[Mask, Operand]] = []
    for operand in invocation.arguments:
        if isinstance(operand, Literal):
            clauses.append((operand.value is not None, operand))
        else:
            clauses.append((True if operand.validity is None else operand.validity, operand))
    return choose(clauses, Literal(None, invocation.type), invocation.type, invocation.rows, invocation.device)


def _nullif(invocation: Invocation) -> Operand:
    left, right = invocation.arguments
    if _is_null(left) or _is_null(right):
        return left
    equal = compare("equal", left, right)
    valid = validity_of((left, right))
    if isinstance(equal, torch.Tensor) and valid is not None:
        equal = equal & valid
    elif equal is True and valid is not None:
        equal = valid
    null = Literal(None, invocation.type)
    return choose([(equal, null)], left, invocation.type, invocation.rows, invocation.device)


def _extreme(function: str) -> Kernel:
    """The largest or smallest argument that is not NULL, as in PostgreSQL, DuckDB and DataFusion."""

    def better(invocation: Invocation, left: Operand, right: Operand) -> Operand:
        if _is_null(left) or _is_null(right):
            return right if _is_null(left) else left
        if isinstance(left, Literal) and isinstance(right, Literal):
            left = column(left, invocation.rows, invocation.device)
        wins = compare(function, left, right)
        mask: Mask = wins
        for operand, value in ((left, False), (right, True)):
            validity = validity_of((operand,))
            if validity is not None:
                if isinstance(mask, bool):
                    mask = torch.full_like(validity, mask)
                mask = mask & validity if not value else mask | ~validity
        return choose([(mask, left)], right, invocation.type, invocation.rows, invocation.device)

    return lambda invocation: reduce(lambda left, right: better(invocation, left, right), invocation.arguments)


def _first_type(types: Sequence[pa.DataType]) -> pa.DataType:
    return types[0]


FUNCTIONS: Final = (
    Function("coalesce", common_type, _coalesce, NullRule.OWN),
    Function("nullif", _first_type, _nullif, NullRule.OWN),
    Function("greatest", common_type, _extreme("gte"), NullRule.OWN),
    Function("least", common_type, _extreme("lte"), NullRule.OWN),
)
