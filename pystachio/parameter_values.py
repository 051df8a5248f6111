"""The values that a statement's parameters may have, here and on their way to a node elsewhere."""

from __future__ import annotations

from typing import Any, Final

from pystachio.errors import InvalidRequest

TYPES: Final = (
    "None, bool, int, float, str, bytes, decimal.Decimal, datetime's date, time, datetime and timedelta, "
    "and NumPy's booleans and numbers"
)
_NUMPY_KINDS: Final = "biuf"
"""Booleans and numbers. Of its moments, `item` makes a number of nanoseconds, which would be another value."""


def plain(value: Any) -> Any:
    """A scalar of NumPy as the Python value that it is, anything else as it is."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "dtype"):
        return value.item() if value.dtype.kind in _NUMPY_KINDS else value
    return value


def no_parameter(value: Any) -> InvalidRequest:
    """What a value of another type is refused with."""
    return InvalidRequest(f"a parameter of the type {type(value).__name__}", hint=f"parameters are {TYPES}")
