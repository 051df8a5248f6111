"""Parquet files of one table written again as one file, in bounded memory, and checked before it gets its name."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pystachio.atomic_file import replaced_at_end, typed_write_error
from pystachio.errors import DataError, InvalidRequest, ResourceExhausted
from pystachio.planner.catalog import files_of
from pystachio.rewrite.checksum import Checksums
from pystachio.rewrite.layout import ColumnLayout, Layout, choose, values_per_write
from pystachio.rewrite.sorting import in_order, require_sortable
from pystachio.rewrite.source import Sources, column_bytes, read_tables, reading, top_level_names

_SUFFIX = ".parquet"
_PAGE_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """Bytes are compressed ones of all chunks. `encoding` and `compression` are what the new file has."""

    name: str
    encoding: str
    compression: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Report:
    path: Path
    rows: int
    row_groups: int
    columns: tuple[ColumnReport, ...]
    bytes_before: int
    bytes_after: int
    verified: bool


@dataclass(slots=True)
class Progress:
    """Rows that were read of all rows to be read: twice, where the new file is checked."""

    total: int | None = None
    done: int = 0

    def progress(self) -> float | None:
        return min(1.0, self.done / self.total) if self.total else None

    def counted(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            yield table
            self.done += len(table)


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What is to be done. `sources`: files, folders or patterns, together one table; `name`: of the new file, by
    default that of the first source."""

    sources: Sequence[Path]
    output: Path
    name: str | None = None
    layout: Layout = field(default_factory=Layout)
    sort_by: Sequence[str] = ()
    overwrite: bool = False
    verify: bool = True


def rewrite(wanted: Rewriting, progress: Progress) -> Report:
    """Raises NotFound, InvalidRequest, DataError, Unauthorized, ResourceExhausted; then the folder is as it was."""
    versions = files_of([str(source) for source in wanted.sources])
    target = wanted.output / f"{wanted.name or _stem(wanted.sources[0])}{_SUFFIX}"
    _require_free(wanted, target, [version.path for version in versions])
    sources = Sources([version.path for version in versions])
    require_sortable(sources.schema, wanted.sort_by)
    progress.total = sources.rows * (2 if wanted.verify else 1)
    with _writing(target), _folder(wanted.output), replaced_at_end(target) as file:
        before = _write(wanted, sources, file, progress)
        file.flush()
        os.fsync(file.fileno())
        footer = _checked(Path(file.name), target, sources, before, progress)
        size = os.fstat(file.fileno()).st_size
    _keep_name(wanted.output)
    return Report(
        target,
        footer.num_rows,
        footer.num_row_groups,
        _columns(footer, sources),
        sum(version.size for version in versions),
        size,
        wanted.verify,
    )


