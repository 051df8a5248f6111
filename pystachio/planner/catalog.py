"""The tables of a session by name: what a source means, its footers, and what changed since.

A source is a Parquet file, a folder of `*.parquet` files, a glob pattern, or a list of these. Files whose names begin
with `.` or `_` are left out of folders, sub-folders are not searched, and Hive partition folders (`key=value`) are
refused rather than read without their keys.
"""

from __future__ import annotations

import difflib
import glob
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

from pystachio.errors import DataError, InvalidRequest, NotFound, PystachioError, Unauthorized, Unsupported
from pystachio.operators.parquet_footer import file_version
from pystachio.operators.table import FileVersion, ParquetFile, Table, table_of_files

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
ReadFooters = Callable[[Sequence[FileVersion]], Sequence[ParquetFile]]
"""Blocking; the footers in the order of the versions (`operators.parquet_footer.read_footers` on the node's loop)."""

_URL = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+)://")
_SUFFIX = ".parquet"
_NEAR = 0.6


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """The tables at one moment. Equal `version` means equal tables: plans are cached under it.

    `tables` has each table under its own name and, where no other table has it, under the lower-case one, which is
    what SQL makes of a name without quotes.
    """

    version: int
    tables: Mapping[str, Table]


@dataclass(frozen=True, slots=True)
class _Registration:
    paths: tuple[str, ...]
    table: Table


class Catalog:
    """Safe for several threads. Footers are read outside the lock; the last registration of a name wins."""

    def __init__(self, read_footers: ReadFooters) -> None:
        self._read_footers = read_footers
        self._lock = threading.Lock()
        self._registrations: dict[str, _Registration] = {}
        self._version = 0

    def register(self, name: str, source: Source) -> Table:
        """Make the source known as table `name`, in place of any table of that name.

        Raises NotFound, Unauthorized, DataError (a file is not Parquet, or the files' schemas differ), InvalidRequest
        (no name, no source), Unsupported (object stores, Hive partitions).
        """
        if not isinstance(name, str) or not name:
            raise InvalidRequest("a table needs a name")
        if not _is_text(name):
            raise InvalidRequest(f"the name of a table must be Unicode text: {name!r}")
        paths = _paths_of(source)
        table = self._load(name, _files_of(paths))
        with self._lock:
            self._registrations[name] = _Registration(paths, table)
            self._version += 1
        return table

    def unregister(self, name: str) -> None:
        """Forget the table; running plans keep it. NotFound when there is none."""
        with self._lock:
            if self._registrations.pop(self._exact_name(name), None) is not None:
                self._version += 1

    def table(self, name: str) -> Table:
        """The table of that name; upper and lower case count only where two tables differ in nothing else."""
        with self._lock:
            return self._registrations[self._exact_name(name)].table

    def tables(self) -> Mapping[str, Table]:
        """All tables by the name they were registered under, in the order of registration."""
        with self._lock:
            return {name: registration.table for name, registration in self._registrations.items()}

    def snapshot(self) -> CatalogSnapshot:
        """The tables as SQL sees them."""
        with self._lock:
            tables = {name: registration.table for name, registration in self._registrations.items()}
            version = self._version
        for name in list(tables):
            tables.setdefault(name.lower(), tables[name])
        return CatalogSnapshot(version, MappingProxyType(tables))

    def refresh(self) -> CatalogSnapshot:
        """Look at the sources again, and read the footers of files that are new or changed.

        A table whose source has become unreadable stays as it was: a statement that reads it gets the error, others
        go on.
        """
        with self._lock:
            registrations = list(self._registrations.items())
        for name, registration in registrations:
            try:
                versions = _files_of(registration.paths)
                if versions == registration.table.version:
                    continue
                table = self._load(name, versions)
            except PystachioError:
                continue
            with self._lock:
                if self._registrations.get(name) is registration:
                    self._registrations[name] = _Registration(registration.paths, table)
                    self._version += 1
        return self.snapshot()

    def _load(self, name: str, versions: Sequence[FileVersion]) -> Table:
        """A table of these file versions; footers that some table has already are not read again."""
        with self._lock:
            known = {file.version: file for held in self._registrations.values() for file in held.table.files}
        missing = [version for version in dict.fromkeys(versions) if version not in known]
        if missing:
            known.update(zip(missing, self._read_footers(missing), strict=True))
        return table_of_files(name, [known[version] for version in versions])

    def _exact_name(self, name: str) -> str:
        if name in self._registrations:
            return name
        alike = [other for other in self._registrations if other.lower() == name.lower()]
        if len(alike) == 1:
            return alike[0]
        raise NotFound(f"no such table: {name}", hint=name_hint(name, list(self._registrations)))


