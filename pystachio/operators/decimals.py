"""128-bit integers as two int64 limbs: the arithmetic behind decimals that int64 cannot hold.

A value is high * 2**64 + low, low read as unsigned (`column.WideDecimalColumn`). Everything is torch operations on
whole tensors, exact, on every device; operands broadcast. Products and quotients follow Knuth, The Art of Computer
Programming 2, 4.3.1: 32-bit digits for the product; quotients by successive floating-point estimates of the
remainder, each of which gains about 50 bits. Few quotients on the host are Python's, sooner than two hundred operations
on tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch

from pystachio.errors import DataError

MAXIMUM_PRECISION: Final = 38

_MASK_32: Final = 2**32 - 1
_MASK_64: Final = 2**64 - 1
_SIGN: Final = -(2**63)
_TWO_64: Final = 2.0**64
# Above this a product certainly has more than 38 digits; below it, it certainly fits in 128 bits.
_SAFE_PRODUCT: Final = 1.6e38
_LARGEST_ESTIMATE: Final = 2.0**127 - 2.0**75
_FEW: Final = 512
"""Quotients: one takes 45 us this way and 840 on tensors, 512 take 390 and 1,010."""


class Limbs(NamedTuple):
    """Two int64 tensors of one shape."""

    high: torch.Tensor
    low: torch.Tensor


def widen(values: torch.Tensor) -> Limbs:
    """Any integers as limbs."""
    low = values.to(torch.int64)
    return Limbs(low >> 63, low)


def constant(value: int, device: torch.device) -> Limbs:
    """One Python integer (of at most 127 bits and a sign) as limbs without dimension."""
    low = value & _MASK_64
    signed_low = low - 2**64 if low >= 2**63 else low
    # Filled on the device: copied there, each would wait for it.
    high_limb = torch.full((), value >> 64, dtype=torch.int64, device=device)
    return Limbs(high_limb, torch.full((), signed_low, dtype=torch.int64, device=device))


def add(left: Limbs, right: Limbs) -> Limbs:
    low = left.low + right.low
    carry = _unsigned_less(low, left.low).to(torch.int64)
    return Limbs(left.high + right.high + carry, low)


def negate(value: Limbs) -> Limbs:
    low = -value.low
    return Limbs(~value.high + (low == 0).to(torch.int64), low)


def subtract(left: Limbs, right: Limbs) -> Limbs:
    borrow = _unsigned_less(left.low, right.low).to(torch.int64)
    return Limbs(left.high - right.high - borrow, left.low - right.low)


def where(mask: torch.Tensor, left: Limbs, right: Limbs) -> Limbs:
    return Limbs(torch.where(mask, left.high, right.high), torch.where(mask, left.low, right.low))


def absolute(value: Limbs) -> Limbs:
    return where(value.high < 0, negate(value), value)


def less(left: Limbs, right: Limbs) -> torch.Tensor:
    return (left.high < right.high) | ((left.high == right.high) & _unsigned_less(left.low, right.low))


def equal(left: Limbs, right: Limbs) -> torch.Tensor:
    return (left.high == right.high) & (left.low == right.low)


def fits_int64(value: Limbs) -> torch.Tensor:
    """Per value: the low limb alone, read as signed, is the value."""
    return value.high == (value.low >> 63)


def to_float(value: Limbs) -> torch.Tensor:
    """The nearest float64, to within one unit in the last place."""
    magnitude = absolute(value)
    unsigned = magnitude.high.to(torch.float64) * _TWO_64 + _unsigned_float(magnitude.low)
    return torch.where(value.high < 0, -unsigned, unsigned)


def from_float(value: torch.Tensor) -> Limbs:
    """Truncated towards zero; the magnitude must be below 2**127."""
    magnitude = torch.trunc(value.abs())
    high = torch.floor(magnitude / _TWO_64)
    low = magnitude - high * _TWO_64
    wrapped = torch.where(low >= 2.0**63, low - _TWO_64, low)
    limbs = Limbs(high.to(torch.int64), wrapped.to(torch.int64))
    return where(value < 0, negate(limbs), limbs)


def multiply(left: Limbs, right: Limbs) -> Limbs:
    """The product modulo 2**128."""
    product = _unsigned_product(left.low, right.low)
    return Limbs(product.high + left.high * right.low + left.low * right.high, product.low)


def multiply_or_fail(left: Limbs, right: Limbs, valid: torch.Tensor | None) -> Limbs:
    """The exact product; DataError when a valid row's has more than 38 digits."""
    too_large = to_float(left).abs() * to_float(right).abs() > _SAFE_PRODUCT
    if bool((too_large if valid is None else too_large & valid).any()):
        raise _overflow()
    return multiply(left, right)


