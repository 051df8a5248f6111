"""Which device computes, and what it has."""

from __future__ import annotations

import torch

from pystachio.errors import InvalidRequest


def choose_device(requested: str = "auto") -> torch.device:
    """The device named by `auto`, `cpu`, `cuda` or `cuda:N`.

    `auto` is the CPU: the path over CUDA devices is tested on a stand-in but has not run on hardware yet, so it is only
    taken when it is asked for.

    Raises InvalidRequest for a device that this machine lacks.
    """
    available = cuda_device_count()
    if requested == "auto":
        return torch.device("cpu")
    try:
        device = torch.device(requested)
    except RuntimeError as error:
        raise _no_such_device(requested, available) from error
    match device.type:
        case "cpu":
            return torch.device("cpu")
        case "cuda" if (device.index or 0) < available:
            return torch.device("cuda", device.index or 0)
        case _:
            raise _no_such_device(requested, available)


def device_place(device: torch.device) -> object:
    """By what a tensor on `device` that outlives its plan is known; in a job of a stream.

    Plans may compute on different streams, whose kernels have no order between them: each has a copy of its own.
    """
    return device if device.type != "cuda" else (device, torch.cuda.current_stream(device))


def cuda_device_count() -> int:
    """Zero on a CPU build of torch, where most of torch.cuda raises."""
    if not torch.accelerator.is_available():
        return 0
    accelerator = torch.accelerator.current_accelerator()
    return torch.accelerator.device_count() if accelerator is not None and accelerator.type == "cuda" else 0


def _no_such_device(requested: str, available: int) -> InvalidRequest:
    there = ", ".join(["cpu", *(f"cuda:{index}" for index in range(available))])
    return InvalidRequest(f"this machine has no such device: {requested!r}", hint=f"available: {there}")
