"""What the planner knows about tables: sizes and ranges from footers, and predicates tried on a sample.

Everything is derived from immutable file versions and kept for as long as they are in use.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from pystachio.errors import PystachioError
from pystachio.operators.batch import Batch, column_nbytes
from pystachio.operators.column import Bounds, Column, FixedColumn
from pystachio.operators.evaluate import select
from pystachio.operators.expressions import Expression, ScalarSubquery, walk
from pystachio.operators.parquet.statistics import Statistic
from pystachio.operators.table import FileVersion, Table
from pystachio.planner.cardinality import ColumnFacts
from pystachio.planner.distinct import CountedRun, distinct_from_chunks
from pystachio.planner.profiles import Seen
from pystachio.planner.sample import (
    SAMPLE_ROWS,
    Fetch,
    KeptSamples,
    SampledRun,
    ask_kept,
    choose_runs,
    count_run,
    read_column,
)

_SAMPLE_CACHE_BYTES = 64 << 20
_TABLES = 256
_FEWEST_SEEN = 16
"""Rows of a sample whose values say something of those that were not sampled."""
_NO_MATCH = 0.5
"""Rows that count as matching when none of the sample's did."""


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """`low` and `high` in the encoding of `operators.parquet.statistics` (None: unknown), `nulls` rows that are NULL
    (None: unknown), estimated `distinct` values (None: unknown), and bytes per value in the file, uncompressed."""

    low: Statistic | None
    high: Statistic | None
    nulls: int | None
    distinct: float | None
    average_bytes: float


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """`columns` by position in the table's schema; None for nested columns."""

    rows: int
    columns: tuple[ColumnStatistics | None, ...]


Version = tuple[FileVersion, ...]


class StatisticsCache:
    """Statistics and samples by file version. Safe for several threads; blocking, so never on the node's loop."""

    def __init__(self, fetch: Fetch, *, sample_rows: int = SAMPLE_ROWS, kept: KeptSamples | None = None) -> None:
        self._fetch = fetch
        self._kept = kept
        self._sample_rows = sample_rows
        self._lock = threading.Lock()
        self._columns: OrderedDict[Version, dict[int, ColumnStatistics]] = OrderedDict()
        self._runs: OrderedDict[Version, tuple[SampledRun, ...]] = OrderedDict()
        self._samples: OrderedDict[tuple[Version, int], Column] = OrderedDict()
        self._sample_bytes = 0

    def statistics(self, table: Table) -> TableStatistics:
        """Everything the footers tell. DataError when they contradict their files."""
        nested = [pa.types.is_nested(field.type) for field in table.schema]
        columns = (None if nested[i] else self.column(table, i) for i in range(len(table.schema)))
        return TableStatistics(table.rows, tuple(columns))

    def column(self, table: Table, column: int) -> ColumnStatistics:
        """One column's; the first call for a file version walks its footers."""
        with self._lock:
            known = self._columns.setdefault(table.version, {})
            self._columns.move_to_end(table.version)
            if len(self._columns) > _TABLES:
                self._columns.popitem(last=False)
        if column not in known:
            known[column] = self._column_statistics(table, column)
        return known[column]

    def _column_statistics(self, table: Table, column: int) -> ColumnStatistics:
        """From the footer; where that says nothing of distinct values, some are counted."""
        found = column_statistics(table, column)
        if found.distinct is not None:
            return found
        try:
            run = count_run(table, column, self._fetch)
        except PystachioError:  # a scan will tell, if one ever reads it
            return found
        return column_statistics(table, column, run)

    def sample(self, table: Table, columns: Sequence[int]) -> Batch:
        """The same at most 20,000 rows at every call: `columns` are positions in the table's schema."""
        runs = self._sampled_runs(table)
        sampled = tuple(self._sampled_column(table, column, runs) for column in columns)
        return Batch(sampled, sum(run.count for run in runs), None)

    def sampled_rows(self, table: Table) -> int:
        """How many rows a sample has."""
        return sum(run.count for run in self._sampled_runs(table))

    def expect(self, columns: Iterable[tuple[Table, int]]) -> Callable[[], None] | None:
        """Samples of these columns will be asked for: those of them that are kept begin to be read, all at once. What
        is returned waits until they are there."""
        if self._kept is None:
            return None
        with self._lock:
            missing = {
                (table.version, column): table
                for table, column in columns
                if (table.version, column) not in self._samples
            }
        if not missing:
            return None
        ended = ask_kept(
            [(table, column, self._sampled_runs(table)) for (_, column), table in missing.items()], self._kept
        )

        def wait() -> None:
            for key, found in zip(missing, ended(), strict=True):
                if found is not None:
                    self._keep(key, found)

        return wait

    def facts(self, tables: Mapping[str, Table]) -> TableFacts:
        """What the estimator asks (`planner.cardinality.TableFacts`), about these tables."""
        return TableFacts(self, tables)

    def _sampled_runs(self, table: Table) -> tuple[SampledRun, ...]:
        with self._lock:
            runs = self._runs.get(table.version)
            if runs is None:
                runs = self._runs[table.version] = choose_runs(table, self._sample_rows)
                if len(self._runs) > _TABLES:
                    self._runs.popitem(last=False)
        return runs

    def _sampled_column(self, table: Table, column: int, runs: Sequence[SampledRun]) -> Column:
        key = table.version, column
        with self._lock:
            found = self._samples.get(key)
            if found is not None:
                self._samples.move_to_end(key)
                return found
        read = read_column(table, column, runs, self._fetch, self._kept)
        self._keep(key, read)
        return read

    def _keep(self, key: tuple[Version, int], read: Column) -> None:
        with self._lock:
            if key not in self._samples:
                self._samples[key] = read
                self._sample_bytes += column_nbytes(read)
            while self._sample_bytes > _SAMPLE_CACHE_BYTES and len(self._samples) > 1:
                _, dropped = self._samples.popitem(last=False)
                self._sample_bytes -= column_nbytes(dropped)


