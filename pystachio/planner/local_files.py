"""The files on this machine that paths and patterns stand for, as they are at one moment.

A folder is a table of its `*.parquet` files. Those whose names begin with `.` or `_` are left out, sub-folders are not
searched, and Hive partition folders (`key=value`) are refused rather than read without their keys.
"""

from __future__ import annotations

import difflib
import errno
import glob
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from pystachio.errors import DataError, NotFound, PystachioError, Unauthorized, Unsupported
from pystachio.io_scheduler.os_errors import from_os_error
from pystachio.operators.parquet.footer import file_version
from pystachio.operators.table import FileVersion
from pystachio.planner.file_patterns import fixed_folder, matching, require_time

Admits = Callable[[str], bool]

_SUFFIX = ".parquet"
_NEAR = 0.6
_MOST_LOOKS = 10
_STEADY_LOOKS = 5
"""So often is looked again where a folder has changed meanwhile, though nothing is gone that was there: not all file
systems list a file that replaces another one then."""
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


@dataclass(slots=True)
class FoundFiles:
    """`missing` has the paths and patterns that nothing here is of, and what to say of each. Of all others `files` has
    all that there is."""

    files: list[FileVersion] = field(default_factory=list)
    missing: dict[str, NotFound] = field(default_factory=dict)


class _Removed(Exception):
    """A file is gone that was there a moment ago. It does not leave this module."""


def local_files(paths: Sequence[str], *, admits: Admits | None = None) -> tuple[FileVersion, ...]:
    """The files that the paths and patterns stand for now, those of a folder or pattern in the order of their names.

    Of what is in a folder or matches a pattern only what `admits` is there: nothing is said of the rest. Raises
    NotFound for a path or pattern that nothing is of, and as `look_for`.
    """
    found = look_for(paths, admits=admits)
    for nowhere in found.missing.values():
        raise nowhere
    return tuple(found.files)


def look_for(paths: Sequence[str], *, admits: Admits | None = None) -> FoundFiles:
    """As `local_files`, where others may have what is missing here.

    Raises what hides files that may be there (Unauthorized, DataError, ResourceExhausted), Unsupported for Hive
    partition folders, ResourceExhausted as `file_patterns.require_time`, and DataError where files are replaced again
    and again while they are looked for.
    """
    found = FoundFiles()
    for path in paths:
        try:
            found.files += _files_of_one(path, admits)
        except NotFound as nowhere:
            found.missing[path] = nowhere
    return found


def _files_of_one(path: str, admits: Admits | None) -> list[FileVersion]:
    require_time(path)
    # Asked for every file of every table before each statement: usually one look at it says everything.
    with suppress(PystachioError):
        return [file_version(path)]
    if os.path.isdir(path):
        return _settled(path, path, partial(_files_of_folder, path, admits))
    if _is_there(path):
        return [file_version(path)]
    if glob.has_magic(path):
        return _settled(path, fixed_folder(path), partial(_files_that_match, path, admits))
    raise NotFound(f"no such file or folder: {path}", hint=_path_hint(path, admits))


def _settled(path: str, folder: str, look: Callable[[], list[FileVersion]]) -> list[FileVersion]:
    """What one look finds during which nothing was removed: what replaces it may have come where the look had been."""
    for number in range(_MOST_LOOKS):
        with suppress(_Removed):
            before = _changed_ns(folder)
            found = look()
            if number >= _STEADY_LOOKS or _changed_ns(folder) == before:
                return found
    raise DataError(
        f"files are replaced again and again while they are looked for: {path}", hint="run the statement again"
    )


def _files_that_match(pattern: str, admits: Admits | None) -> list[FileVersion]:
    matches = [match for match in matching(pattern, admits) if admits is None or admits(match)]
    if not matches:
        raise NotFound(f"no file matches: {pattern}")
    # A pattern may match a folder and what is in it.
    found: dict[FileVersion, None] = {}
    empty: NotFound | None = None
    for match in matches:
        if os.path.isdir(match):
            try:
                found.update(dict.fromkeys(_files_of_folder(match, admits)))
            except NotFound as error:
                empty = error
        elif os.path.islink(match) and not os.path.exists(match):
            raise _leads_nowhere(match)
        else:
            found[_version_of_listed(match)] = None
    if not found and empty is not None:
        raise empty
    return list(found)


def _files_of_folder(folder: str, admits: Admits | None) -> list[FileVersion]:
    names, partitions = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                require_time(folder)
                if entry.name.startswith((".", "_")) or not (admits is None or admits(entry.path)):
                    continue
                if "=" in entry.name and _holds(entry.is_dir):
                    partitions.append(entry.name)
                elif entry.name.lower().endswith(_SUFFIX):
                    if _holds(entry.is_file):
                        names.append(entry.name)
                    elif entry.is_symlink() and not os.path.exists(entry.path):
                        raise _leads_nowhere(entry.path)
    except PermissionError as error:
        raise Unauthorized(f"no permission to list the folder: {folder}") from error
    except OSError as error:
        raise from_os_error(error, folder) from error
    if partitions:
        raise Unsupported(
            f"Hive partition folders: {os.path.join(folder, min(partitions))}",
            hint="register the files of one partition, or a glob; the partition keys are not read from folder names",
        )
    if not names:
        raise NotFound(f"no Parquet files in the folder: {folder}", hint=f"their names must end in {_SUFFIX}")
    return [_version_of_listed(os.path.join(folder, name)) for name in sorted(names)]


def _holds(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except OSError as error:
        if error.errno in _NOT_THERE:  # a link to itself
            return False
        raise


def _leads_nowhere(link: str) -> DataError:
    return DataError(f"a link leads nowhere: {link}", hint="remove it, or bring back what it leads to")


def _changed_ns(folder: str) -> int:
    """When something was last added to the folder or removed; 0 where that cannot be told."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


def _version_of_listed(path: str) -> FileVersion:
    require_time(path)
    try:
        return file_version(path)
    except NotFound:
        raise _Removed from None


def _is_there(path: str) -> bool:
    """Whether there is anything of this name, a link that leads nowhere included, or it cannot be told."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno not in _NOT_THERE
    return True


def _path_hint(path: str, admits: Admits | None) -> str | None:
    folder, name = os.path.split(path)
    if admits is not None and not admits(folder):
        return None
    try:
        names = os.listdir(folder)
    except OSError:
        return f"the folder {folder} does not exist either"
    near = difflib.get_close_matches(name, names, n=1, cutoff=_NEAR)
    return f"did you mean {os.path.join(folder, near[0])}?" if near else None
