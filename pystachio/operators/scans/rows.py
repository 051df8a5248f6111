"""The worker's half of a scan: from the fetched bytes of some row groups to the batches that survive.

Columns that the predicate and the runtime filters read are decoded first; the others only when a row survives, and
only surviving rows of them are gathered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from pystachio.operators.batch import Batch
from pystachio.operators.chunks.columns import ChunkColumns, FetchedChunk
from pystachio.operators.column import Bounds, Column
from pystachio.operators.evaluate import select
from pystachio.operators.expressions import Expression, fields_of, shift_fields
from pystachio.operators.hot_columns import HotColumns, HotUnit
from pystachio.operators.kernels.selection import slice_column, take
from pystachio.operators.parquet.decode import FetchedExtents, RowGroupDecoder
from pystachio.operators.parquet.dictionary import SharedDictionary
from pystachio.operators.runtime_filter import RuntimeFilter
from pystachio.operators.scans.pace import Pace
from pystachio.operators.scans.units import Unit
from pystachio.records import record
from pystachio.runtime.metrics import OperatorMetrics

_TRIAL_ROWS = 1 << 18
_USELESS = 0.9
"""A runtime filter that lets this share of the first `_TRIAL_ROWS` rows pass is not worth its gather."""


@record
class Piece:
    """Rows [start, stop) of a unit; `survivors` are positions from `start`, None when all survive."""

    start: int
    stop: int
    survivors: torch.Tensor | None


class FilterUse:
    """A runtime filter on the scan's column at `position`, and whether it has proved useful. For several threads."""

    def __init__(self, position: int, runtime_filter: RuntimeFilter) -> None:
        self.position = position
        self.filter = runtime_filter
        self._lock = threading.Lock()
        self._seen = 0
        self._passed = 0

    @property
    def is_useful(self) -> bool:
        return self._seen < _TRIAL_ROWS or self._passed < _USELESS * self._seen

    def select(self, column: Column) -> torch.Tensor | None:
        rows = self.filter.select(column)
        self.count(len(column), len(column) if rows is None else len(rows))
        return rows

    def count(self, seen: int, passed: int) -> None:
        """So many rows were tested, and so many of them passed."""
        with self._lock:
            self._seen += seen
            self._passed += passed


@dataclass(frozen=True, slots=True, eq=False)
class ReadOrder:
    """Which positions are read when. Those `tested` by the predicate, and those of filters, come `first` and decide
    which rows survive; the `rest` is only put out. `test` is the predicate over the columns `tested`."""

    tested: tuple[int, ...]
    test: Expression | None
    first: tuple[int, ...]
    rest: tuple[int, ...]

    @classmethod
    def of(cls, predicate: Expression | None, filters: Iterable[int], output: Iterable[int]) -> ReadOrder:
        """`filters`: the positions that they test."""
        tested = () if predicate is None else tuple(sorted(fields_of(predicate)))
        test = None if predicate is None else shift_fields(predicate, tested.index)
        first = {*filters, *tested}
        return cls(tested, test, tuple(sorted(first)), tuple(sorted(set(output) - first)))


