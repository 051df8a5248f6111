"""Whether a node that cannot listen may be started again, and what to do."""

from __future__ import annotations

import errno
import socket

import pytest

from pystachio.errors import InvalidRequest, ResourceExhausted
from pystachio.server.listening import cannot_listen


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "no host of this name"),
        (PermissionError(errno.EACCES, "Permission denied"), "below 1024"),
    ],
)
def test_what_stays_so_is_a_wrong_configuration(error: OSError, hint: str) -> None:
    refused = cannot_listen("the node cannot listen at h:1", "cluster_listen", error)
    assert isinstance(refused, InvalidRequest)
    assert refused.message == f"the node cannot listen at h:1: {error.strerror}"
    assert hint in str(refused.hint)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), "no host of this name"),
        (OSError(errno.EADDRINUSE, "Address already in use"), "another port"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), "does not have the address"),
        (OSError(errno.EMFILE, "Too many open files"), "port 0"),
    ],
)
def test_what_may_pass_is_tried_again(error: OSError, hint: str) -> None:
    refused = cannot_listen("health cannot be asked for at h:1", "cluster_health", error)
    assert isinstance(refused, ResourceExhausted)
    assert refused.setting == "cluster_health"
    assert hint in str(refused.hint)
