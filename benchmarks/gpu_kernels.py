"""The inner loops on a device: torch's and Triton's, nanoseconds a row and the share of the device's copy bandwidth.

The cases are those of `kernels`, moved to the device. The share counts the bytes that a row must read and write at
least. Where Triton is not there, or its kernels disagree with torch's, only torch's are measured: the notes say why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from benchmarks.figures import Figure
from benchmarks.gpu_copies import Rates, Run, best
from benchmarks.kernel_cases import PRIMITIVES
from benchmarks.report import Report, table
from pystachio.operators.kernels import cuda, portable, triton_library

TORCH, TRITON = "torch", "Triton"
FEW = 8


def _codes(rows: int, random: np.random.Generator, top: int) -> torch.Tensor:
    return torch.from_numpy(random.integers(0, top, rows, np.int32))


def _numbers(rows: int, random: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(random.integers(0, 1 << 40, rows))


def _mask(rows: int, random: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(random.random(rows) < 0.5)


Arguments = Callable[[int, np.random.Generator], tuple[Any, ...]]

ON_A_DEVICE: Mapping[str, tuple[str, float, Arguments]] = {
    f"group_sums, {FEW} groups": (
        "group_sums",
        12,
        lambda rows, random: (_numbers(rows, random), _codes(rows, random, FEW), FEW),
    ),
    f"group_sums of half the rows, {FEW} groups": (
        "group_sums",
        13,
        lambda rows, random: (_numbers(rows, random), _codes(rows, random, FEW), FEW, _mask(rows, random)),
    ),
    "number_keys, random keys": ("number_keys", 12, lambda rows, random: (_numbers(rows, random),)),
    f"group_rows, {FEW} groups": ("group_rows", 4, lambda rows, random: (_codes(rows, random, FEW), FEW)),
}
"""Beside `PRIMITIVES`, by name: the primitive, the bytes that a row reads and writes at least, the arguments."""


def measure(device: torch.device, rates: Rates, *, rows: int, seconds: float) -> Report:
    """Each case with `rows` rows, for `seconds` each way."""
    random = np.random.default_rng(14)
    problem = triton_library.problem(device)
    cases = {name: (name, width, make) for name, (width, make) in PRIMITIVES.items()} | dict(ON_A_DEVICE)
    nanoseconds: dict[tuple[str, str], float] = {}
    for name, (primitive, _, make) in cases.items():
        arguments = tree_map(lambda value: _moved(value, device), make(rows, random))
        for way, run in _ways(primitive, arguments, with_triton=problem is None).items():
            nanoseconds[name, way] = best(run, device, seconds) / rows * 1e9
    sys.stdout.write(f"{rows:,} rows measured\n")
    figures = [
        Figure(
            f"{name}: Triton over torch, {rows:,} rows",
            nanoseconds[name, TRITON] / nanoseconds[name, TORCH],
            "ratio",
            1.0,
        )
        for name in cases
        if (name, TRITON) in nanoseconds
    ]
    head = ["kernel", "how", "ns a row", "bytes a row", "share of the device's copy bandwidth"]
    found = [
        [name, way, each, cases[name][1], cases[name][1] / each * 1e9 / rates.device_copy]
        for (name, way), each in nanoseconds.items()
    ]
    return Report(figures, table(head, found), [] if problem is None else [f"Triton is not used: {problem}"])


def _ways(primitive: str, arguments: tuple[Any, ...], *, with_triton: bool) -> dict[str, Run]:
    ways: dict[str, Run] = {TORCH: partial(getattr(portable, primitive), *arguments)}
    if with_triton and primitive in cuda.WITH_TRITON:
        ways[TRITON] = partial(getattr(cuda, primitive), *arguments)
    return ways


def _moved(value: object, device: torch.device) -> object:
    return value.to(device) if isinstance(value, torch.Tensor) else value
