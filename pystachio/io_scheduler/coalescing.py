"""Neighbouring extents are read together: a request costs as much processor time as copying some hundred kilobytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pystachio.errors import DataError
from pystachio.io_scheduler.core.request import Extent

GAP_BYTES = 256 << 10
RUN_BYTES = 16 << 20
LARGEST_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Run:
    """What is read at once. `members` are positions among the extents, `useful` counts their bytes once each.

    `required` bytes from the start must exist; what follows is rounding and may lie behind the end of the file.
    """

    extent: Extent
    members: tuple[int, ...]
    useful: int
    required: int


def coalesce(
    extents: Sequence[Extent], *, alignment: int = 1, gap_bytes: int = GAP_BYTES, run_bytes: int = RUN_BYTES
) -> list[Run]:
    """Runs that cover `extents`, by offset; empty extents belong to none.

    Extents are joined across at most `gap_bytes` while the run stays within `run_bytes`; one extent is never split.
    Raises DataError for an extent that no file can have.
    """
    runs: list[Run] = []
    members: list[int] = []
    start = end = useful = 0
    for position in sorted(range(len(extents)), key=lambda position: extents[position].offset):
        extent = extents[position]
        if extent.offset < 0 or extent.length < 0 or extent.end > LARGEST_OFFSET:
            raise DataError(f"no file has such a range: offset {extent.offset:,}, length {extent.length:,}")
        if extent.length == 0:
            continue
        joined = max(end, extent.end)
        if members and (extent.offset - end > gap_bytes or joined - start > run_bytes):
            runs.append(_run(start, end, members, useful, alignment))
            members = []
        if not members:
            start = end = extent.offset
            useful = 0
        useful += max(0, extent.end - max(extent.offset, end))
        end = max(end, extent.end)
        members.append(position)
    if members:
        runs.append(_run(start, end, members, useful, alignment))
    return runs


def _run(start: int, end: int, members: list[int], useful: int, alignment: int) -> Run:
    aligned_start = start // alignment * alignment
    aligned_end = -(-end // alignment) * alignment
    return Run(Extent(aligned_start, aligned_end - aligned_start), tuple(members), useful, end - aligned_start)
