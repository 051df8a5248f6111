"""Comparisons of any two values of comparable types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import torch

from pystachio.errors import InvalidRequest
from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.column import BytesColumn, DictionaryColumn, FixedColumn, WideDecimalColumn
from pystachio.operators.expressions import Literal
from pystachio.operators.functions.function import Function, Invocation, Kernel, NullRule, Operand, always
from pystachio.operators.functions.operands import (
    any_valid,
    boolean_column,
    column,
    floats,
    is_text,
    validity_of,
)
from pystachio.operators.functions.units import ratio
from pystachio.operators.kernels import compare as kernels
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.selection import device_of, plain
from pystachio.operators.kernels.strings import arrow_view, of_codes, translate
from pystachio.operators.placement import on_device

_ARROW: Final[dict[str, Callable[..., pa.Array]]] = {
    "equal": pc.equal,
    "not_equal": pc.not_equal,
    "lt": pc.less,
    "lte": pc.less_equal,
    "gt": pc.greater,
    "gte": pc.greater_equal,
}


def compare(function: str, left: Operand, right: Operand) -> torch.Tensor | bool:
    """`left function right`: a bool per row (arbitrary under NULLs), or one bool when all rows agree.

    At least one operand is a column, none is a NULL literal. InvalidRequest when the types cannot be compared.
    """
    if isinstance(left, Literal):
        return compare(kernels.MIRRORED[function], right, left)
    if is_text(left.type) and is_text(right.type):
        return _compare_text(function, left, right)
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        return _compare_floats(function, left, right)
    steps = ratio(left.type, right.type)
    if steps is None:
        raise InvalidRequest(f"values that cannot be compared: {left.type} and {right.type}")
    numbers = _numbers(left)
    if not isinstance(right, Literal):
        return kernels.compare_columns(function, numbers, _numbers(right), steps)
    if pa.types.is_boolean(left.type):
        numbers = _as_integers(numbers)
    constant = int(right.value)
    return kernels.compare_constant(function, numbers, constant if steps == 1 else constant / steps)


def _numbers(operand: Operand) -> FixedColumn | WideDecimalColumn:
    assert not isinstance(operand, Literal)
    values = plain(operand)
    assert not isinstance(values, BytesColumn)
    return values


def _as_integers(values: FixedColumn | WideDecimalColumn) -> FixedColumn:
    assert isinstance(values, FixedColumn)
    return FixedColumn(values.type, values.values.view(torch.int8), values.validity, (0, 1))


def _compare_floats(function: str, left: Operand, right: Operand) -> torch.Tensor:
    if left.type == right.type == pa.float32():
        return kernels.compare_floats(function, _single_precision(left), _single_precision(right))
    return kernels.compare_floats(function, floats(left), floats(right))


def _single_precision(operand: Operand) -> torch.Tensor | float:
    if isinstance(operand, Literal):
        return float(operand.value)
    values = plain(operand)
    assert isinstance(values, FixedColumn)
    return values.values


def _compare_text(function: str, left: Operand, right: Operand) -> torch.Tensor:
    if (
        isinstance(left, DictionaryColumn)
        and isinstance(right, DictionaryColumn)
        and function in ("equal", "not_equal")
    ):
        if left.dictionary is right.dictionary:
            return primitives(left.codes.device).compare(function, left.codes, right.codes)
        if len(left.dictionary) <= len(left):
            mapped = of_codes(translate(left.dictionary, right.dictionary, left.codes.device), left)
            return primitives(left.codes.device).compare(function, mapped, right.codes)
    result = column_from_arrow(_ARROW[function](text_array(left), text_array(right)))
    assert isinstance(result, FixedColumn)
    assert not isinstance(left, Literal)
    return on_device(result.values, device_of(left))


def text_array(operand: Operand) -> pa.Array | pa.Scalar:
    """Strings or bytes for `pyarrow.compute`, in the large layout."""
    if isinstance(operand, Literal):
        return pa.scalar(operand.value, pa.large_string() if pa.types.is_string(operand.type) else pa.large_binary())
    values = plain(operand)
    assert isinstance(values, BytesColumn)
    return arrow_view(values)


def _comparison(function: str) -> Kernel:
    def kernel(invocation: Invocation) -> Operand:
        result = compare(function, *invocation.arguments)
        return Literal(result, pa.bool_()) if isinstance(result, bool) else boolean_column(result)

    return kernel


def _distinct_from(function: str) -> Kernel:
    """NULL is a value like any other here, equal to NULL only."""

    def kernel(invocation: Invocation) -> Operand:
        left, right = (
            column(Literal(None, other.type) if _is_null(operand) else operand, invocation.rows, invocation.device)
            for operand, other in zip(invocation.arguments, reversed(invocation.arguments), strict=True)
        )
        present, other = (_validity(operand, invocation) for operand in (left, right))
        both = present & other
        equal = torch.zeros_like(both)
        if any_valid(both, None):
            result = compare("equal", left, right)
            equal = both & result if isinstance(result, torch.Tensor) else both.clone() if result else equal
        same = equal | ~(present | other)
        return boolean_column(same if function == "is_not_distinct_from" else ~same)

    return kernel


def _is_null(operand: Operand) -> bool:
    return isinstance(operand, Literal) and operand.value is None


def _validity(operand: Operand, invocation: Invocation) -> torch.Tensor:
    validity = validity_of((operand,))
    return torch.ones(invocation.rows, dtype=torch.bool, device=invocation.device) if validity is None else validity


FUNCTIONS: Final = (
    *(Function(name, always(pa.bool_()), _comparison(name)) for name in kernels.MIRRORED),
    *(
        Function(name, always(pa.bool_()), _distinct_from(name), NullRule.OWN)
        for name in ("is_distinct_from", "is_not_distinct_from")
    ),
)
