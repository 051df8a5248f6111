"""Whether values are among a set of constants."""

from __future__ import annotations

import numpy as np
import torch

from pystachio.operators.column import Bounds
from pystachio.operators.kernels import primitives
from pystachio.operators.placement import on_device

# Up to this many constants a comparison each is cheaper than a table.
_FEW: int = 4
# A table of one byte per value of the range; this much stays in the cache.
_TABLE_SPAN: int = 1 << 20


def is_member(values: torch.Tensor, constants: list[int], bounds: Bounds | None) -> torch.Tensor:
    """Per value whether it is one of `constants`; `bounds` is the range of the values that count, if known."""
    limits = bounds or (torch.iinfo(values.dtype).min, torch.iinfo(values.dtype).max)
    possible = sorted({constant for constant in constants if limits[0] <= constant <= limits[1]})
    if len(possible) <= _FEW:
        result = torch.zeros(values.shape[0], dtype=torch.bool, device=values.device)
        for constant in possible:
            result |= primitives(values.device).compare("equal", values, constant)
        return result
    wanted = np.array(possible, np.int64)
    if bounds is not None and bounds[1] - bounds[0] < _TABLE_SPAN:
        table = torch.zeros(bounds[1] - bounds[0] + 1, dtype=torch.bool)
        table[torch.from_numpy(wanted - bounds[0])] = True
        # Values under NULLs may be outside the range.
        positions = (values.to(torch.int64) - bounds[0]).clamp(0, table.shape[0] - 1)
        return on_device(table, values.device).index_select(0, positions)
    if values.device.type == "cpu":
        return torch.from_numpy(np.isin(values.numpy(), wanted))
    return torch.isin(values, on_device(torch.from_numpy(wanted), values.device))
