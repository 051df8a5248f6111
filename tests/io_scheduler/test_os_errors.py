from __future__ import annotations

import errno
import os

import pytest

from pystachio.errors import DataError, InvalidRequest, NotFound, PystachioError, ResourceExhausted, Unauthorized
from pystachio.io_scheduler.os_errors import from_os_error


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, NotFound),
        (errno.ENOTDIR, NotFound),
        (errno.EACCES, Unauthorized),
        (errno.EPERM, Unauthorized),
        (errno.EISDIR, InvalidRequest),
        (errno.EMFILE, ResourceExhausted),
        (errno.ENOMEM, ResourceExhausted),
        (errno.EIO, DataError),
        (errno.ESTALE, DataError),
    ],
    ids=str,
)
def test_a_system_error_becomes_one_typed_error(number: int, kind: type[PystachioError]) -> None:
    error = OSError(number, os.strerror(number))
    typed = from_os_error(error, "/data/t.parquet")
    assert type(typed) is kind
    assert typed.__cause__ is error
    assert "/data/t.parquet" in str(typed)
