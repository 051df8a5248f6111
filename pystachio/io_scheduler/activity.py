"""What every plan has on every link at this moment: for people who ask why a plan stands still."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pystachio.io_scheduler.core.events import LinkStatistics
from pystachio.io_scheduler.core.request import Link
from pystachio.io_scheduler.submission import PendingChunk, PendingTransfer


class LinkUse(NamedTuple):
    """Bytes of one plan: of transfers that have not begun, and inside the device."""

    plan_id: str
    link: Link
    waiting_bytes: int
    inside_bytes: int


class IoActivity(NamedTuple):
    """`moved` are bytes that crossed each link so far, and `moved_by` those of each plan that is open."""

    uses: tuple[LinkUse, ...]
    links: tuple[LinkStatistics, ...]
    moved: Mapping[Link, int]
    moved_by: Mapping[str, Mapping[Link, int]]


def link_use(pending: Iterable[PendingTransfer], inside: Iterable[PendingChunk]) -> tuple[LinkUse, ...]:
    """One entry for each plan and link with a transfer under way."""
    waits: Counter[tuple[str, Link]] = Counter()
    moves: Counter[tuple[str, Link]] = Counter()
    for each in pending:
        transfer = each.transfer
        waits[transfer.plan_id, transfer.link] += transfer.extent.length if each.started_at is None else 0
    for chunk in inside:
        transfer = chunk.pending.transfer
        moves[transfer.plan_id, transfer.link] += len(chunk.request.buffer)
    return tuple(LinkUse(*key, waits[key], moves[key]) for key in {**waits, **moves})
