"""Type rules that several functions share: the common type of numbers, the digits of decimals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

import pyarrow as pa

from pystachio.errors import InvalidRequest
from pystachio.operators.decimals import MAXIMUM_PRECISION

# Decimal digits that any value of an integer type needs.
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}


# Types by number, which costs a tenth of asking pyarrow: expressions over a few rows do little else.
_DECIMALS: Final = frozenset(
    type_.id for type_ in (pa.decimal32(1), pa.decimal64(1), pa.decimal128(1), pa.decimal256(1))
)


_INTEGERS: Final = frozenset(
    type_.id
    for type_ in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    )
)


def are_integers(*types: pa.DataType) -> bool:
    """Whether all of them are, signed or not."""
    return _INTEGERS.issuperset([type_.id for type_ in types])


def scale_of(type_: pa.DataType) -> int:
    """The digits behind the point of a decimal; 0 for other types."""
    return type_.scale if type_.id in _DECIMALS else 0


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """A decimal with the precision capped at 38."""
    return pa.decimal128(min(precision, MAXIMUM_PRECISION), min(scale, MAXIMUM_PRECISION))


def decimal_parts(type_: pa.DataType) -> tuple[int, int]:
    """Precision and scale of a decimal, or of the decimal that holds an integer type."""
    if pa.types.is_decimal(type_):
        return type_.precision, type_.scale
    return _DIGITS.get(type_.bit_width, 1), 0


def common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type in which two numbers meet: float64 beats decimal beats integers; the wider integer wins."""
    if pa.types.is_null(left) or pa.types.is_null(right):
        return right if pa.types.is_null(left) else left
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        single = (pa.float32(), pa.float16())
        both_single = all(type_ in single for type_ in (left, right))
        return pa.float32() if both_single else pa.float64()
    if pa.types.is_decimal(left) or pa.types.is_decimal(right):
        (p1, s1), (p2, s2) = decimal_parts(left), decimal_parts(right)
        scale = max(s1, s2)
        return decimal_type(max(p1 - s1, p2 - s2) + scale, scale)
    if not (pa.types.is_integer(left) and pa.types.is_integer(right)):
        raise InvalidRequest(f"arithmetic on {left} and {right}")
    if pa.types.is_signed_integer(left) == pa.types.is_signed_integer(right):
        return left if left.bit_width >= right.bit_width else right
    signed, unsigned = (left, right) if pa.types.is_signed_integer(left) else (right, left)
    widths = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.int64()}
    return signed if signed.bit_width > unsigned.bit_width else widths[unsigned.bit_width]


def common_type(types: Sequence[pa.DataType]) -> pa.DataType:
    """The type in which values of a CASE, COALESCE or GREATEST meet."""
    return reduce(_common, types)


def _common(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if pa.types.is_date(left) and pa.types.is_timestamp(right):
        return right
    if pa.types.is_timestamp(left) and pa.types.is_date(right):
        return left
    return common_number(left, right)
