"""Whether Triton's kernels are used on a device: only where it is installed, compiles, and agrees with torch there.

The check runs once for each device, in the first job that could use a kernel: every kernel on input that is made to be
awkward, against torch's twin on the same device.
"""

from __future__ import annotations

import threading
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

import torch

from pystachio.operators.kernels import hash_triton, portable

NOT_INSTALLED: Final = "Triton is not installed"

_LOCK: Final = threading.Lock()
_FOUND: Final[dict[torch.device, ModuleType | str]] = {}


def launchers(device: torch.device) -> ModuleType | None:
    """`triton_launch`, None where its kernels are not to be used on `device`. In a job of the device's streams."""
    found = _FOUND.get(device)
    if found is None:
        with _LOCK:
            found = _FOUND.get(device)
            if found is None:
                found = _FOUND[device] = _examine(device)
    return None if isinstance(found, str) else found


def problem(device: torch.device) -> str | None:
    """Why they are not used there; None where they are."""
    launchers(device)
    found = _FOUND[device]
    return found if isinstance(found, str) else None


def _examine(device: torch.device) -> ModuleType | str:
    if find_spec("triton") is None:
        return NOT_INSTALLED
    if device.type != "cuda" or not torch.cuda.is_available():
        return f"{device} is no CUDA device of this machine"
    try:
        module = import_module("pystachio.operators.kernels.triton_launch")
        wrong = disagreements(module, device)
    except Exception as error:  # a compiler, a driver, a version: whatever it is, torch's kernels go on
        return f"{type(error).__name__}: {error}"
    return f"wrong on {device}: {', '.join(wrong)}" if wrong else module


def disagreements(module: ModuleType, device: torch.device) -> list[str]:
    """Which of the kernels of `module` differ from torch's on awkward input: every bit of int64, NULLs, keys at both
    ends, rows that end inside a block."""
    rows = 2 * 1024 + 77
    numbers = torch.arange(rows, device=device)
    values = (numbers - rows // 2) * 0x5851F42D4C957F2D
    codes = ((numbers * numbers) % 7).to(torch.int32)
    kept = numbers % 3 != 1
    table = torch.arange(rows, dtype=torch.int32, device=device)
    keys = torch.where(kept, numbers // 2 * 2 - rows, values)
    cases: dict[str, tuple[object, ...]] = {
        "group_sums": (values, codes, 7, kept),
        "indices_of_true": (kept,),
        "compact": (kept, (values, codes, kept)),
        "lookup_within": (table, keys, -3, kept),
    }
    wrong = [name for name, arguments in cases.items() if not _same(module, name, arguments)]
    if not _groups(module, codes):
        wrong.append("group_rows")
    return wrong if _numbers(module, keys) else [*wrong, "number_keys"]


def _groups(module: ModuleType, codes: torch.Tensor) -> bool:
    """Which row stands for a code is up to the device."""
    counts, holders = module.group_rows(codes, 7)
    expected, _ = portable.group_rows(codes, 7)
    present = torch.nonzero(expected).squeeze(1)
    return torch.equal(counts, expected) and torch.equal(
        codes.index_select(0, holders.index_select(0, present) - 1), present.to(codes.dtype)
    )


def _numbers(module: ModuleType, keys: torch.Tensor) -> bool:
    """Which row stands for a key is up to the device: that equal keys have equal numbers and others do not, is not."""
    numbering = hash_triton.number_keys(module, keys)
    numbers, first = numbering.numbers, numbering.first
    found = numbering.table().lookup(torch.cat((keys, keys ^ 1)))
    expected = portable.number_keys(keys).table().lookup(keys ^ 1) == 0
    return (
        first.shape[0] == len(set(keys.tolist()))
        and torch.equal(keys.index_select(0, first.index_select(0, numbers)), keys)
        and torch.equal(found[: keys.shape[0]], numbers + 1)
        and torch.equal(found[keys.shape[0] :] == 0, expected)
    )


def _same(module: ModuleType, name: str, arguments: tuple[object, ...]) -> bool:
    mine, other = (getattr(each, name)(*arguments) for each in (module, portable))
    if isinstance(mine, torch.Tensor):
        mine, other = (mine,), (other,)
    return len(mine) == len(other) and all(torch.equal(one, two) for one, two in zip(mine, other, strict=True))
