"""Kernels: pure functions from tensors to tensors, and the one place where a kernel is chosen per device.

`primitives(device)` gives the handful of inner loops that differ between devices: numpy's ufuncs are several times
faster than torch's on a CPU, torch's run anywhere. Everything else in this package is written once on top of them.
"""

from __future__ import annotations

from types import ModuleType

import torch

from pystachio.operators.kernels import host, portable


def primitives(device: torch.device) -> ModuleType:
    """The inner loops for tensors on `device`: the functions listed in `portable`, which is their specification."""
    return host if device.type == "cpu" else portable
