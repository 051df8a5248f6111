"""The first units of a scan, read while it waits for the runtime filters of joins whose build sides are being made.

Nobody knows yet what the filters will rule out; `surely_needed` says which units they hardly can. These are read behind
everything that somebody waits for (`request.PREFETCH`). With the filters the reads become the scan's own, and those of
units that were ruled out after all are given up. So are all of them as soon as anybody waits for memory: the build
side that they wait for may be the one that needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final

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

_LEAST_FREE: Final = 4
"""So many times what a unit needs must be free."""


class EarlyReads:
    """Of one run of a scan, on the loop; leaving its block gives up what nobody has taken."""

    def __init__(self, ctx: Context, fetcher: Fetcher, hot: HotColumns) -> None:
        self.fetcher = fetcher
        self._ctx = ctx
        self._hot = hot
        self._prefetch = ctx.transfers.prefetch()
        self._reads: dict[tuple[str, tuple[int, ...]], Fetch] = {}
        self._beginning: asyncio.Task[None] | None = None
        self._given_up: list[asyncio.Task[Fetched]] = []

    async def __aenter__(self) -> EarlyReads:
        self._ctx.memory.watch_scarcity(self.give_up, tier=Tier.HOST)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ctx.memory.unwatch_scarcity(self.give_up, tier=Tier.HOST)
        self.give_up()
        # Nobody wants to know how they ended.
        await asyncio.gather(*self._given_up, return_exceptions=True)
        if self._beginning is not None and kind is None:
            with suppress(asyncio.CancelledError):
                await self._beginning

    def begin(self, units: Sequence[Unit], positions: tuple[int, ...]) -> None:
        """Read these columns of the units, in order, as far as memory is free."""
        self._beginning = asyncio.create_task(self._begin(units, positions))

    def keep(self, units: Iterable[Unit]) -> None:
        """The filters are there, and these units are what is left: no others are begun, nor read to their end."""
        self._begin_no_more()
        self._prefetch.promote()
        needed = {_name(unit) for unit in units}
        for name in [name for name in self._reads if name not in needed]:
            self._give_up(self._reads.pop(name))

    def take(self, unit: Unit) -> Fetch | None:
        """The unit's read, if one was begun: its task and its reservation are the caller's from now on."""
        read = self._reads.pop(_name(unit), None)
        if read is not None:
            self._ctx.metrics.count("bytes read early", read.nbytes)
        return read

    def give_up(self) -> None:
        """All that nobody has taken."""
        self._begin_no_more()
        reads, self._reads = self._reads, {}
        for read in reads.values():
            self._give_up(read)

    async def _begin(self, units: Sequence[Unit], positions: tuple[int, ...]) -> None:
        for unit in units:
            hot, _ = self._hot.find(unit, positions)
            cold = [position for position in positions if position not in hot]
            if not cold:
                continue
            stored = await self.fetcher.find(unit, cold)
            nbytes = fetched_bytes(unit, cold, stored)
            needed = nbytes + unit.decoded_bytes(cold)
            if needed * _LEAST_FREE > self._ctx.memory.free(Tier.HOST):
                return
            reservation = self._ctx.memory.reserve_nowait(needed, tier=Tier.HOST, transient=True)
            if reservation is None:
                return
            fetched = asyncio.create_task(self.fetcher.fetch(unit, cold, stored, self._prefetch))
            self._reads[_name(unit)] = Fetch(unit, hot, stored, False, False, nbytes, reservation, fetched)

    def _begin_no_more(self) -> None:
        if self._beginning is not None:
            self._beginning.cancel()

    def _give_up(self, read: Fetch) -> None:
        self._ctx.metrics.count("bytes read in vain", read.nbytes)
        if read.fetched.cancel():
            self._given_up.append(read.fetched)
            # The devices have let go of the buffers then.
            read.fetched.add_done_callback(lambda _: read.reservation.release())
        else:
            if not read.fetched.cancelled():
                read.fetched.exception()  # which nobody wants to know
            read.reservation.release()


def surely_needed(unit: Unit, passing: Iterable[tuple[int, float]]) -> bool:
    """Whether filters will hardly rule the unit out: of each, `passing` has the scan's column, and the share of the
    column's values that are expected to pass."""
    return all(share * _values(unit, position) >= SURE_VALUES for position, share in passing)


def _values(unit: Unit, position: int) -> int:
    """How many different values the unit may have in the column."""
    known = unit.file.chunks(unit.columns[position]).ranges
    groups = list(unit.groups)
    if known is None or not known.known[groups].all():
        return unit.rows
    return min(unit.rows, int(known.high[groups].max()) - int(known.low[groups].min()) + 1)


def _name(unit: Unit) -> tuple[str, tuple[int, ...]]:
    return unit.file.path, unit.groups
