"""Which files and folders match a pattern, as `glob.glob(pattern, recursive=True)` understands patterns.

Other than that function this one goes through each folder once, however many `**` there are, never into a folder from
within itself, and it stops when its time is over: clients name patterns, and a thread cannot be ended from outside.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from pystachio.errors import ResourceExhausted
from pystachio.io_scheduler.os_errors import from_os_error

_ANY_DEPTH = "**"
_HIDDEN = "."
_PASSED_OVER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM})
"""Where a path leads nowhere, or where others may not look, nothing matches. What else goes wrong (no descriptor is
left, a disk fails) hides files that do: without them an answer would be wrong."""
_Identity = tuple[int, int]

# Who allows the time is far above those who look, whose function is the same with and without a limit.
_limit: ContextVar[tuple[float, float] | None] = ContextVar("limit of looks at files", default=None)
"""When it is reached by the monotonic clock, and the seconds that were allowed."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """What is looked at in the block may take so long: `require_time` raises then."""
    token = _limit.set((time.monotonic() + seconds, seconds))
    try:
        yield
    finally:
        _limit.reset(token)


def time_left() -> float | None:
    """Seconds of the limit, at least 0; None where there is none."""
    limit = _limit.get()
    return None if limit is None else max(0.0, limit[0] - time.monotonic())


def require_time(source: str) -> None:
    """Raises ResourceExhausted when looking has taken as long as it may."""
    limit = _limit.get()
    if limit is not None and time.monotonic() > limit[0]:
        raise ResourceExhausted(
            f"the source has too much to look through: {source}: it was not done after {limit[1]:g} seconds",
            setting="cluster_file_seconds",
            hint="begin the pattern further down, nearer to the files, or name fewer files",
        )


@dataclass(frozen=True, slots=True)
class _Line:
    """The folders that a path leads through, from where its `**` began."""

    identity: _Identity
    above: _Line | None = None

    def __contains__(self, identity: _Identity) -> bool:
        line: _Line | None = self
        while line is not None:
            if line.identity == identity:
                return True
            line = line.above
        return False


@dataclass(slots=True)
class _Visit:
    """A folder, and which parts of the pattern its entries are to match. `line` ends with it where `**` led here."""

    folder: str
    parts: set[int] = field(default_factory=set)
    line: _Line | None = None


def matching(pattern: str, admits: Callable[[str], bool] | None = None) -> list[str]:
    """The absolute paths that match an absolute pattern, each once, sorted. Blocks.

    Links to folders are followed only where `admits` says so. What is not there, or may not be looked at, does not
    match. Raises ResourceExhausted as `require_time`, and what `os_errors` makes of everything else that goes wrong.
    """
    folder = fixed_folder(pattern)
    parts = _parts_of(pattern[len(folder) :])
    if not parts:
        return [folder] if os.path.lexists(folder) else []
    walk = _Walk(pattern, parts, admits)
    waiting = [_Visit(folder, {0})]
    while waiting:
        waiting += walk.visit(waiting.pop())
    return sorted(walk.found)


def fixed_folder(pattern: str) -> str:
    """What comes before the first part that is a pattern; all of a path without any."""
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)
    return pattern


def _parts_of(pattern: str) -> list[str]:
    """`**` after `**` adds nothing."""
    parts: list[str] = []
    for part in filter(None, pattern.split(os.sep)):
        if part != _ANY_DEPTH or parts[-1:] != [_ANY_DEPTH]:
            parts.append(part)
    return parts


class _Walk:
    def __init__(self, pattern: str, parts: Sequence[str], admits: Callable[[str], bool] | None) -> None:
        self.found: set[str] = set()
        self._pattern = pattern
        self._parts = parts
        self._admits = admits
        self._expressions = [re.compile(fnmatch.translate(part)) for part in parts]

    def visit(self, visit: _Visit) -> list[_Visit]:
        """Adds what is found in the folder; what is to be visited below it."""
        require_time(self._pattern)
        folder = visit.folder
        if any(self._parts[part] == _ANY_DEPTH for part in visit.parts):
            try:
                line = visit.line or _Line(_identity(os.stat(folder)))
            except OSError as error:
                _require_passed_over(error, folder)
                return []
            self._match_nothing(folder, visit.parts)
        else:
            line = None
        below: dict[str, _Visit] = {}
        patterns = [part for part in visit.parts if glob.has_magic(self._parts[part])]
        for part in visit.parts.difference(patterns):
            path = os.path.join(folder, self._parts[part])
            if os.path.lexists(path):
                self._go_on(below, path, part + 1)
        if patterns:
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        require_time(self._pattern)
                        self._match(entry, patterns, line, below)
            except OSError as error:
                _require_passed_over(error, folder)
        return list(below.values())

    def _match_nothing(self, folder: str, parts: set[int]) -> None:
        """`**` stands for no folder, too."""
        for part in [part for part in parts if self._parts[part] == _ANY_DEPTH]:
            if part + 1 < len(self._parts):
                parts.add(part + 1)
            elif os.path.isdir(folder):
                self.found.add(folder)

    def _match(
        self, entry: os.DirEntry[str], parts: Sequence[int], line: _Line | None, below: dict[str, _Visit]
    ) -> None:
        """What the parts say of the entry; a folder counts as what they lead into."""
        is_folder: bool | None = None
        for part in parts:
            pattern = self._parts[part]
            if entry.name.startswith(_HIDDEN) and not pattern.startswith(_HIDDEN):
                continue
            is_last = part + 1 == len(self._parts)
            if pattern != _ANY_DEPTH:
                if self._expressions[part].match(entry.name) is None:
                    continue
                if is_last:
                    self.found.add(entry.path)
                    continue
            if is_folder is None:
                is_folder = self._is_folder(entry)
            if pattern == _ANY_DEPTH:
                assert line is not None, "the parts have a `**`"
                self._go_deeper(entry, part, line, below, is_folder=is_folder)
            elif is_folder:
                self._go_on(below, entry.path, part + 1)

    def _go_deeper(
        self, entry: os.DirEntry[str], part: int, line: _Line, below: dict[str, _Visit], *, is_folder: bool
    ) -> None:
        """`**` stands for the entry, unless that is a folder that leads to it."""
        if is_folder:
            try:
                identity = _identity(entry.stat())
            except OSError as error:
                _require_passed_over(error, entry.path)
                return
            if identity in line:
                return
            visit = below.setdefault(entry.path, _Visit(entry.path))
            visit.parts.add(part)
            visit.line = _Line(identity, line)
        if part + 1 == len(self._parts):
            self.found.add(entry.path)

    def _go_on(self, below: dict[str, _Visit], path: str, part: int) -> None:
        """The path matches all parts before this one."""
        if part == len(self._parts):
            self.found.add(path)
        else:
            below.setdefault(path, _Visit(path)).parts.add(part)

    def _is_folder(self, entry: os.DirEntry[str]) -> bool:
        try:
            if not entry.is_dir():
                return False
        except OSError as error:
            _require_passed_over(error, entry.path)
            return False
        return self._admits is None or not entry.is_symlink() or self._admits(entry.path)


def _require_passed_over(error: OSError, path: str) -> None:
    if error.errno not in _PASSED_OVER:
        raise from_os_error(error, path)


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino
