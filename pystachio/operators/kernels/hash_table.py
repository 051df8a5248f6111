"""Hash tables over int64 keys: the compiled one on a CPU, rounds of tensor operations elsewhere."""

from __future__ import annotations

import torch

from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.numbering import Numbering


def number(keys: torch.Tensor) -> Numbering:
    """The distinct ones of `keys` (int64 [rows])."""
    return primitives(keys.device).number_keys(keys)
