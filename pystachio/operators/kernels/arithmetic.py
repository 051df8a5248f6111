"""Exact sums, differences and products of integers, with the proof that nothing overflows.

The proof is interval arithmetic on the operands' ranges: those known or given by the dtype first, then those measured.
Where it fails the computation runs in two limbs.
"""

from __future__ import annotations

import torch

from pystachio.operators.column import Bounds

INT64: Bounds = (-(2**63), 2**63 - 1)


def range_of(function: str, left: Bounds, right: Bounds) -> Bounds:
    """The range of all sums, differences or products of values of the two ranges."""
    match function:
        case "add":
            return left[0] + right[0], left[1] + right[1]
        case "subtract":
            return left[0] - right[1], left[1] - right[0]
        case _:
            corners = [a * b for a in left for b in right]
            return min(corners), max(corners)


def divide_rounded(dividend: torch.Tensor, divisor: torch.Tensor | int) -> torch.Tensor:
    """int64 quotient rounded half away from zero; magnitudes below 2**62 and no divisor 0."""
    quotient = torch.div(dividend, divisor, rounding_mode="trunc")
    rest = (dividend - quotient * divisor).abs()
    size = divisor.abs() if isinstance(divisor, torch.Tensor) else abs(divisor)
    up = (rest * 2 >= size).to(torch.int64)
    sign = torch.sign(dividend) * (
        torch.sign(divisor) if isinstance(divisor, torch.Tensor) else (1 if divisor > 0 else -1)
    )
    return quotient + up * sign


def round_half_away(values: torch.Tensor) -> torch.Tensor:
    """Floats rounded to whole numbers, halves away from zero (torch.round goes to even)."""
    whole = torch.trunc(values)
    return whole + torch.sign(values) * ((values - whole).abs() >= 0.5)
