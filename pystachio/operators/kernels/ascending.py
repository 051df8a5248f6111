"""Whether rows are in order, as numpy sees it: for integers on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def ascend(keys: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Whether each row is above the one before it, by the first of the keys ([rows] each) that differs."""
    above: np.ndarray[Any, Any] | None = None
    for values in reversed(keys):
        behind, before = values[1:], values[:-1]
        above = behind > before if above is None else (behind > before) | ((behind == before) & above)
    return above is not None and bool(above.all())


def never_falls(values: np.ndarray[Any, Any]) -> bool:
    """Whether no row is below the one before it."""
    return bool((values[1:] >= values[:-1]).all())
