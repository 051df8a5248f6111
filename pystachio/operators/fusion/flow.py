"""Batches through a chain of opened streaming operators: by programs where the chain allows it, else one by one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import torch

from pystachio.operators.batch import Batch
from pystachio.operators.column import Bounds, Column, FixedColumn
from pystachio.operators.fusion.kept import Written, kept_segments
from pystachio.operators.fusion.prepared import Look, Prepared, prepared
from pystachio.operators.fusion.run_parts import run_parts
from pystachio.operators.fusion.segment import Segment, SegmentRows, SegmentRun
from pystachio.operators.fusion.writing import collect_states, fold_of, has_room, write_segment
from pystachio.operators.kernels.bounds import is_within, with_measured_bounds
from pystachio.operators.kernels.program import is_available
from pystachio.operators.kernels.selection import settled_batch, union_bounds
from pystachio.operators.operator import Transform
from pystachio.operators.scans.hot_rows import HotRows
from pystachio.operators.scans.pace import MOST_ROWS
from pystachio.operators.scans.rows import ScanRows
from pystachio.runtime.context import Context

_FEWEST_ROWS: Final = 2048
"""Writing a program takes as long as some thousand rows through the operators."""

_PAUSE: Final = Batch((), 0, None)

_Expectation = tuple[int, bool]
"""How many rows are expected to be folded, in powers of four, and whether units may be folded in parts."""

_Key = tuple[int, tuple[object, ...], Look, _Expectation]
"""Of a program: the stage that it begins with, what else it depends on, what its columns look like, and what is
expected."""

_MANY_ROWS_BITS: Final = 20
"""Fewer rows of more groups than a batch has are not worth other programs."""

_MOST_UNORDERED: Final = 3
"""After so many units whose groups are in no order none is tried in parts any more."""

_MOST_PROGRAMS: Final = 32
"""Batches that keep looking different do not pay."""


class _Origin(NamedTuple):
    """Where the rows of a program come from: a scan (`scanned` are some of them), or another stage. `ranges` are of the
    columns of all rows to come, by the program's positions, as far as they are known."""

    scanned: ScanRows | None
    ranges: Sequence[Bounds | None]


