"""From states that are addressed by the slots of groups to the groups that there are: arrays of numpy, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pystachio.operators.kernels.host_memory import NUMPY

Array = np.ndarray[Any, Any]


def used_slots(counts: Array) -> Array:
    """int64, ascending: those of the slots [slots] that count rows."""
    used: Array = (counts != 0).nonzero()[0]
    return used


def states_at(states: Array, slots: Array) -> Array:
    """The states [slots] of these slots."""
    taken: Array = states.take(slots)
    return taken


def keys_at(digits: Array, step: int, low: int, dtype: torch.dtype) -> torch.Tensor:
    """The keys of groups: `low` and `step` times the digits."""
    return as_tensor(digits * step + low, dtype)


def as_tensor(values: Array, dtype: torch.dtype) -> torch.Tensor:
    """The values as `dtype`, into which they fit."""
    return torch.from_numpy(values.astype(NUMPY[dtype], copy=False))
