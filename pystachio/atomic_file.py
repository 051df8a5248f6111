"""Files that appear when they are complete: after any failure there is nothing, or what was there before."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pystachio.errors import InvalidRequest, NotFound, PystachioError, ResourceExhausted, Unauthorized

_LONGEST_NAME = 40
"""Of the target's name in that of the partial file: with the rest of it the name stays one that file systems allow."""


@contextmanager
def replaced_at_end(path: Path) -> Iterator[BinaryIO]:
    """The file `path`, replaced in one step at the end; a device or a pipe is written as it is.

    Raises NotFound when its folder does not exist, and OSError.
    """
    if _is_special(path):
        with path.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    partial = target.with_name(f".{target.name[:_LONGEST_NAME]}.{uuid.uuid4().hex[:8]}.part")
    try:
        with _created(partial) as file:
            yield file
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def require_writable(path: Path) -> None:
    """Raise now what `replaced_at_end` would raise when it begins."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not _is_special(path):
        target = Path(os.path.realpath(path))
        probe = target.with_name(f".{uuid.uuid4().hex[:8]}.part")
        _created(probe).close()
        probe.unlink()
    elif not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def typed_write_error(error: OSError, where: str) -> PystachioError:
    """An error of writing to the file or folder `where`."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return Unauthorized(f"may not write the output: {where}: {reason}")
        case errno.ENOSPC | errno.EDQUOT:
            return ResourceExhausted(f"no room for the output: {where}: {reason}", setting="output")
        case _:
            return InvalidRequest(f"the output cannot be written: {where}: {reason}")


def _created(partial: Path) -> BinaryIO:
    try:
        return partial.open("xb")
    except FileNotFoundError:
        raise NotFound(f"no such folder: {partial.parent}") from None


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()