@dataclass(slots=True, eq=False)
class Flow:
    """`chain`: the operators, with the contexts that count for them. Several threads may push at once."""

    chain: Sequence[tuple[Transform, Context]]
    fused: bool
    _written: dict[_Key, list[Written]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

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
            segment = self._segment(self._written_for(stage, ready, batch.length, _Origin(None, ranges)), ready)
            if segment is not None and segment.fits(ready.columns, batch.length):
                for run in segment.run([SegmentRows(ready, ready.columns, 0, batch.length, None)]):
                    self._count(run, stage, segment.stages, 0, run.rows)
                    yield from self._onward(run, stage + segment.stages)
                return
        transform, ctx = self.chain[stage]
        ctx.metrics.add_batch(rows_in=batch.length, batches=0)
        for made in timed(transform.process(batch), ctx):
            yield from self._from(stage + 1, made)

    def _scanned(self, rows: Sequence[ScanRows], producer: Context, *, are_counted: bool = False) -> Iterator[Batch]:
        """Rows of one scan."""
        length = seen = 0
        for each in rows:
            piece = each.piece
            span = piece.stop - piece.start
            seen += span
            length += span if piece.survivors is None else len(piece.survivors)
        if not are_counted:
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
                    written = self._written_for(0, ready, length, _Origin(each, each.reader.bounds))
                    look = ready.look
                    own = self._segment(written, ready)
                    if own is not None and not own.takes_many:
                        columns = own.narrowed(columns, start, stop)
                    if own is not None and not own.fits(columns, length if own.takes_many else each.length):
                        if own.takes_many and length > MOST_ROWS and waiting:
                            # Sums have room for those of a turn of any scan, not for those of every long one.
                            if segment is not None:
                                yield from self._run(segment, together, each, producer)
                            left = [each, *waiting]
                            for some in (left[: len(left) // 2], left[len(left) // 2 :]):
                                yield from self._scanned(some, producer, are_counted=True)
                            return
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
        if parts == 1 or rows.piece.survivors is not None:
            return []
        length = -(-rows.length // parts)
        smaller = [rows]
        while smaller[-1].length > length:
            smaller += smaller.pop().split(length)
        first = smaller[0].piece
        if segment.fits(segment.narrowed(prepared(rows).columns, first.start, first.stop), first.stop - first.start):
            return smaller
        fold = fold_of(self.chain[-1][0])
        assert fold is not None, "which the segment folds for"
        fold.history.unordered += 1
        return []

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

    def _written_for(self, stage: int, ready: Prepared, length: int, origin: _Origin) -> Written | None:
        variety = () if origin.scanned is None else origin.scanned.variety
        key = (stage, variety, ready.look, self._expectation())
        found = self._find(key, ready)
        if found is None and length >= _FEWEST_ROWS:
            with self._lock:
                found = self._find(key, ready)
                if found is None:
                    found = self._kept_or_written(key, ready, length, origin)
        return found

    def _expectation(self) -> _Expectation:
        """Of the aggregation at the end of the chain, if there is one: for many rows states pay that do not pay for a
        batch."""
        fold = fold_of(self.chain[-1][0]) if self.chain else None
        if fold is None:
            return 0, False
        bits = fold.expected_rows.bit_length() - _MANY_ROWS_BITS
        return max(0, (bits + 1) // 2), fold.history.unordered < _MOST_UNORDERED

    def _find(self, key: _Key, ready: Prepared) -> Written | None:
        for written in self._written.get(key, ()):
            if ready.is_within(written.bounds):
                return written
        return None

    def _kept_or_written(self, key: _Key, ready: Prepared, length: int, origin: _Origin) -> Written:
        """What an earlier run of the plan has kept, if it has."""
        scanned = origin.scanned
        chain = [transform for transform, _ in self.chain[key[0] :]]
        run = None if scanned is None else run_parts(chain, () if scanned.is_tested else scanned.reader.filters)
        if run is None or scanned is None:
            return self._write(key, ready.columns, length, origin)
        kept = kept_segments(scanned.reader, chain)
        # For about so many rows: within 16 times, the choices that depend on it are the same or little worse.
        look = (scanned.is_tested, length.bit_length() // 4, run.look, ready.look, key[-1])
        found = kept.find(look, ready.columns, run)
        if found is None or (found.segment is not None and not has_room(found.segment, chain)):
            found = self._write(key, ready.columns, length, origin)
            if found in self._written[key]:  # and not given up for this run only
                kept.keep(look, ready.columns, found, run)
        else:
            self._written.setdefault(key, []).append(found)
            if found.segment is not None:
                collect_states(found.segment, chain)
        return found

    def _write(self, key: _Key, columns: Sequence[Column | None], length: int, origin: _Origin) -> Written:
        for other in [other for other in self._written if other[-1] != key[-1]]:
            del self._written[other]  # nobody will ask for it
        earlier = self._written.setdefault(key, [])
        if sum(map(len, self._written.values())) > _MOST_PROGRAMS:
            return Written((None,) * len(columns), None)
        chain = [transform for transform, _ in self.chain[key[0] :]]
        before = earlier[-1] if earlier else None
        in_parts = key[-1][1]
        wide = _wide(columns, before, origin.ranges, is_generous=True)
        segment = write_segment(chain, wide, columns, length, origin.scanned, in_parts=in_parts)
        if (
            before is not None
            and before.segment is not None
            and (segment is None or segment.stages < before.segment.stages)
        ):
            # What can be proved of what was seen so far may be more.
            exact = _wide(columns, before, origin.ranges, is_generous=False)
            better = write_segment(chain, exact, columns, length, origin.scanned, in_parts=in_parts)
            if better is not None and (segment is None or better.stages > segment.stages):
                wide, segment = exact, better
        written = Written(tuple(column.bounds if isinstance(column, FixedColumn) else None for column in wide), segment)
        earlier.append(written)
        return written


def _wide(
    columns: Sequence[Column | None], before: Written | None, ranges: Sequence[Bounds | None], *, is_generous: bool
) -> list[Column | None]:
    """The columns with the ranges in which those to come are expected, by the program `before`; `is_generous`: in
    wider ones than any that was seen."""
    wide: list[Column | None] = []
    for position, column in enumerate(columns):
        if isinstance(column, FixedColumn) and column.values.dtype.is_floating_point:
            # One without a value may have been given a range.
            column = FixedColumn(column.type, column.values, column.validity)
        elif isinstance(column, FixedColumn):
            bounds, most = column.bounds, _range_of(column.values.dtype)
            if before is not None:
                known = before.bounds[position]
                bounds = _widened(bounds, known, most) if is_generous else union_bounds((bounds, known))
            if ranges and ranges[position] is not None:
                bounds = union_bounds((bounds, ranges[position]))
            if bounds is not None and not is_within(bounds, most):
                bounds = column.bounds
            column = FixedColumn(column.type, column.values, column.validity, bounds)
        wide.append(column)
    return wide


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