def _write(wanted: Rewriting, sources: Sources, file: BinaryIO, progress: Progress) -> Checksums | None:
    sample = sources.sample()
    layout = wanted.layout
    group_rows = max(1, min(layout.row_group_rows, sources.rows))
    if len(sample) and sample.nbytes:
        group_rows = max(1, min(group_rows, layout.row_group_bytes * len(sample) // sample.nbytes))
    options = _options(sources.schema, choose(sample, group_rows, layout), sample, layout, wanted.sort_by)
    del sample
    checksums = Checksums(sources.schema, ordered=not wanted.sort_by) if wanted.verify else None
    with tempfile.TemporaryDirectory(prefix=".", suffix=".runs", dir=wanted.output) as runs:
        tables = progress.counted(_summed(sources.batches(), checksums))
        if wanted.sort_by:
            tables = in_order(tables, wanted.sort_by, Path(runs), layout.row_group_bytes)
        writer = pq.ParquetWriter(file, sources.schema, **options)
        try:
            for group in _row_groups(tables, layout):
                writer.write_table(group.cast(sources.schema), row_group_size=len(group))
        except BaseException:
            with suppress(Exception):  # of a disk that is full, once more
                writer.close()
            raise
        writer.close()
    return checksums


def _summed(tables: Iterable[pa.Table], checksums: Checksums | None) -> Iterator[pa.Table]:
    for table in tables:
        if checksums is not None:
            checksums.add(table)
        yield table


def _row_groups(tables: Iterable[pa.Table], layout: Layout) -> Iterator[pa.Table]:
    """Neighbours together, up to the layout's rows or bytes."""
    held: list[pa.Table] = []
    rows = nbytes = 0
    for table in tables:
        while len(table):
            part = table.slice(0, layout.row_group_rows - rows)
            table = table.slice(len(part))
            held.append(part)
            rows += len(part)
            nbytes += part.nbytes
            if rows >= layout.row_group_rows or nbytes >= layout.row_group_bytes:
                yield pa.concat_tables(held)
                held, rows, nbytes = [], 0, 0
    if held:
        yield pa.concat_tables(held)


def _options(
    schema: pa.Schema, chosen: dict[str, ColumnLayout], sample: pa.Table, layout: Layout, sort_by: Sequence[str]
) -> dict[str, Any]:
    """For pyarrow's writer, which wants the paths of primitive columns."""
    probe = pa.BufferOutputStream()
    pq.ParquetWriter(probe, schema).close()
    empty = pq.read_metadata(pa.BufferReader(probe.getvalue()))
    paths = {empty.schema.column(leaf).path: chosen[name] for leaf, name in enumerate(top_level_names(empty))}
    options: dict[str, Any] = {
        "version": "2.6",
        "data_page_version": "2.0",
        "data_page_size": layout.page_bytes,
        "write_batch_size": values_per_write(sample, layout.page_bytes),
        "use_dictionary": [path for path, column in paths.items() if column.dictionary],
        "compression": {path: column.codec for path, column in paths.items()} or "NONE",
        "write_statistics": True,
        "write_page_index": True,
        "write_page_checksum": True,
        "store_decimal_as_integer": True,
    }
    if "max_rows_per_page" in inspect.signature(pq.ParquetWriter).parameters:
        options["max_rows_per_page"] = _PAGE_ROWS
    if sort_by and all(name in paths for name in sort_by):
        leaves = list(paths)
        options["sorting_columns"] = [pq.SortingColumn(leaves.index(name)) for name in sort_by]
    return options


def _checked(
    partial: Path, target: Path, sources: Sources, expected: Checksums | None, progress: Progress
) -> pq.FileMetaData:
    """The footer of what was written. DataError where it is not what was read."""
    with reading(str(partial)):
        footer = pq.read_metadata(partial)
    if footer.num_rows != sources.rows:
        raise DataError(f"the files have another number of rows than they say: {footer.num_rows} and {sources.rows}")
    if expected is not None:
        found = Checksums(sources.schema, ordered=expected.ordered)
        for table in progress.counted(read_tables(str(partial), sources.schema, sources.batch_rows)):
            found.add(table)
        if differing := expected.differing(found):
            raise DataError(
                f"what was written is not what was read: {target}: columns {', '.join(differing)}",
                hint="the new file was removed; the disk or the memory of this machine may be faulty",
            )
    return footer


def _columns(footer: pq.FileMetaData, sources: Sources) -> tuple[ColumnReport, ...]:
    before, after = sources.column_bytes(), column_bytes(footer)
    encodings: dict[str, dict[str, None]] = {name: {} for name in sources.schema.names}
    codecs: dict[str, dict[str, None]] = {name: {} for name in sources.schema.names}
    for leaf, name in enumerate(top_level_names(footer)):
        for group in range(footer.num_row_groups):
            chunk = footer.row_group(group).column(leaf)
            encodings[name].update(dict.fromkeys(_encodings(chunk)))
            codecs[name][chunk.compression.lower().replace("uncompressed", "none")] = None
    return tuple(
        ColumnReport(
            name,
            "+".join(encodings[name]) or "-",
            "+".join(codecs[name]) or "-",
            before.get(name, 0),
            after.get(name, 0),
        )
        for name in sources.schema.names
    )


def _encodings(chunk: Any) -> list[str]:
    """Those of the values: a dictionary's own page is plain, and levels are run lengths."""
    if chunk.has_dictionary_page:
        return ["dictionary"]
    if chunk.physical_type == "BOOLEAN":
        return ["run lengths" if "PLAIN" not in chunk.encodings else "plain"]
    return ["plain"]


def _stem(source: Path) -> str:
    """Of a file without its suffix, of a folder its name."""
    resolved = Path(os.path.abspath(source))
    return resolved.stem if resolved.suffix == _SUFFIX else resolved.name


def _require_free(wanted: Rewriting, target: Path, sources: Sequence[str]) -> None:
    if wanted.name is not None and (os.sep in wanted.name or wanted.name.startswith(".") or "\0" in wanted.name):
        raise InvalidRequest(f"not a name of a file: {wanted.name!r}", hint="the folder is --output's")
    if any(character in target.stem for character in "*?["):
        raise InvalidRequest(f"not a name for a table: {target.stem!r}", hint="give --name")
    elsewhere = "choose another folder for --output, or another --name"
    if target.exists():
        if any(os.path.samefile(target, source) for source in sources):
            raise InvalidRequest(f"the output is one of the files to be read: {target}", hint=elsewhere)
        if target.is_dir():
            raise InvalidRequest(f"the output is a folder: {target}", hint=elsewhere)
        if not wanted.overwrite:
            raise InvalidRequest(f"the output exists: {target}", hint=f"--force replaces it; or {elsewhere}")
    for source in wanted.sources:
        if source.is_dir() and wanted.output.is_dir() and os.path.samefile(source, wanted.output):
            raise InvalidRequest(f"the output would become a part of the table it is made of: {target}", hint=elsewhere)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Errors of reading have their types already: what is left here are errors of writing."""
    try:
        yield
    except pa.ArrowMemoryError as error:
        hint = "smaller row groups: --row-group-bytes"
        raise ResourceExhausted(f"no memory to write: {target}: {error}", setting="memory", hint=hint) from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidRequest(f"the rows cannot be written: {target}: {error}") from error
    except OSError as error:
        raise typed_write_error(error, str(target)) from error


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """The folder, made if need be, and gone again if the block fails."""
    made = []
    for folder in (path, *path.parents):
        if folder.exists():
            break
        made.append(folder)
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for folder in made:
                folder.rmdir()
        raise


def _keep_name(folder: Path) -> None:
    """After a crash of the machine the file has its name still."""
    with suppress(OSError):  # some file systems do not sync folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