def divide(left: Limbs, right: Limbs) -> tuple[Limbs, Limbs]:
    """Quotient truncated towards zero, and remainder (with the dividend's sign). A divisor of 0 gives any values."""
    if _are_few(left, right):
        quotient, remainder = _one_by_one(left, right, _quotient_and_remainder)
        return quotient, remainder
    dividend, divisor = absolute(left), absolute(right)
    zero = constant(0, left.high.device)
    quotient, remainder = where(torch.ones_like(dividend.high, dtype=torch.bool), zero, dividend), dividend
    size = to_float(divisor).clamp(min=1.0)
    for _ in range(3):
        step = (to_float(remainder) / size).clamp(-_LARGEST_ESTIMATE, _LARGEST_ESTIMATE)
        estimate = from_float(step)
        quotient = add(quotient, estimate)
        remainder = subtract(remainder, multiply(estimate, divisor))
    one = constant(1, left.high.device)
    for _ in range(2):
        below = remainder.high < 0
        quotient = where(below, subtract(quotient, one), quotient)
        remainder = where(below, add(remainder, divisor), remainder)
        above = ~less(remainder, divisor)
        quotient = where(above, add(quotient, one), quotient)
        remainder = where(above, subtract(remainder, divisor), remainder)
    opposite = (left.high < 0) != (right.high < 0)
    return where(opposite, negate(quotient), quotient), where(left.high < 0, negate(remainder), remainder)


def divide_rounded(left: Limbs, right: Limbs) -> Limbs:
    """Quotient rounded half away from zero."""
    if _are_few(left, right):
        return _one_by_one(left, right, _rounded_quotient)[0]
    quotient, remainder = divide(left, right)
    rest, divisor = absolute(remainder), absolute(right)
    up = ~less(rest, subtract(divisor, rest))
    one = constant(1, left.high.device)
    opposite = (left.high < 0) != (right.high < 0)
    return where(up, where(opposite, subtract(quotient, one), add(quotient, one)), quotient)


def rescale(value: Limbs, digits: int, valid: torch.Tensor | None) -> Limbs:
    """value * 10**digits; negative `digits` round half away from zero. DataError beyond 38 digits in a valid row."""
    if digits == 0:
        return value
    if digits < -MAXIMUM_PRECISION:
        return subtract(value, value)
    if digits > MAXIMUM_PRECISION:
        raise _overflow()
    power = constant(10 ** abs(digits), value.high.device)
    return multiply_or_fail(value, power, valid) if digits > 0 else divide_rounded(value, power)


def check_precision(value: Limbs, precision: int, valid: torch.Tensor | None) -> None:
    """DataError when a valid row needs more than `precision` digits."""
    within = less(absolute(value), constant(10**precision, value.high.device)) & (value.high != _SIGN)
    if not bool((within if valid is None else within | ~valid).all()):
        raise DataError(f"decimal overflow: a value needs more than {precision} digits")


def _overflow() -> DataError:
    return DataError(f"decimal overflow: a value needs more than {MAXIMUM_PRECISION} digits")


def _unsigned_less(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left ^ _SIGN) < (right ^ _SIGN)


def _unsigned_float(low: torch.Tensor) -> torch.Tensor:
    value = low.to(torch.float64)
    return torch.where(low < 0, value + _TWO_64, value)


def _unsigned_product(left: torch.Tensor, right: torch.Tensor) -> Limbs:
    a0, a1 = left & _MASK_32, (left >> 32) & _MASK_32
    b0, b1 = right & _MASK_32, (right >> 32) & _MASK_32
    low, cross, other, high = a0 * b0, a0 * b1, a1 * b0, a1 * b1
    middle = ((low >> 32) & _MASK_32) + (cross & _MASK_32) + (other & _MASK_32)
    carried = high + ((cross >> 32) & _MASK_32) + ((other >> 32) & _MASK_32) + (middle >> 32)
    return Limbs(carried, (low & _MASK_32) | (middle << 32))


def _are_few(left: Limbs, right: Limbs) -> bool:
    """For pairs of them to be taken one by one; none at all are not."""
    counts = left.high.numel(), right.high.numel()
    return left.high.device.type == "cpu" and min(counts) > 0 and max(counts) <= _FEW


def _one_by_one(left: Limbs, right: Limbs, function: Callable[[int, int], tuple[int, ...]]) -> Sequence[Limbs]:
    """What the function makes of each pair of values, modulo 2**128."""
    shape = (left.high ^ right.high).shape
    left_high, left_low, right_high, right_low = (part.expand(shape).flatten().tolist() for part in (*left, *right))
    made = [
        function((a << 64) + (b & _MASK_64), (c << 64) + (d & _MASK_64))
        for a, b, c, d in zip(left_high, left_low, right_high, right_low, strict=True)
    ]
    return [
        Limbs(_signed([value >> 64 for value in values]).reshape(shape), _signed(values).reshape(shape))
        for values in zip(*made, strict=True)
    ]


def _signed(values: Sequence[int]) -> torch.Tensor:
    """The lowest 64 bits of each as int64."""
    return torch.tensor([((value + 2**63) & _MASK_64) - 2**63 for value in values], dtype=torch.int64)


def _quotient_and_remainder(dividend: int, divisor: int) -> tuple[int, int]:
    if divisor == 0:
        return 0, dividend
    quotient, remainder = divmod(abs(dividend), abs(divisor))
    return (
        quotient if (dividend < 0) == (divisor < 0) else -quotient,
        remainder if dividend >= 0 else -remainder,
    )


def _rounded_quotient(dividend: int, divisor: int) -> tuple[int]:
    if divisor == 0:
        return (0,)
    quotient = (2 * abs(dividend) + abs(divisor)) // (2 * abs(divisor))
    return (quotient if (dividend < 0) == (divisor < 0) else -quotient,)
