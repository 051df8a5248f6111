"""Batches through a chain of opened streaming operators: by programs where the chain allows it, else one by one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from pystachio.operators.batch import Batch
from pystachio.operators.column import Bounds, Column, FixedColumn
from pystachio.operators.fusion.kept import Written, kept_segments
from pystachio.operators.fusion.prepared import Look, Prepared, prepared
from pystachio.operators.fusion.run_parts import run_parts
from pystachio.operators.fusion.segment import Segment, SegmentRows, SegmentRun
from pystachio.operators.fusion.writing import collect_states, fold_of, write_segment
from pystachio.operators.kernels.bounds import is_within, with_measured_bounds
from pystachio.operators.kernels.program import is_available
from pystachio.operators.kernels.selection import settled_batch, union_bounds
from pystachio.operators.operator import Transform
from pystachio.operators.scans.hot_rows import HotRows
from pystachio.operators.scans.rows import ScanRows
from pystachio.runtime.context import Context

_FEWEST_ROWS: Final = 2048
"""Writing a program takes as long as some thousand rows through the operators."""

_PAUSE: Final = Batch((), 0, None)

_Key = tuple[int, tuple[object, ...], Look, int]
"""Of a program: the stage that it begins with, what else it depends on, what its columns look like, and how many rows
are expected to be folded."""

_MANY_ROWS_BITS: Final = 20

_MOST_PROGRAMS: Final = 32
"""Batches that keep looking different do not pay."""


@dataclass(slots=True, eq=False)
class Flow:
    """`chain`: the operators, with the contexts that count for them. Several threads may push at once."""

    chain: Sequence[tuple[Transform, Context]]
    fused: bool
    _written: dict[_Key, list[Written]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _unordered: set[Segment] = field(default_factory=set)
    """Whose groups are all over a unit: a part of its rows has nearly as many as all of them."""

    def push(self, batches: Iterable[Batch | ScanRows | HotRows], producer: Context) -> Iterator[Batch]:
        """What the end of the chain puts out. An empty batch is a chance to pause."""
        for batch in batches:
            if isinstance(batch, HotRows):
                while taken := batch.take():
                    # Not by the clock: a thread that shares an interpreter mostly waits for its turn.
                    seconds, began = 0.0, time.thread_time()
                    for made in self._scanned(taken, producer):
                        seconds += time.thread_time() - began
                        yield made
                        began = time.thread_time()
                    batch.took(taken, seconds + time.thread_time() - began)
            elif isinstance(batch, ScanRows):
                yield from self._scanned((batch,), producer)
            else:
                producer.metrics.add_batch(rows_out=batch.length, nbytes=batch.nbytes)
                yield from self._from(0, batch)

    def push_finished(self, batches: Iterator[Batch], stage: Context) -> Iterator[Batch]:
        """What the end of the chain puts out for what the stage before it kept."""
        for batch in timed(batches, stage):
            yield from self._from(0, batch)

    def _from(self, stage: int, batch: Batch, ranges: Sequence[Bounds | None] = ()) -> Iterator[Batch]:
        """`ranges`: of the columns of this batch and others to come, as far as they are known."""
        if stage == len(self.chain) or batch.length == 0:
            yield settled_batch(batch)
            return
        if self.fused:
            batch = Batch(tuple(map(with_measured_bounds, batch.columns)), batch.length, batch.ready)
            ready = Prepared.of(batch.columns)
            segment = self._segment(self._written_for(stage, ready, batch.length, None, ranges), ready)
            if segment is not None and segment.fits(ready.columns, batch.length):
                for run in segment.run([SegmentRows(ready, ready.columns, 0, batch.length, None)]):
                    self._count(run, stage, segment.stages, 0, run.rows)
                    yield from self._onward(run, stage + segment.stages)
                return
        transform, ctx = self.chain[stage]
        ctx.metrics.add_batch(rows_in=batch.length, batches=0)
        for made in timed(transform.process(batch), ctx):
            yield from self._from(stage + 1, made)

    def _scanned(self, rows: Sequence[ScanRows], producer: Context) -> Iterator[Batch]:
        """Rows of one scan."""
        length = seen = 0
        for each in rows:
            piece = each.piece
            span = piece.stop - piece.start
            seen += span
            length += span if piece.survivors is None else len(piece.survivors)
        producer.metrics.add_batch(rows_in=seen, batches=0)
        together: list[SegmentRows] = []
        segment: Segment | None = None
        takes_many = False
        written: Written | None = None
        look: Look = ()
        waiting = deque(rows)
        while waiting:
            each = waiting.popleft()
            own, start, stop = segment, each.piece.start, each.piece.stop
            if self.fused:
                ready = prepared(each)
                columns: Sequence[Column | None] = ready.columns
                if (
                    written is None
                    or not takes_many
                    or ready.look != look
                    or not ready.are_addressable
                    or not ready.is_within(written.bounds)
                ):
                    written = self._written_for(0, ready, length, each, each.reader.bounds)
                    look = ready.look
                    own = self._segment(written, ready)
                    if own is not None and not own.takes_many:
                        columns = own.narrowed(columns, start, stop)
                    if own is not None and not own.fits(columns, length if own.takes_many else each.length):
                        smaller = self._smaller(own, columns, each)
                        if smaller:
                            waiting.extendleft(reversed(smaller))
                            continue
                        own = None
            if segment is not None and (own is not segment or not takes_many):
                yield from self._run(segment, together, each, producer)
                together = []
            if own is not segment:
                segment, takes_many = own, own is not None and own.takes_many
            if own is None:
                ranges = [each.reader.bounds[position] for position in each.reader.output]
                for batch in each.batches():
                    producer.metrics.add_batch(rows_out=batch.length, nbytes=batch.nbytes)
                    yield from self._from(0, batch, ranges)
            else:
                survivors = each.piece.survivors
                chosen = None if survivors is None else survivors.to(torch.int32)
                together.append(SegmentRows(ready, columns, start, stop - start, chosen))
        if segment is not None:
            yield from self._run(segment, together, rows[-1], producer)

    def _smaller(self, segment: Segment, columns: Sequence[Column | None], rows: ScanRows) -> list[ScanRows]:
        """The rows in parts that fit into the segment, if there are such."""
        parts = segment.parts_that_fit(columns, rows.length)
        if parts == 1 or rows.piece.survivors is not None or segment in self._unordered:
            return []
        length = -(-rows.length // parts)
        smaller = [rows]
        while smaller[-1].length > length:
            smaller += smaller.pop().split(length)
        first = smaller[0].piece
        if not segment.fits(
            segment.narrowed(prepared(rows).columns, first.start, first.stop), first.stop - first.start
        ):
            self._unordered.add(segment)
            return []
        return smaller

    def _run(
        self, segment: Segment, rows: Sequence[SegmentRows], scanned: ScanRows, producer: Context
    ) -> Iterator[Batch]:
        """Rows of a scan, of which `scanned` are some, through a segment and what is behind it."""
        for run in segment.run(rows):
            left = run.rows
            for boundary, use in enumerate(segment.tested):
                seen, left = left, run.counters[2 * boundary]
                if use is not None:
                    use.count(seen, left)
            if not scanned.is_tested:
                scanned.found(left)
            tests = len(segment.tested)
            producer.metrics.add_batch(rows_out=left, seconds=sum(map(run.seconds_of, range(tests))))
            self._count(run, 0, segment.stages, tests, left)
            yield from self._onward(run, segment.stages)

    def _onward(self, run: SegmentRun, stage: int) -> Iterator[Batch]:
        if run.batch is None:
            yield _PAUSE
        else:
            yield from self._from(stage, run.batch)

    def _count(self, run: SegmentRun, stage: int, stages: int, boundary: int, rows: int) -> None:
        for _, ctx in self.chain[stage : stage + stages]:
            left = run.counters[2 * boundary]
            ctx.metrics.add_batch(rows_in=rows, rows_out=left, seconds=run.seconds_of(boundary))
            rows = left
            boundary += 1

    def _segment(self, written: Written | None, ready: Prepared) -> Segment | None:
        return written.segment if written is not None and ready.are_addressable else None

    def _written_for(
        self, stage: int, ready: Prepared, length: int, scanned: ScanRows | None, ranges: Sequence[Bounds | None]
    ) -> Written | None:
        variety = () if scanned is None else scanned.variety
        key = (stage, variety, ready.look, self._expectation())
        found = self._find(key, ready)
        if found is None and length >= _FEWEST_ROWS:
            with self._lock:
                found = self._find(key, ready)
                if found is None:
                    found = self._kept_or_written(key, stage, ready, length, scanned, ranges)
        return found

    def _expectation(self) -> int:
        """How many rows the aggregation at the end of the chain is known to get one by one, in powers of four: for many
        of them states pay that do not pay for a batch."""
        fold = fold_of(self.chain[-1][0]) if self.chain else None
        return 0 if fold is None else max(0, (fold.expected_rows.bit_length() - _MANY_ROWS_BITS + 1) // 2)

    def _find(self, key: _Key, ready: Prepared) -> Written | None:
        for written in self._written.get(key, ()):
            if ready.is_within(written.bounds):
                return written
        return None

    def _kept_or_written(
        self,
        key: _Key,
        stage: int,
        ready: Prepared,
        length: int,
        scanned: ScanRows | None,
        ranges: Sequence[Bounds | None],
    ) -> Written:
        """What an earlier run of the plan has kept, if it has."""
        chain = [transform for transform, _ in self.chain[stage:]]
        run = None if scanned is None else run_parts(chain, () if scanned.is_tested else scanned.reader.filters)
        if run is None or scanned is None:
            return self._write(key, stage, ready.columns, length, scanned, ranges)
        kept = kept_segments(scanned.reader, chain)
        # For about so many rows: within 16 times, the choices that depend on it are the same or little worse.
        look = (scanned.is_tested, length.bit_length() // 4, run.look, ready.look, key[-1])
        found = kept.find(look, ready.columns, run)
        if found is None:
            found = self._write(key, stage, ready.columns, length, scanned, ranges)
            if found in self._written[key]:  # and not given up for this run only
                kept.keep(look, ready.columns, found, run)
        else:
            self._written.setdefault(key, []).append(found)
            if found.segment is not None:
                collect_states(found.segment, chain)
        return found

    def _write(
        self,
        key: _Key,
        stage: int,
        columns: Sequence[Column | None],
        length: int,
        scanned: ScanRows | None,
        ranges: Sequence[Bounds | None],
    ) -> Written:
        earlier = self._written.setdefault(key, [])
        if sum(map(len, self._written.values())) > _MOST_PROGRAMS:
            return Written((None,) * len(columns), None)
        wide: list[Column | None] = []
        for position, column in enumerate(columns):
            if isinstance(column, FixedColumn) and column.values.dtype.is_floating_point:
                # One without a value may have been given a range.
                column = FixedColumn(column.type, column.values, column.validity)
            elif isinstance(column, FixedColumn):
                bounds = column.bounds
                if earlier:
                    bounds = _widened(bounds, earlier[-1].bounds[position], _range_of(column.values.dtype))
                if ranges and ranges[position] is not None:
                    bounds = union_bounds((bounds, ranges[position]))
                if bounds is not None and not is_within(bounds, _range_of(column.values.dtype)):
                    bounds = column.bounds
                column = FixedColumn(column.type, column.values, column.validity, bounds)
            wide.append(column)
        chain = [transform for transform, _ in self.chain[stage:]]
        segment = write_segment(chain, wide, columns, length, scanned)
        written = Written(tuple(column.bounds if isinstance(column, FixedColumn) else None for column in wide), segment)
        earlier.append(written)
        return written


def can_fuse(ctx: Context) -> bool:
    """Whether programs run here: on a CPU, with the compiled library, unless they are switched off."""
    return ctx.settings.fusion and ctx.stream.device.type == "cpu" and is_available()


def timed(batches: Iterator[Batch], ctx: Context) -> Iterator[Batch]:
    """The same batches; the time to make each is the stage's own."""
    start = time.perf_counter()
    for batch in batches:
        seconds = time.perf_counter() - start
        ctx.metrics.add_batch(rows_out=batch.length, nbytes=batch.nbytes, seconds=seconds)
        yield batch
        start = time.perf_counter()
    ctx.metrics.add_batch(seconds=time.perf_counter() - start, batches=0)


def _widened(bounds: Bounds | None, earlier: Bounds | None, most: Bounds) -> Bounds | None:
    """A range around both. Where the earlier one was too small, twice as large: values that rise from batch to batch
    need few programs."""
    if bounds is None or earlier is None:
        return None
    low, high = min(bounds[0], earlier[0]), max(bounds[1], earlier[1])
    span = high - low
    if bounds[0] < earlier[0]:
        low = min(low, max(low - span, most[0]))
    if bounds[1] > earlier[1]:
        high = max(high, min(high + span, most[1]))
    return low, high


def _range_of(dtype: torch.dtype) -> Bounds:
    if dtype == torch.bool:
        return 0, 1
    limits = torch.iinfo(dtype)
    return limits.min, limits.max
