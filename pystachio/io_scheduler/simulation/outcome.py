"""What came out of a simulation, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pystachio.io_scheduler.core.request import PriorityClass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassOutcome:
    """`latencies` are those of queries, urgent messages or whole exchanges, in seconds, ascending."""

    priority: PriorityClass
    latencies: tuple[float, ...]
    bytes_per_second: float
    plans_done: int
    plans_failed: int

    def quantile(self, share: float) -> float | None:
        """The nearest-rank quantile of the latencies; None without any."""
        return quantile(self.latencies, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOutcome:
    """`busy` is the share of the counted time; `shares_by_class` those of slots of `slot_seconds` from the start on."""

    node: int
    name: str
    busy: float
    busy_seconds: float
    bytes_by_class: tuple[int, ...]
    chunks: int
    slot_seconds: float
    shares_by_class: tuple[tuple[float, ...], ...] = field(repr=False)

    @property
    def shares(self) -> list[float]:
        """Of each slot, for all classes together."""
        return [min(1.0, sum(slot)) for slot in zip(*self.shares_by_class)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`seconds` are virtual and counted, `messages` those about transfers, `central_messages` those to and from the
    central service; `event_hash` is of all that happened.
    """

    policy: str
    seed: int
    seconds: float
    events: int
    chunks: int
    messages: int
    central_messages: int
    event_hash: str
    classes: tuple[ClassOutcome, ...]
    links: tuple[LinkOutcome, ...]

    def of(self, priority: PriorityClass) -> ClassOutcome:
        return self.classes[priority]


def quantile(ascending: Sequence[float], share: float) -> float | None:
    """Nearest rank: the smallest value that at least `share` of all values do not exceed."""
    if not ascending:
        return None
    return ascending[min(len(ascending) - 1, max(0, math.ceil(share * len(ascending)) - 1))]
