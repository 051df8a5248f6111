"""What a scan reads: row groups that may hold matching rows, small neighbours together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

import numpy as np
import pyarrow as pa

from pystachio.errors import DataError
from pystachio.io_scheduler.core.request import Extent
from pystachio.operators.column import Column
from pystachio.operators.expressions import Expression
from pystachio.operators.parquet.footer import file_version
from pystachio.operators.parquet.pruning import ListedValues, row_groups
from pystachio.operators.runtime_filter import RuntimeFilter
from pystachio.operators.table import ParquetFile, Table
from pystachio.runtime.context import Context
from pystachio.runtime.hot_cache import HotGroup
from pystachio.runtime.memory import Tier

_OFFSET_BYTES = 8

Answered = tuple[tuple[int, ...], ...]
"""For each file of a table the numbers of its row groups that somebody else answers for, ascending."""

_UNITS_PER_WORKER: Final = 4
_MOST_BATCHES: Final = 4
"""Row groups are read together up to this many batches, when every worker has units enough even so."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Adjacent row groups of one file that are read and decoded together.

    `columns[position]` is the file's column at the scan's `position`: files may order their columns differently.
    """

    file: ParquetFile
    groups: tuple[int, ...]
    rows: int
    columns: tuple[int, ...]
    cache_keys: dict[Hashable, tuple[Hashable, ...]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """What caches call its columns."""

    def extents(self, positions: Sequence[int]) -> list[Extent]:
        """The column chunks of these positions."""
        chunks = [self.file.chunks(self.columns[position])[group] for position in positions for group in self.groups]
        return [Extent(chunk.offset, chunk.length) for chunk in chunks]

    def decoded_bytes(self, positions: Sequence[int]) -> int:
        """About what the columns take when they are decoded."""
        return sum(self._decoded_bytes(self.columns[position]) for position in positions)

    def _decoded_bytes(self, column: int) -> int:
        type_ = self.file.fields[column].type
        if pa.types.is_string(type_) or pa.types.is_binary(type_):
            decoded = self.file.chunks(column).decoded[list(self.groups)]
            return int(sum(decoded.tolist())) + self.rows * _OFFSET_BYTES
        return self.rows * -(-type_.bit_width // 8) if type_ != pa.null() else self.rows


@dataclass(frozen=True, slots=True)
class ScanUnits:
    """`units` in file order; the others count what statistics ruled out."""

    units: tuple[Unit, ...]
    pruned_row_groups: int
    pruned_rows: int
    skipped_bytes: int
    hot: dict[Hashable, HotGroup[Column]] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Columns of all units that were kept in memory together."""


