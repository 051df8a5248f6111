"""What a scan reads: row groups that may hold matching rows, small neighbours together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import pyarrow as pa

from pystachio.errors import DataError
from pystachio.io_scheduler.core.request import Extent
from pystachio.operators.expressions import Expression
from pystachio.operators.parquet_footer import file_version
from pystachio.operators.parquet_pruning import may_be_true
from pystachio.operators.parquet_statistics import ChunkStatistics
from pystachio.operators.runtime_filter import RuntimeFilter
from pystachio.operators.table import ParquetFile, Table

_OFFSET_BYTES = 8


@dataclass(frozen=True, slots=True)
class Unit:
    """Adjacent row groups of one file that are read and decoded together.

    `columns[position]` is the file's column at the scan's `position`: files may order their columns differently.
    """

    file: ParquetFile
    groups: tuple[int, ...]
    rows: int
    columns: tuple[int, ...]

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
            chunks = self.file.chunks(column)
            return sum(chunks[group].decoded for group in self.groups) + self.rows * _OFFSET_BYTES
        return self.rows * -(-type_.bit_width // 8) if type_ != pa.null() else self.rows


@dataclass(frozen=True, slots=True)
class ScanUnits:
    """`units` in file order; the other two count what statistics ruled out."""

    units: tuple[Unit, ...]
    pruned_row_groups: int
    skipped_bytes: int


def plan_units(
    table: Table,
    columns: tuple[int, ...],
    predicate: Expression | None,
    filters: Sequence[tuple[int, RuntimeFilter]],
    joined_rows: int,
) -> ScanUnits:
    """The row groups to read; neighbours are joined up to `joined_rows` rows. `filters` by position."""
    units: list[Unit] = []
    pruned = skipped = 0
    for file in table.files:
        file_columns = tuple(file.positions[table.schema[column].name] for column in columns)
        for group, rows in enumerate(file.row_group_rows):
            if rows and _may_match(file, group, file_columns, predicate, filters):
                _append(units, Unit(file, (group,), rows, file_columns), joined_rows)
            elif rows:
                pruned += 1
                skipped += sum(file.chunks(column)[group].length for column in file_columns)
    return ScanUnits(tuple(units), pruned, skipped)


def in_turns(units: Sequence[Unit], link_of: Callable[[str], object]) -> list[Unit]:
    """The units such that the links of their files take turns: so all disks that a table lies on work from the start.

    Those of one link keep their order.
    """
    by_link: dict[object, list[Unit]] = {}
    link_of_file: dict[str, object] = {}
    for unit in units:
        path = unit.file.path
        if path not in link_of_file:
            link_of_file[path] = link_of(path)
        by_link.setdefault(link_of_file[path], []).append(unit)
    return [unit for turn in zip_longest(*by_link.values()) for unit in turn if unit is not None]


def require_unchanged(table: Table) -> None:
    """DataError when a file is not the one whose footer the table holds."""
    for file in table.files:
        now = file_version(file.path)
        if now != file.version:
            raise DataError(
                f"a file changed while the table {table.name!r} was in use: {file.path}: "
                f"{file.size} bytes before, {now.size} bytes now",
                hint="run the statement again",
            )


def _append(units: list[Unit], unit: Unit, joined_rows: int) -> None:
    last = units[-1] if units else None
    if (
        last is not None
        and last.file is unit.file
        and last.groups[-1] + 1 == unit.groups[0]
        and last.rows + unit.rows <= joined_rows
    ):
        units[-1] = Unit(unit.file, last.groups + unit.groups, last.rows + unit.rows, unit.columns)
    else:
        units.append(unit)


def _may_match(
    file: ParquetFile,
    group: int,
    columns: tuple[int, ...],
    predicate: Expression | None,
    filters: Sequence[tuple[int, RuntimeFilter]],
) -> bool:
    def statistics(position: int) -> ChunkStatistics:
        return file.chunks(columns[position])[group].statistics

    if predicate is not None and not may_be_true(predicate, statistics, file.row_group_rows[group]):
        return False
    for position, runtime_filter in filters:
        known = statistics(position)
        if runtime_filter.empty or known.nulls == file.row_group_rows[group]:
            return False
        if isinstance(known.low, int) and not runtime_filter.may_match(known.low, known.high):
            return False
    return True
