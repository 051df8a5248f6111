"""Two-limb arithmetic against Python's integers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pystachio.errors import DataError
from pystachio.operators import decimals
from pystachio.operators.decimals import Limbs

LIMIT = 10**38 - 1
MANY = decimals._FEW + 1
INTEGERS = st.one_of(
    st.integers(-LIMIT, LIMIT),
    st.integers(-(2**65), 2**65),
    st.integers(-100, 100),
    st.sampled_from([0, 1, -1, 2**63, -(2**63), 2**63 - 1, 2**64, 2**64 - 1, -(2**64), LIMIT, -LIMIT, 10**19]),
)


def limbs(values: list[int]) -> Limbs:
    high, low = zip(*(divmod(value, 2**64) for value in values), strict=True)
    return Limbs(torch.tensor(high), torch.tensor([each - 2**64 if each >= 2**63 else each for each in low]))


def integers(value: Limbs) -> list[int]:
    return [high * 2**64 + (low % 2**64) for high, low in zip(value.high.tolist(), value.low.tolist(), strict=True)]


def truncated(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def rounded(left: int, right: int) -> int:
    quotient, rest = divmod(abs(left), abs(right))
    quotient += 2 * rest >= abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


@given(st.lists(st.tuples(INTEGERS, INTEGERS), min_size=1, max_size=20))
def test_sums_differences_and_order(pairs: list[tuple[int, int]]) -> None:
    left, right = limbs([a for a, _ in pairs]), limbs([b for _, b in pairs])
    # Half of the values keep sums inside 128 bits.
    assert integers(decimals.add(left, decimals.negate(right))) == [_wrap(a - b) for a, b in pairs]
    assert integers(decimals.subtract(left, right)) == [_wrap(a - b) for a, b in pairs]
    assert decimals.less(left, right).tolist() == [a < b for a, b in pairs]
    assert decimals.equal(left, right).tolist() == [a == b for a, b in pairs]
    assert decimals.fits_int64(left).tolist() == [-(2**63) <= a < 2**63 for a, _ in pairs]


@given(st.lists(st.tuples(INTEGERS, INTEGERS), min_size=1, max_size=20))
def test_products_and_quotients(pairs: list[tuple[int, int]]) -> None:
    left, right = limbs([a for a, _ in pairs]), limbs([b for _, b in pairs])
    assert integers(decimals.multiply(left, right)) == [_wrap(a * b) for a, b in pairs]
    # Few, which are divided one by one, and many.
    for rows in (len(pairs), MANY):
        nonzero = ([(a, b or 7) for a, b in pairs] * MANY)[:rows]
        left, right = limbs([a for a, _ in nonzero]), limbs([b for _, b in nonzero])
        quotient, remainder = decimals.divide(left, right)
        assert integers(quotient) == [truncated(a, b) for a, b in nonzero]
        assert integers(remainder) == [a - b * truncated(a, b) for a, b in nonzero]
        assert integers(decimals.divide_rounded(left, right)) == [rounded(a, b) for a, b in nonzero]


@pytest.mark.parametrize("rows", [0, 1, 5, MANY])
@pytest.mark.parametrize("divisor", [0, 3])
def test_a_constant_divides_all_rows(rows: int, divisor: int) -> None:
    dividends = limbs([10**30 + row for row in range(rows)] or [1])
    left = Limbs(dividends.high[:rows], dividends.low[:rows])
    right = decimals.constant(divisor, torch.device("cpu"))
    quotient, remainder = decimals.divide(left, right)
    rounded_quotient = decimals.divide_rounded(left, right)
    assert [part.high.shape for part in (quotient, remainder, rounded_quotient)] == [(rows,)] * 3
    if divisor:
        assert integers(quotient) == [(10**30 + row) // divisor for row in range(rows)]
        assert integers(remainder) == [(10**30 + row) % divisor for row in range(rows)]
        assert integers(rounded_quotient) == [rounded(10**30 + row, divisor) for row in range(rows)]


@given(INTEGERS, INTEGERS)
def test_a_checked_product_is_exact_or_an_error(left: int, right: int) -> None:
    try:
        product = decimals.multiply_or_fail(limbs([left]), limbs([right]), None)
        decimals.check_precision(product, 38, None)
    except DataError:
        assert abs(left * right) > LIMIT
    else:
        assert integers(product) == [left * right]


@given(INTEGERS, st.integers(-40, 0))
def test_rescaling_down_rounds_half_away_from_zero(value: int, digits: int) -> None:
    for rows in (1, MANY):
        assert integers(decimals.rescale(limbs([value] * rows), digits, None)) == [rounded(value, 10**-digits)] * rows


@given(INTEGERS)
def test_floats_are_near(value: int) -> None:
    near = decimals.to_float(limbs([value])).item()
    assert math.isclose(near, float(value), rel_tol=1e-15)


def test_overflow_under_a_null_is_no_error() -> None:
    valid = torch.tensor([False])
    decimals.multiply_or_fail(limbs([LIMIT]), limbs([LIMIT]), valid)
    decimals.check_precision(limbs([LIMIT]), 5, valid)
    with pytest.raises(DataError):
        decimals.check_precision(limbs([100_000]), 5, None)


def _wrap(value: int) -> int:
    value %= 2**128
    return value - 2**128 if value >= 2**127 else value
