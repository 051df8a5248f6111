"""Errors of the operating system, mapped once, where they enter."""

from __future__ import annotations

import errno

from pystachio.errors import DataError, InvalidRequest, NotFound, PystachioError, ResourceExhausted, Unauthorized

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO, errno.ENODEV})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


def from_os_error(error: OSError, path: str) -> PystachioError:
    """The typed error for a file operation on `path` that failed; `error` becomes its cause."""
    typed = _typed(error.errno, error.strerror or str(error), path)
    # Without the traceback, whose frames would keep the buffers of the read.
    typed.__cause__ = error.with_traceback(None)
    return typed


def _typed(number: int | None, reason: str, path: str) -> PystachioError:
    if number in _ABSENT:
        return NotFound(f"no such file: {path}")
    if number in _FORBIDDEN:
        return Unauthorized(f"no permission to read the file: {path}", hint="check the owner and mode of the file")
    if number == errno.EISDIR:
        return InvalidRequest(f"a directory where a file was expected: {path}")
    if number in _NO_DESCRIPTORS:
        return ResourceExhausted(f"too many open files; next: {path}", setting="RLIMIT_NOFILE", hint="ulimit -n")
    if number == errno.ENOMEM:
        return ResourceExhausted(f"the system has no memory to read: {path}", setting="memory")
    return DataError(f"the file cannot be read ({reason}): {path}")