@dataclass(frozen=True, eq=False)
class RowReader:
    """What a scan does with the bytes of a unit. Positions are in the scan's `columns`.

    `dictionaries[position]`: the shared dictionary of a column that is read as codes. `bounds[position]`: the range of
    an integer-like column in the whole table, by the footers. `hot` and `chunks` are given the columns that need not be
    decoded again.
    """

    predicate: Expression | None
    filters: tuple[FilterUse, ...]
    output: tuple[int, ...]
    dictionaries: dict[int, SharedDictionary]
    bounds: tuple[Bounds | None, ...]
    batch_rows: int
    hot: HotColumns | None = None
    chunks: ChunkColumns | None = None
    metrics: OperatorMetrics | None = None
    kept: dict[Hashable, object] = field(default_factory=dict, repr=False)
    """What the runs of the scan keep for each other; so is `pace`."""
    pace: Pace = field(default_factory=Pace, repr=False)
    known_order: ReadOrder | None = field(default=None, repr=False)
    """What `order` is, if the scan knows it from another run."""

    @cached_property
    def order(self) -> ReadOrder:
        return self.known_order or ReadOrder.of(self.predicate, (use.position for use in self.filters), self.output)

    @property
    def first(self) -> tuple[int, ...]:
        return self.order.first

    @property
    def tested(self) -> tuple[int, ...]:
        return self.order.tested

    @property
    def test(self) -> Expression | None:
        return self.order.test

    @property
    def rest(self) -> tuple[int, ...]:
        return self.order.rest

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """All that are read, ascending."""
        return tuple(sorted({*self.first, *self.rest}))

    @property
    def narrows(self) -> bool:
        """Whether the first rows will tell which units are needed: until then reading ahead may be in vain."""
        return False

    def rules_out(self, unit: Unit) -> bool:
        """Whether nobody needs the unit's rows any more."""
        return False

    def skipped(self, unit: Unit, start: int, stop: int) -> None:
        """These rows of the unit were ruled out."""

    def pieces(self, rows: int) -> list[tuple[int, int]]:
        """The unit's rows in equal parts of at most about `batch_rows`."""
        parts = max(1, -(-rows // self.batch_rows))
        return [(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]

    def select(self, columns: dict[int, Column], start: int, stop: int) -> Piece:
        """Which of the rows [start, stop) survive the predicate and the filters; `columns` has all of `first`."""
        length = stop - start
        survivors: torch.Tensor | None = None
        if self.test is not None:
            sliced = tuple(slice_column(columns[position], start, stop) for position in self.tested)
            survivors = select(self.test, Batch(sliced, length, None))
        for use in self.filters:
            if survivors is not None and len(survivors) == 0:
                break
            if use.is_useful:
                survivors = narrow(survivors, use, slice_column(columns[use.position], start, stop))
        return Piece(start, stop, survivors)

    def batch(self, columns: dict[int, Column], piece: Piece) -> Batch:
        """The surviving rows of the output columns."""
        sliced = [slice_column(columns[position], piece.start, piece.stop) for position in self.output]
        if piece.survivors is None:
            return Batch(tuple(sliced), piece.stop - piece.start, None)
        survivors = piece.survivors
        return Batch(tuple(take(column, survivors) for column in sliced), len(survivors), None)


@record(eq=False)
class ScanRows:
    """Rows of a unit before their columns are gathered, for whoever can test and gather in one go.

    `columns` has all that the reader wants. `is_tested`: the rows are those of `piece`, else its survivors are still
    unknown.
    """

    reader: RowReader
    columns: dict[int, Column]
    piece: Piece
    is_tested: bool
    unit: UnitRows | None = None
    hot: HotUnit | None = None
    """Of rows whose columns stay in memory."""

    def found(self, survivors: int) -> None:
        """So many of the rows have survived the tests."""
        if self.unit is not None:
            self.unit.survivors += survivors

    @property
    def unit_rows(self) -> int:
        """How many rows the unit has, of which these are some."""
        return self.length if self.unit is None else self.unit.unit.rows

    @property
    def length(self) -> int:
        survivors = self.piece.survivors
        return self.piece.stop - self.piece.start if survivors is None else len(survivors)

    @property
    def by_position(self) -> tuple[Column | None, ...]:
        """All columns of the scan; None for those that were not needed."""
        return tuple(self.columns.get(position) for position in range(len(self.reader.bounds)))

    @property
    def variety(self) -> tuple[object, ...]:
        """What else a program for them depends on."""
        useful = () if self.is_tested else tuple(use.is_useful for use in self.reader.filters)
        return self.reader, self.is_tested, useful

    def split(self, rows: int) -> tuple[ScanRows, ScanRows]:
        """The first `rows` of untested ones, and the others."""
        assert self.piece.survivors is None
        start, stop = self.piece.start, self.piece.stop
        first, rest = Piece(start, start + rows, None), Piece(start + rows, stop, None)
        return self._of(first), self._of(rest)

    def _of(self, piece: Piece) -> ScanRows:
        return ScanRows(self.reader, self.columns, piece, self.is_tested, self.unit, self.hot)

    def batches(self) -> Iterator[Batch]:
        """The surviving rows of the output columns."""
        if self.is_tested:
            yield self.reader.batch(self.columns, self.piece)
        else:
            first = self.piece.start
            for start, stop in self.reader.pieces(self.length):
                batch = self.reader.batch(self.columns, self.reader.select(self.columns, first + start, first + stop))
                self.found(batch.length)
                yield batch


class LostChunks(Exception):
    """Columns at these positions, which were stored, are corrupt: Parquet has them. Nothing was put out. It does not
    leave the scan."""

    def __init__(self, positions: Sequence[int]) -> None:
        super().__init__(positions)
        self.positions = positions


@dataclass(slots=True, eq=False)
class UnitRows:
    """A unit on its way through a worker: what is decoded so far, and the pieces in which rows survive.

    `stored` columns are taken from the chunk cache's bytes instead of Parquet's when they are decoded.
    """

    reader: RowReader
    unit: Unit
    columns: dict[int, Column] = field(default_factory=dict)
    stored: dict[int, FetchedChunk] = field(default_factory=dict)
    alive: tuple[Piece, ...] = ()
    survivors: int = 0
    """Of the rows that were put out before they were tested."""
    _opened: tuple[FetchedExtents, RowGroupDecoder] | None = None

    def missing(self, positions: Sequence[int]) -> list[int]:
        """Those that are not decoded yet."""
        return [position for position in positions if position not in self.columns]

    def decode(self, positions: Sequence[int], source: FetchedExtents) -> None:
        """Add columns to those that are decoded; one thread per source at a time. Raises LostChunks."""
        self.decode_stored(positions)
        if not self.missing(positions):
            return
        decoder = self._decoder(source)
        before = decoder.through_pyarrow
        for position in positions:
            if position not in self.columns:
                shared, bounds = self.reader.dictionaries.get(position), self.reader.bounds[position]
                started = time.thread_time()
                column = self.columns[position] = decoder.decode(self.unit.columns[position], shared, bounds=bounds)
                seconds = time.thread_time() - started
                if self.reader.hot is not None:
                    self.reader.hot.keep(self.unit, position, column, seconds)
                if self.reader.chunks is not None:
                    self.reader.chunks.offer(self.unit, position, column, seconds)
        if self.reader.metrics is not None and decoder.through_pyarrow > before:
            self.reader.metrics.count("columns decoded by pyarrow", decoder.through_pyarrow - before)

    def decode_stored(self, positions: Iterable[int]) -> None:
        """Add those of the columns that the chunk cache has. Raises LostChunks when some are not as they were stored,
        and are to be read from Parquet."""
        chunks = self.reader.chunks
        stored = {position: self.stored.pop(position) for position in positions if position in self.stored}
        if chunks is None or not stored:
            return
        found = chunks.decode(self.unit, stored)
        self.columns.update((position, column) for position, column in found.items() if column is not None)
        lost = [position for position, column in found.items() if column is None]
        if lost:
            raise LostChunks(lost)

    def select(self, source: FetchedExtents) -> None:
        """Decode what decides, and find the pieces in which rows survive."""
        self.decode(self.reader.first, source)
        self.keep(self.reader.select(self.columns, *rows) for rows in self.reader.pieces(self.unit.rows))

    def keep(self, pieces: Iterable[Piece]) -> None:
        """Go on with those of the pieces in which a row survives."""
        self.alive = tuple(piece for piece in pieces if piece.survivors is None or len(piece.survivors))

    def put_out(self, source: FetchedExtents) -> Iterator[ScanRows]:
        """Decode the rest where a row survives."""
        if self.alive:
            self.decode(self.reader.rest, source)
        for piece in self.alive:
            yield from self.put_out_piece(piece)

    def put_out_piece(self, piece: Piece) -> Iterator[ScanRows]:
        """A piece's rows when all columns are decoded."""
        yield ScanRows(self.reader, self.columns, piece, is_tested=True, unit=self)

    def decode_and_put_out(self, source: FetchedExtents) -> Iterator[ScanRows]:
        """All of the unit's rows, untested."""
        self.decode((*self.reader.first, *self.reader.rest), source)
        yield from self.put_out_untested(Piece(0, self.unit.rows, None))

    def put_out_untested(self, piece: Piece) -> Iterator[ScanRows]:
        """A piece's rows when all columns are decoded, of which none was tested."""
        yield ScanRows(self.reader, self.columns, piece, is_tested=False, unit=self)

    def select_and_put_out(self, source: FetchedExtents) -> Iterator[ScanRows]:
        """The unit's rows that survive, unless all columns are there already."""
        if self.missing((*self.reader.first, *self.reader.rest)):
            self.select(source)
            yield from self.put_out(source)
        else:
            yield from self.decode_and_put_out(source)

    def _decoder(self, source: FetchedExtents) -> RowGroupDecoder:
        if self._opened is not None and self._opened[0] is source:
            return self._opened[1]
        coded = [self.unit.columns[p] for p, shared in self.reader.dictionaries.items() if not shared.overflowed]
        decoder = RowGroupDecoder(self.unit.file, self.unit.groups, source, coded)
        self._opened = source, decoder
        return decoder


def narrow(survivors: torch.Tensor | None, use: FilterUse, column: Column) -> torch.Tensor | None:
    """Of the rows `survivors` (None: all) those that pass the filter too."""
    if survivors is None:
        return use.select(column)
    passing = use.select(take(column, survivors))
    return survivors if passing is None else survivors.index_select(0, passing)
