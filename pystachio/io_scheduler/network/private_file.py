"""Files that open doors: the cluster's secret, tokens, private keys. Nobody but their owner may read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pystachio.errors import InvalidRequest, Unauthorized

_LONGEST_FILE = 4096


def read_private(path: Path, what: str, *, missing: str, exposed: str) -> bytes:
    """The beginning of a file that only its owner can read.

    Raises Unauthorized for one that others can use, InvalidRequest for what cannot be read, with `missing` as its hint;
    `exposed` says what to do about what somebody may have read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"{what} cannot be read ({reason}): {path}", hint=missing) from error
    try:
        # Of the open file: what the path names may change.
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise InvalidRequest(f"{what} is no file: {path}", hint=missing)
        if mode & 0o077:
            raise Unauthorized(
                f"others than its owner can use {what} (mode {mode & 0o777:04o}): {path}",
                hint=f"chmod 600 {path}, and {exposed} if somebody may have read it",
            )
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(_LONGEST_FILE)
    except OSError as error:
        raise InvalidRequest(f"{what} cannot be read ({error.strerror}): {path}", hint=missing) from error
    finally:
        os.close(descriptor)
