"""Why a node cannot listen where it was told to."""

from __future__ import annotations

import errno
import socket

from pystachio.errors import InvalidRequest, PystachioError, ResourceExhausted


def cannot_listen(what: str, setting: str, error: OSError) -> PystachioError:
    """InvalidRequest for what stays so, ResourceExhausted for what may pass: a port is free again, an address comes."""
    message = f"{what}: {error.strerror or error}"
    if isinstance(error, socket.gaierror):
        hint = "no host of this name is known here: write an address of this machine, or a name that it has"
        if error.errno == socket.EAI_NONAME:
            return InvalidRequest(message, hint=hint)
        return ResourceExhausted(message, setting=setting, hint=hint)  # who knows names does not answer
    match error.errno:
        case errno.EACCES:
            return InvalidRequest(message, hint="ports below 1024 are for root: take another")
        case errno.EADDRNOTAVAIL:
            hint = "this machine does not have the address: listen at one that it has, and advertise the other"
        case errno.EADDRINUSE:
            hint = "somebody listens there already: take another port; port 0 takes a free one"
        case _:
            hint = "see that the address is one of this machine's; port 0 takes a free port"
    return ResourceExhausted(message, setting=setting, hint=hint)
