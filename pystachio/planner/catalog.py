"""The tables of a session by name: what a source means, its footers, and what changed since.

A source is a Parquet file, a folder of `*.parquet` files, a glob pattern, or a list of these (`local_files`).
"""

from __future__ import annotations

import difflib
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

from pystachio.errors import DataError, InvalidRequest, NotFound, PystachioError, Unsupported
from pystachio.operators.table import FileVersion, ParquetFile, Table, table_of_files
from pystachio.planner.local_files import local_files

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
ReadFooters = Callable[[Sequence[FileVersion]], Sequence[ParquetFile]]
"""Blocking; the footers in the order of the versions (`operators.parquet.footer.read_footers` on the node's loop)."""

_URL = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+)://")
_NEAR = 0.6


class FindFiles(Protocol):
    """Blocking; what absolute paths and patterns stand for, which were the files `known` when somebody last looked.

    Raises as `Catalog.register` for what is not there.
    """

    def __call__(self, paths: Sequence[str], known: Sequence[FileVersion] = ()) -> tuple[FileVersion, ...]: ...


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """The tables at one moment. Equal `version` means equal tables: plans are cached under it.

    `tables` has each table under its own name and, where no other table has it, under the lower-case one, which is
    what SQL makes of a name without quotes. `unreadable` says of those of them whose source cannot be read as it is now
    why not: their table is of what was there before.
    """

    version: int
    tables: Mapping[str, Table]
    unreadable: Mapping[str, PystachioError] = field(default_factory=dict)

    def require_readable(self, names: Iterable[str]) -> None:
        """Raises why one of these tables cannot be read."""
        for name in names:
            if name in self.unreadable:
                raise self.unreadable[name]


@dataclass(frozen=True, slots=True)
class _Registration:
    paths: tuple[str, ...]
    table: Table


class Catalog:
    """Safe for several threads. Footers are read outside the lock; the last registration of a name wins."""

    def __init__(self, read_footers: ReadFooters, find_files: FindFiles | None = None) -> None:
        """`find_files` says what paths stand for; by default what this machine has."""
        self._read_footers = read_footers
        self._find_files = _files_here if find_files is None else find_files
        self._lock = threading.Lock()
        self._registrations: dict[str, _Registration] = {}
        self._version = 0
        self._latest: CatalogSnapshot | None = None

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
        table = self._look(name, paths)
        with self._lock:
            self._registrations[name] = _Registration(paths, table)
            self._version += 1
        return table

    def adopt(self, other: Catalog) -> None:
        """Have the tables that the other one has now, in place of any of their names. No file is looked at."""
        with other._lock:
            registrations = dict(other._registrations)
        with self._lock:
            self._registrations.update(registrations)
            self._version += 1

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
            if self._latest is None or self._latest.version != self._version:
                tables = {name: registration.table for name, registration in self._registrations.items()}
                for name in list(tables):
                    tables.setdefault(name.lower(), tables[name])
                self._latest = CatalogSnapshot(self._version, MappingProxyType(tables))
            return self._latest

    def refresh(self, names: Collection[str] | None = None) -> CatalogSnapshot:
        """Look at the sources again, and read the footers of files that are new or changed: of all tables, or of those
        that `names` are of, as a snapshot has them.

        A table whose source has become unreadable stays as it was: a statement that reads it gets the error, others
        go on. So do all where only a node does not answer.
        """
        with self._lock:
            registrations = [
                (name, registration)
                for name, registration in self._registrations.items()
                if names is None or name in names or name.lower() in names
            ]
        unreadable: dict[str, PystachioError] = {}
        for name, registration in registrations:
            try:
                table = self._look(name, registration.paths, registration.table)
            except (DataError, InvalidRequest) as error:
                unreadable[name] = error
                continue
            except PystachioError:
                continue
            if table is registration.table:
                continue
            with self._lock:
                if self._registrations.get(name) is registration:
                    self._registrations[name] = _Registration(registration.paths, table)
                    self._version += 1
        snapshot = self.snapshot()
        if not unreadable:
            return snapshot
        why = {name: unreadable[table.name] for name, table in snapshot.tables.items() if table.name in unreadable}
        return replace(snapshot, unreadable=why)

    def _look(self, name: str, paths: tuple[str, ...], before: Table | None = None) -> Table:
        """The table as its source is now. What fails is tried again when the files have changed meanwhile."""
        known = () if before is None else before.version
        versions = self._find_files(paths, known)
        if before is not None and versions == known:
            return before
        try:
            return self._load(name, versions)
        except (DataError, InvalidRequest):
            changed = self._find_files(paths, known)
            if changed == versions:
                raise
        return self._load(name, changed)

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
    return local_files(_paths_of(source))


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


def _files_here(paths: Sequence[str], known: Sequence[FileVersion] = ()) -> tuple[FileVersion, ...]:
    return local_files(paths)
