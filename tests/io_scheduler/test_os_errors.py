from __future__ import annotations

import errno
import os

import pytest

from pystachio.errors import DataError, InvalidRequest, NotFound, PystachioError, ResourceExhausted, Unauthorized
from pystachio.io_scheduler.os_errors import Work, from_os_error

TRY_AGAIN = True
NEVER = False


@pytest.mark.parametrize(
    ("number", "kind", "retryable"),
    [
        (errno.ENOENT, NotFound, NEVER),
        (errno.ENOTDIR, NotFound, NEVER),
        (errno.EACCES, Unauthorized, NEVER),
        (errno.EPERM, Unauthorized, NEVER),
        (errno.EROFS, Unauthorized, NEVER),
        (errno.EISDIR, InvalidRequest, NEVER),
        (errno.EMFILE, ResourceExhausted, TRY_AGAIN),
        (errno.ENOMEM, ResourceExhausted, TRY_AGAIN),
        (errno.ENOSPC, ResourceExhausted, TRY_AGAIN),
        (errno.EDQUOT, ResourceExhausted, TRY_AGAIN),
        (errno.EFBIG, ResourceExhausted, NEVER),
        (errno.EIO, DataError, TRY_AGAIN),
        (errno.EAGAIN, DataError, TRY_AGAIN),
        (errno.EBUSY, DataError, TRY_AGAIN),
        (errno.ETIMEDOUT, DataError, TRY_AGAIN),
        (errno.ESTALE, DataError, NEVER),
        (errno.ENODEV, DataError, NEVER),
        (errno.ENXIO, DataError, NEVER),
        (errno.EBADMSG, DataError, NEVER),
        (errno.EINVAL, DataError, NEVER),
    ],
    ids=lambda value: errno.errorcode.get(value, "") if isinstance(value, int) and value is not True else None,
)
@pytest.mark.parametrize("work", ["read", "written"])
def test_a_system_error_becomes_one_typed_error(
    number: int, kind: type[PystachioError], retryable: bool, work: Work
) -> None:
    error = OSError(number, os.strerror(number))
    typed = from_os_error(error, "/data/t.parquet", work)
    assert (type(typed), typed.retryable) == (kind, retryable)
    assert typed.__cause__ is error
    assert "/data/t.parquet" in str(typed)


def test_an_error_without_a_number_is_one_of_the_data() -> None:
    typed = from_os_error(OSError("something else"), "/data/t.parquet")
    assert (type(typed), typed.retryable) == (DataError, False)
    assert "something else" in str(typed)


def test_what_one_error_knows_says_nothing_of_its_class() -> None:
    assert from_os_error(OSError(errno.EIO, "Input/output error"), "/f").retryable
    assert not DataError("of another kind").retryable
    assert ResourceExhausted("of another kind", setting="memory").retryable