class TableFacts:
    """The statistics of a catalog's tables by name, for one plan."""

    def __init__(self, cache: StatisticsCache, tables: Mapping[str, Table]) -> None:
        self._cache = cache
        self._tables = tables
        self._expected: Callable[[], None] | None = None
        self._whole: dict[str, SampledRows | None] = {}

    def rows(self, table: str) -> int:
        return self._tables[table].rows

    def column(self, table: str, column: int) -> ColumnFacts:
        held = self._tables[table]
        if pa.types.is_nested(held.schema[column].type):
            return ColumnFacts()
        known = self._cache.column(held, column)
        nulls = 0.0 if known.nulls is None or not held.rows else known.nulls / held.rows
        bounds = (known.low, known.high) if isinstance(known.low, int) and isinstance(known.high, int) else None
        return ColumnFacts(known.distinct, nulls, bounds)

    def expect(self, columns: Iterable[tuple[str, int]]) -> None:
        """`StatisticsCache.expect`, for what the estimator will ask about predicates over these columns."""
        with suppress(PystachioError):  # whoever asks is told
            self._expected = self._cache.expect((self._tables[table], column) for table, column in columns)

    def _await_expected(self) -> None:
        """Nothing is read twice."""
        if self._expected is not None:
            expected, self._expected = self._expected, None
            with suppress(PystachioError):  # whoever asks is told
                expected()

    def everything(self, table: str) -> SampledRows | None:
        """All rows of the sample; None for a table without rows."""
        self._await_expected()
        if table not in self._whole:
            held = self._tables[table]
            length = self._cache.sampled_rows(held)
            self._whole[table] = SampledRows(self._cache, held, length, None) if length else None
        return self._whole[table]

    def matching(self, table: str, columns: tuple[int, ...], predicate: Expression) -> SampledRows | None:
        """The sample's rows for which `predicate` over `columns` is true; None when it cannot be tried.

        A sample that cannot be read or a predicate that fails on it (a division by zero, an overflow) is no answer: the
        query itself will tell, if it ever gets to those rows.
        """
        if any(isinstance(node, ScalarSubquery) for node in walk(predicate)):
            return None
        held = self._tables[table]
        self._await_expected()
        try:
            sample = self._cache.sample(held, columns)
            return SampledRows(self._cache, held, sample.length, select(predicate, sample)) if sample.length else None
        except PystachioError:
            return None


class SampledRows:
    """`cardinality.Matching`: some of a sample's `length` rows (None: all)."""

    def __init__(self, cache: StatisticsCache, table: Table, length: int, rows: torch.Tensor | None) -> None:
        self._cache = cache
        self._table = table
        self._length = length
        self._rows = rows
        self._seen: dict[int, SeenValues | None] = {}

    @property
    def share(self) -> float:
        matching = self._length if self._rows is None else self._rows.shape[0]
        return max(matching, _NO_MATCH) / self._length

    def seen(self, column: int) -> SeenValues | None:
        """The column's values in these rows; None where they are too few to tell."""
        if column not in self._seen:
            self._seen[column] = self._look_at(column)
        return self._seen[column]

    def _look_at(self, column: int) -> SeenValues | None:
        is_all = self._length == self._table.rows
        rows = self._length if self._rows is None else self._rows.shape[0]
        if rows < (1 if is_all else _FEWEST_SEEN):
            return None
        try:
            (sampled,) = self._cache.sample(self._table, (column,)).columns
        except PystachioError:  # a scan will tell, if one ever reads it
            return None
        if not isinstance(sampled, FixedColumn) or sampled.values.dtype.is_floating_point:
            return None
        values, validity = sampled.values, sampled.validity
        if self._rows is not None:
            values = values.index_select(0, self._rows)
            validity = None if validity is None else validity.index_select(0, self._rows)
        values = values if validity is None else values[validity]
        if values.shape[0] < (1 if is_all else _FEWEST_SEEN):
            return None
        return SeenValues(values.numpy(), is_all=is_all)


class SeenValues:
    """`profiles.Seen`."""

    def __init__(self, values: np.ndarray, *, is_all: bool) -> None:
        self.rows = len(values)
        self.is_all = is_all
        self.range: Bounds = int(values.min()), int(values.max())
        self._values = values
        self._shares: dict[int, tuple[Seen, float]] = {}

    def share_in(self, others: Seen) -> float:
        """The share of these rows whose value is one of the others; above 0."""
        assert isinstance(others, SeenValues), "both are of samples"
        known = self._shares.get(id(others))
        if known is None:
            shared = int(np.isin(self._values, others._values).sum())
            known = self._shares[id(others)] = others, max(shared, _NO_MATCH) / self.rows
        return known[1]


def column_statistics(table: Table, column: int, run: CountedRun | None = None) -> ColumnStatistics:
    """From the column's chunks in all files, and from counted rows where there are some."""
    chunks, type_ = table.chunks(column), table.schema[column].type
    low, high = chunks.limits
    return ColumnStatistics(
        low=low,
        high=high,
        nulls=sum(chunks.nulls.tolist()) if (chunks.nulls >= 0).all() else None,
        distinct=distinct_from_chunks(chunks, type_, run),
        average_bytes=float(chunks.decoded.sum(dtype=np.float64)) / max(1, table.rows),
    )