def name_hint(name: str, names: Sequence[str]) -> str | None:
    """What may have been meant: the nearest of the names, or all of them when they are few."""
    by_lower = {other.lower(): other for other in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=_NEAR)
    if near:
        return f"did you mean {by_lower[near[0]]}?"
    if not names:
        return "nothing is registered"
    return "there are: " + ", ".join(sorted(names)[:10]) + (", ..." if len(names) > 10 else "")


def _is_text(name: str) -> bool:
    """Without halves of surrogate pairs, which stand for the bytes of file names that are not UTF-8, and without NUL:
    no statement can name such a table."""
    return "\0" not in name and not any("\ud800" <= character <= "\udfff" for character in name)


def files_of(source: Source) -> tuple[FileVersion, ...]:
    """The files that a source stands for now. Raises as `Catalog.register` does for what is not there."""
    return _files_of(_paths_of(source))


def _paths_of(source: Source) -> tuple[str, ...]:
    """The source as absolute paths and patterns: a later change of the working directory changes nothing."""
    if isinstance(source, str | os.PathLike):
        return (_absolute(source),)
    if not isinstance(source, Iterable):
        raise InvalidRequest(f"not a path or a list of paths: {source!r}")
    parts = list(source)
    if not parts:
        raise InvalidRequest("a table needs at least one file: the list is empty")
    return tuple(_absolute(part) for part in parts)


def _absolute(part: str | os.PathLike[str]) -> str:
    path = os.fspath(part) if isinstance(part, str | os.PathLike) else None
    if not isinstance(path, str):
        raise InvalidRequest(f"not a path: {part!r}")
    if not path or "\0" in path:
        raise InvalidRequest(f"not a path: {path!r}")
    url = _URL.match(path)
    if url is not None and url.group(1).lower() != "file":
        raise Unsupported(f"object stores and URLs: {path}", hint="copy the files to a local disk and register those")
    if url is not None:
        path = path[url.end() :]
    return os.path.abspath(os.path.expanduser(path))


def _files_of(paths: Sequence[str]) -> tuple[FileVersion, ...]:
    """The files that the paths and patterns stand for now, those of a folder or pattern in the order of their names."""
    return tuple(version for path in paths for version in _files_of_one(path))


def _files_of_one(path: str) -> list[FileVersion]:
    # Asked for every file of every table before each statement: usually one look at it says everything.
    with suppress(PystachioError):
        return [file_version(path)]
    if os.path.isdir(path):
        return _files_of_folder(path)
    if glob.has_magic(path) and not os.path.lexists(path):
        matches = sorted(glob.glob(path, recursive=True))
        if not matches:
            raise NotFound(f"no file matches: {path}")
        return [version for match in matches for version in _files_of_one(match)]
    if not os.path.lexists(path):
        raise NotFound(f"no such file or folder: {path}", hint=_path_hint(path))
    return [file_version(path)]


def _files_of_folder(folder: str) -> list[FileVersion]:
    names, partitions = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith((".", "_")):
                    continue
                if "=" in entry.name and entry.is_dir():
                    partitions.append(entry.name)
                elif entry.name.lower().endswith(_SUFFIX) and entry.is_file():
                    names.append(entry.name)
    except PermissionError as error:
        raise Unauthorized(f"no permission to list the folder: {folder}") from error
    except OSError as error:
        raise DataError(f"cannot list the folder: {folder}: {error}") from error
    if partitions:
        raise Unsupported(
            f"Hive partition folders: {os.path.join(folder, min(partitions))}",
            hint="register the files of one partition, or a glob; the partition keys are not read from folder names",
        )
    if not names:
        raise NotFound(f"no Parquet files in the folder: {folder}", hint=f"their names must end in {_SUFFIX}")
    return [file_version(os.path.join(folder, name)) for name in sorted(names)]


def _path_hint(path: str) -> str | None:
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder)
    except OSError:
        return f"the folder {folder} does not exist either"
    near = difflib.get_close_matches(name, names, n=1, cutoff=_NEAR)
    return f"did you mean {os.path.join(folder, near[0])}?" if near else None
