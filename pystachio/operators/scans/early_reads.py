"""The first units of a scan, read while it waits for the runtime filters of joins whose build sides are being made.

Nobody knows yet what the filters will rule out; `surely_needed` says which units they hardly can. These are read behind
everything else of the plan (`request.PREFETCH`). With the filters the reads become the scan's own, and those of units
that were ruled out after all are given up. So are all of them as soon as somebody cannot go on without memory: it may
be the build side that they wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final

import numpy as np

from pystachio.operators.hot_columns import HotColumns
from pystachio.operators.scans.fetching import Fetch, Fetched, Fetcher, fetched_bytes
from pystachio.operators.scans.units import Unit
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Tier

SURE_VALUES: Final = 16
"""Values of a unit that are expected to pass a filter, from which on some will: were they spread by chance, none of 16
would in one of nine million units."""

MOST_UNITS: Final = 3
"""Beyond one for each worker; the scan itself reads about as far ahead."""


class EarlyReads:
    """Of one run of a scan, on the loop; leaving its block gives up what nobody has taken."""

    def __init__(self, ctx: Context, fetcher: Fetcher, hot: HotColumns) -> None:
        self.fetcher = fetcher
        self._ctx = ctx
        self._hot = hot
        self._prefetch = ctx.transfers.prefetch()
        self._reads: dict[tuple[str, tuple[int, ...]], Fetch] = {}
        self._beginning: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[Fetched]] = set()
        """Given up, or taken by somebody who may not come to wait for it."""

    async def __aenter__(self) -> EarlyReads:
        self._ctx.memory.watch_scarcity(self.give_up, tier=Tier.HOST)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ctx.memory.unwatch_scarcity(self.give_up, tier=Tier.HOST)
        self.give_up()
        for task in self._under_way:
            task.cancel()
        beginning = self._beginning
        await _until_ended([*self._under_way, *(() if beginning is None else (beginning,))])
        if beginning is not None and not beginning.cancelled() and beginning.exception() is not None and kind is None:
            beginning.result()

    def begin(self, units: Sequence[Unit], positions: tuple[int, ...]) -> None:
        """Read these columns of the units, in order, as far as memory is spare."""
        self._beginning = asyncio.create_task(self._begin(units, positions))

    def keep(self, units: Iterable[Unit]) -> None:
        """The filters are there, and these units are what is left: no others are begun, nor read to their end."""
        self._begin_no_more()
        needed = {_name(unit) for unit in units}
        for name in [name for name in self._reads if name not in needed]:
            self._give_up(self._reads.pop(name))
        self._prefetch.promote()

    def take(self, unit: Unit) -> Fetch | None:
        """The unit's read, if one was begun: its task and its reservation are the caller's from now on."""
        read = self._reads.pop(_name(unit), None)
        if read is not None:
            self._ctx.metrics.count("bytes read early", read.nbytes)
            self._watch(read.fetched)
        return read

    def give_up(self) -> None:
        """All that nobody has taken."""
        self._begin_no_more()
        reads, self._reads = self._reads, {}
        for read in reads.values():
            self._give_up(read)

    async def _begin(self, units: Sequence[Unit], positions: tuple[int, ...]) -> None:
        for unit in units:
            if _name(unit) in self._reads:
                continue  # the table has the file twice
            hot, _ = self._hot.find(unit, positions)
            if hot:
                continue  # it is not kept for those who wait, nor its memory reserved
            stored = await self.fetcher.find(unit, positions)
            nbytes = fetched_bytes(unit, positions, stored)
            needed = nbytes + unit.decoded_bytes(positions)
            reservation = self._ctx.memory.reserve_spare(needed, tier=Tier.HOST)
            if reservation is None:
                return
            fetched = asyncio.create_task(self.fetcher.fetch(unit, positions, stored, self._prefetch))
            self._reads[_name(unit)] = Fetch(
                unit, {}, stored, split=False, spread=False, nbytes=nbytes, reservation=reservation, fetched=fetched
            )

    def _begin_no_more(self) -> None:
        if self._beginning is not None:
            self._beginning.cancel()

    def _give_up(self, read: Fetch) -> None:
        self._ctx.metrics.count("bytes given up early", read.nbytes)
        if read.fetched.cancel():
            # The devices have let go of the buffers then.
            read.fetched.add_done_callback(lambda _: read.reservation.release())
            self._watch(read.fetched)
        else:
            if not read.fetched.cancelled():
                read.fetched.exception()  # which nobody wants to know
            read.reservation.release()

    def _watch(self, task: asyncio.Task[Fetched]) -> None:
        """Until it has ended: its bytes are not for us."""
        if not task.done():
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)


async def _until_ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """However often whoever waits is cancelled, which he is told in the end."""
    cancelled: asyncio.CancelledError | None = None
    while left := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # it was told, or nobody wants to know
    if cancelled is not None:
        raise cancelled


def surely_needed(units: Iterable[Unit], passing: Sequence[tuple[int, float]]) -> list[Unit]:
    """The first units of each file that filters will hardly change, in the order given: of each filter, `passing` has
    the scan's column, and the share of the column's values that are expected to pass.

    A row group that is ruled out also moves the bounds of the units behind it.
    """
    found = []
    uncertain: set[str] = set()
    for unit in units:
        if all(_few_values(unit, position) * share >= SURE_VALUES for position, share in passing):
            if unit.file.path not in uncertain:
                found.append(unit)
        else:
            uncertain.add(unit.file.path)
    return found


def _few_values(unit: Unit, position: int) -> int:
    """At most so many different values has the row group of the unit that has the fewest in the column."""
    groups = list(unit.groups)
    rows = unit.file.row_group_sizes[groups]
    known = unit.file.chunks(unit.columns[position]).ranges
    if known is None:
        return int(rows.min())
    # Beyond int64 is beyond any number of rows.
    spans = known.high[groups].astype(np.float64) - known.low[groups].astype(np.float64) + 1.0
    return int(np.where(known.known[groups], np.minimum(rows, spans), rows).min())


def _name(unit: Unit) -> tuple[str, tuple[int, ...]]:
    return unit.file.path, unit.groups
