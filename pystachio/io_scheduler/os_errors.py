"""Errors of the operating system, mapped once, where they enter.

An error is `retryable` when the same request on the same open file may succeed within milliseconds to seconds, without
anybody doing anything: the I/O scheduler then tries the chunk again, with back-off.

- EAGAIN, EBUSY, ENOBUFS, ENOMEM, EMFILE, ENFILE: a lack that passes when others end.
- EIO, EREMOTEIO, ETIMEDOUT, ECONNRESET, ECONNABORTED, EHOSTUNREACH, ENETUNREACH, ENETRESET: a lost path to a disk or a
  file server (a multipath device that fails over, a soft NFS mount, FUSE). A sector that cannot be read fails again.
- ENOSPC and EDQUOT: files of other plans may be removed meanwhile.

Not retryable is what repeating cannot mend: permission, absence, ESTALE (the file that is open was removed on its
server; another file of this name must not be mixed with it), ENODEV and ENXIO (the device has gone), EBADMSG and
EUCLEAN (the file system's own checksums fail), ENOTCONN (a FUSE server has died), EROFS, EFBIG.
"""

from __future__ import annotations

import errno
from typing import Literal

from pystachio.errors import DataError, InvalidRequest, NotFound, PystachioError, ResourceExhausted, Unauthorized

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_GONE = frozenset({errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ESHUTDOWN})
_CORRUPT = frozenset({errno.EBADMSG, errno.EUCLEAN, errno.EILSEQ})
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
_NO_MEMORY = frozenset({errno.ENOMEM, errno.ENOBUFS})
_PASSING = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EIO,
        errno.EREMOTEIO,
        errno.ETIMEDOUT,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ENETRESET,
    }
)

Work = Literal["read", "written"]
_VERB: dict[Work, str] = {"read": "read", "written": "write"}


def from_os_error(error: OSError, path: str, work: Work = "read") -> PystachioError:
    """The typed error for a file operation on `path` that failed; `error` becomes its cause."""
    typed = _typed(error.errno, error.strerror or str(error), path, work)
    # Without the traceback, whose frames would keep the buffers of the transfer.
    typed.__cause__ = error.with_traceback(None)
    return typed


def _typed(number: int | None, reason: str, path: str, work: Work) -> PystachioError:
    if number in _ABSENT:
        return NotFound(f"no such file: {path}")
    if number in _FORBIDDEN:
        hint = "check the owner and mode of the file"
        return Unauthorized(f"no permission to {_VERB[work]} the file: {path}", hint=hint)
    if number == errno.EROFS:
        return Unauthorized(f"the file system is read-only: {path}", hint="choose another folder")
    if number == errno.EISDIR:
        return InvalidRequest(f"a directory where a file was expected: {path}")
    return _exhausted(number, path, work) or _unusable(number, reason, path, work)


def _exhausted(number: int | None, path: str, work: Work) -> ResourceExhausted | None:
    if number in _NO_DESCRIPTORS:
        return ResourceExhausted(f"too many open files; next: {path}", setting="RLIMIT_NOFILE", hint="ulimit -n")
    if number in _NO_MEMORY:
        return ResourceExhausted(f"the system has no memory for a file to be {work}: {path}", setting="memory")
    if number == errno.ENOSPC:
        return ResourceExhausted(f"the disk is full: {path}", setting="disk", hint="free space, or choose another disk")
    if number == errno.EDQUOT:
        return ResourceExhausted(f"the quota of the disk is used up: {path}", setting="disk quota")
    if number == errno.EFBIG:
        hint = "ulimit -f, and what the file system allows"
        error = ResourceExhausted(f"the file would become too large: {path}", setting="RLIMIT_FSIZE", hint=hint)
        error.retryable = False
        return error
    return None


def _unusable(number: int | None, reason: str, path: str, work: Work) -> DataError:
    if number == errno.ESTALE:
        return DataError(f"the file was removed on its server while it was {work}: {path}")
    if number in _GONE:
        return DataError(f"the device of the file is gone ({reason}): {path}")
    if number in _CORRUPT:
        return DataError(f"the file system found its own data corrupt ({reason}): {path}")
    error = DataError(f"the file cannot be {work} ({reason}): {path}")
    error.retryable = number in _PASSING
    return error
