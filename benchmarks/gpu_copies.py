"""What the memories and the bus of a device deliver: the limits that everything else on it is held against.

Needs torch only. On a CPU the same code runs with plain memory, so that it is tested where there is no device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.figures import Figure

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second. A copy inside a memory counts what it reads and what it writes."""

    host_copy: float
    from_pageable: float
    from_pinned: float
    to_pinned: float
    device_copy: float
    overlap: float
    """Seconds of a copy to the device beside a kernel as long, over the longer of both alone: 1 is perfect, 2 none."""

    def figures(self) -> list[Figure]:
        named = {
            "host copy, one thread, read and written": self.host_copy,
            "to the device from pageable memory": self.from_pageable,
            "to the device from pinned memory": self.from_pinned,
            "to pinned memory from the device": self.to_pinned,
            "device copy, read and written": self.device_copy,
        }
        return [
            *(Figure(name, rate / 1e9, "GB/s") for name, rate in named.items()),
            Figure("a copy to the device beside a kernel, over the longer alone", self.overlap, "ratio", 1.2),
        ]


def measure(device: torch.device, *, nbytes: int, seconds: float) -> Rates:
    """`nbytes` per copy, `seconds` per rate."""
    is_cuda = device.type == "cuda"
    pageable = torch.ones(nbytes, dtype=torch.uint8)
    other = torch.empty_like(pageable)
    pinned = pageable.pin_memory() if is_cuda else pageable
    source, target = (torch.ones(nbytes, dtype=torch.uint8, device=device) for _ in range(2))

    def rate(run: Run, moved: int) -> float:
        return moved / best(run, device, seconds)

    return Rates(
        host_copy=rate(lambda: other.copy_(pageable), 2 * nbytes),
        from_pageable=rate(lambda: target.copy_(pageable), nbytes),
        from_pinned=rate(lambda: target.copy_(pinned, non_blocking=True), nbytes),
        to_pinned=rate(lambda: pinned.copy_(source, non_blocking=True), nbytes),
        device_copy=rate(lambda: target.copy_(source), 2 * nbytes),
        overlap=_overlap(device, pinned, source, target, seconds) if is_cuda else 1.0,
    )


def best(run: Run, device: torch.device, seconds: float) -> float:
    """The least seconds of one run, the device's work included; others on the machine can only add to it."""
    wait: Run = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
    run()
    wait()
    least, runs, end = float("inf"), 0, time.perf_counter() + seconds
    while runs < 3 or time.perf_counter() < end:
        started = time.perf_counter()
        run()
        wait()
        least = min(least, time.perf_counter() - started)
        runs += 1
    return least


def _overlap(
    device: torch.device, pinned: torch.Tensor, source: torch.Tensor, target: torch.Tensor, seconds: float
) -> float:
    """A copy on a stream of its own while kernels on other memory run for about as long."""
    side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    numbers = source.clone()

    def copy() -> None:
        with torch.cuda.stream(side):
            target.copy_(pinned, non_blocking=True)

    alone = best(copy, device, seconds)
    rounds = max(1, round(alone / best(lambda: numbers.add_(1), device, seconds)))

    def compute() -> None:
        for _ in range(rounds):
            numbers.add_(1)

    def both() -> None:
        copy()
        compute()

    return best(both, device, seconds) / max(alone, best(compute, device, seconds))
