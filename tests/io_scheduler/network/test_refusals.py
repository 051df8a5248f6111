from __future__ import annotations

import pytest

from pystachio.errors import DataError, InternalError, NodeLost, NotFound, PystachioError, ResourceExhausted
from pystachio.io_scheduler.network.refusals import CLIENTS_SETTING, copy_of


@pytest.mark.parametrize(
    "error",
    [
        ResourceExhausted("too many", setting=CLIENTS_SETTING, value=2, needed=3, hint="try another node"),
        ResourceExhausted("full", setting="memory"),
        NodeLost("gone", node="b", hint="wait"),
        DataError("odd", node="c"),
        InternalError("broken"),
    ],
)
def test_a_copy_says_what_the_error_said(error: PystachioError) -> None:
    error.retryable = not type(error).retryable
    copy = copy_of(error)
    assert copy is not error
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    names = ("message", "hint", "node", "retryable", "setting", "value", "needed")
    assert [getattr(copy, name, None) for name in names] == [getattr(error, name, None) for name in names]


def test_a_copy_is_of_the_nearest_class_that_nodes_tell_each_other() -> None:
    copy = copy_of(NotFound("not there", hint="look elsewhere"))
    assert (copy.code, str(copy)) == ("invalid_request", "not there (hint: look elsewhere)")
