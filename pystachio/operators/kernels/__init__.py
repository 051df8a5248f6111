"""Kernels: pure functions from tensors to tensors, and the one place where a kernel is chosen per device.

`primitives(device)` gives the handful of inner loops that differ between devices: numpy's ufuncs are several times
faster than torch's on a CPU, Triton's kernels are made for CUDA devices, and torch's run anywhere. Everything else in
this package is written once on top of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from pystachio.operators.column import Bounds
from pystachio.operators.kernels import cuda, host, portable
from pystachio.operators.kernels.numbering import Numbering

Scalar = bool | int | float


class Primitives(Protocol):
    """The inner loops; `portable` is their specification."""

    def compare(self, function: str, left: torch.Tensor, right: torch.Tensor | Scalar) -> torch.Tensor: ...

    def arithmetic(
        self, function: str, left: torch.Tensor | Scalar, right: torch.Tensor | Scalar, dtype: torch.dtype
    ) -> torch.Tensor: ...

    def indices_of_true(self, mask: torch.Tensor) -> torch.Tensor: ...

    def compact(self, mask: torch.Tensor, columns: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]: ...

    def minimum_and_maximum(self, values: torch.Tensor) -> Bounds: ...

    def all_true(self, mask: torch.Tensor) -> bool: ...

    def any_true(self, mask: torch.Tensor) -> bool: ...

    def offsets_within(self, values: torch.Tensor, low: int, span: int) -> torch.Tensor: ...

    def lookup_within(
        self, table: torch.Tensor, values: torch.Tensor, low: int, kept: torch.Tensor | None = None
    ) -> torch.Tensor: ...

    def group_sums(
        self, values: torch.Tensor, codes: torch.Tensor, slots: int, kept: torch.Tensor | None = None
    ) -> torch.Tensor: ...

    def group_rows(self, codes: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]: ...

    def group_extremes(
        self, values: torch.Tensor, codes: torch.Tensor, start: torch.Tensor, *, largest: bool
    ) -> torch.Tensor: ...

    def number_words(self, words: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...

    def number_keys(self, keys: torch.Tensor) -> Numbering: ...

    def number_codes(self, codes: torch.Tensor, span: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...

    def ranges(self, groups: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor | None]: ...

    def ranges_of(self, offsets: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...

    def pairs(
        self, starts: torch.Tensor, counts: torch.Tensor, order: torch.Tensor | None, limit: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]: ...


def primitives(device: torch.device) -> Primitives:
    """The inner loops for tensors on `device`."""
    match device.type:
        case "cpu":
            return host
        case "cuda":
            return cuda
        case _:
            return portable