def unit_rows(table: Table, ctx: Context) -> int:
    """How many rows of the table are read together: several batches, for what each unit costs on the loop, where such
    units are enough for all workers and small beside the memory. The same for all scans of a node, whose caches keep
    columns by unit."""
    batch_rows, workers = ctx.settings.batch_rows, ctx.settings.workers
    share = min(_MOST_BATCHES * batch_rows, table.rows // (_UNITS_PER_WORKER * workers))
    if share <= batch_rows:
        return batch_rows
    row_bytes = sum(map(_whole_bytes, table.files)) // table.rows
    fits = row_bytes * share * _UNITS_PER_WORKER * workers <= ctx.memory.budget(Tier.HOST)
    return share if fits else batch_rows


def _whole_bytes(file: ParquetFile) -> int:
    """About what all columns of the file take when they are decoded."""
    if "decoded bytes" not in file.derived:
        unit = Unit(file, tuple(range(len(file.row_group_rows))), file.rows, file.readable)
        file.derived["decoded bytes"] = unit.decoded_bytes(range(len(file.readable)))
    return int(file.derived["decoded bytes"])


def plan_units(
    table: Table,
    columns: tuple[int, ...],
    predicate: Expression | None,
    filters: Sequence[tuple[int, RuntimeFilter]],
    joined_rows: int,
    answered: Answered | None = None,
) -> ScanUnits:
    """The row groups to read; neighbours are joined up to `joined_rows` rows. `filters` by position.

    `answered`: which row groups need not be read, though they have matching rows.
    """
    return units_of(table, columns, matching_groups(table, columns, predicate, filters), joined_rows, answered)


Matching = tuple[np.ndarray, ...]
"""For each file of a table a bool for each of its row groups."""


def matching_groups(
    table: Table,
    columns: tuple[int, ...],
    predicate: Expression | None,
    filters: Sequence[tuple[int, RuntimeFilter]],
    among: Matching | None = None,
) -> Matching:
    """The row groups (of those `among` others) that statistics do not rule out."""
    found = []
    listed = ListedValues()
    for number, file in enumerate(table.files):
        file_columns = _columns_of(table, file, columns)
        matching = np.ones(len(file.row_group_rows), dtype=np.bool_) if among is None else among[number].copy()
        _rule_out(matching, file, file_columns, predicate, filters, listed)
        found.append(matching)
    return tuple(found)


def units_of(
    table: Table, columns: tuple[int, ...], matching: Matching, joined_rows: int, answered: Answered | None
) -> ScanUnits:
    """`plan_units`, given the row groups that statistics do not rule out."""
    units: list[Unit] = []
    pruned = pruned_rows = skipped = 0
    for number, file in enumerate(table.files):
        file_columns = _columns_of(table, file, columns)
        elsewhere = frozenset(() if answered is None else answered[number])
        for group, rows in enumerate(file.row_group_rows):
            if rows and matching[number][group] and group not in elsewhere:
                _append(units, file, group, rows, file_columns, joined_rows)
            elif rows and group not in elsewhere:
                pruned += 1
                pruned_rows += rows
                skipped += sum(int(file.chunks(column).lengths[group]) for column in file_columns)
    return ScanUnits(tuple(units), pruned, pruned_rows, skipped)


def in_turns(units: Sequence[Unit], link_of: Callable[[str], object]) -> list[Unit]:
    """The units such that the links of their files take turns: so all disks that a table lies on work from the start.

    Those of one link keep their order.
    """
    if all(unit.file is units[0].file for unit in units):
        return list(units)
    by_link: dict[object, list[Unit]] = {}
    link_of_file: dict[str, object] = {}
    for unit in units:
        path = unit.file.path
        if path not in link_of_file:
            link_of_file[path] = link_of(path)
        by_link.setdefault(link_of_file[path], []).append(unit)
    return [unit for turn in zip_longest(*by_link.values()) for unit in turn if unit is not None]


def require_unchanged(table: Table, answered: Answered | None = None) -> None:
    """DataError when a file is not the one whose footer the table holds; a file that is others' altogether need not be
    here at all."""
    for number, file in enumerate(table.files):
        if answered is not None and len(answered[number]) == len(file.row_group_rows) > 0:
            continue
        now = file_version(file.path)
        if now != file.version:
            raise DataError(
                f"a file changed while the table {table.name!r} was in use: {file.path}: "
                f"{file.size} bytes before, {now.size} bytes now",
                hint="run the statement again",
            )


def is_unchanged(table: Table) -> bool:
    """Whether its files are those whose footers it holds. Raises as `file_version` does where one is gone."""
    return all(file_version(file.path) == file.version for file in table.files)


def _append(
    units: list[Unit], file: ParquetFile, group: int, rows: int, columns: tuple[int, ...], joined_rows: int
) -> None:
    last = units[-1] if units else None
    if last is not None and last.file is file and last.groups[-1] + 1 == group and last.rows + rows <= joined_rows:
        units[-1] = Unit(file, (*last.groups, group), last.rows + rows, columns)
    else:
        units.append(Unit(file, (group,), rows, columns))


def _columns_of(table: Table, file: ParquetFile, columns: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(file.positions[table.schema[column].name] for column in columns)


def _rule_out(
    matching: np.ndarray,
    file: ParquetFile,
    columns: tuple[int, ...],
    predicate: Expression | None,
    filters: Sequence[tuple[int, RuntimeFilter]],
    listed: ListedValues,
) -> None:
    """Leave true in `matching`, a bool for each row group, what may match."""
    sizes = file.row_group_sizes
    if predicate is not None:
        matching &= row_groups(
            predicate,
            lambda position: file.chunks(columns[position]).ranges,
            lambda group, position: file.chunks(columns[position]).statistics[group],
            sizes,
            listed,
        )
    for position, runtime_filter in filters:
        left = np.flatnonzero(matching)
        known = file.chunks(columns[position]).ranges
        if runtime_filter.empty:
            matching[left] = False
        elif known is not None:
            may_match = runtime_filter.may_match(known.low[left], known.high[left]) | ~known.known[left]
            matching[left] = may_match & (known.nulls[left] != sizes[left])
        else:
            matching[left] = file.chunks(columns[position]).nulls[left] != sizes[left]
