"""Errors between nodes: a code and a text on the wire, the same class of error at the other end."""

from __future__ import annotations

from pystachio.errors import (
    Cancelled,
    DataError,
    InternalError,
    InvalidRequest,
    NodeLost,
    PystachioError,
    ResourceExhausted,
    Unauthorized,
)

CLIENTS_SETTING = "cluster_clients"
"""How many clients may be connected."""
CANCELLED = 1
_CODES: tuple[tuple[int, type[PystachioError]], ...] = (
    (CANCELLED, Cancelled),
    (2, NodeLost),
    (3, DataError),
    (4, Unauthorized),
    (5, InvalidRequest),
    (6, ResourceExhausted),
    (7, InternalError),
)


def code_of(error: PystachioError) -> int:
    """The code of the error's class, or of the nearest one above it."""
    for code, kind in _CODES:
        if isinstance(error, kind):
            return code
    return 7


def error_of(code: int, reason: str, node: str, setting: str = "memory") -> PystachioError:
    """The error that a peer tells of; an unknown code (of a newer peer) is an InternalError. `setting` is what to
    change there when it has no more room: for messages, its memory.
    """
    kind = dict(_CODES).get(code, InternalError)
    if kind is ResourceExhausted:
        return ResourceExhausted(reason, setting=setting)
    return kind(reason, node=node)


def copy_of(error: PystachioError) -> PystachioError:
    """The same error for one more of those it hits: each plan's carries that plan's id."""
    copy = error_of(code_of(error), error.message, error.node or "")
    if isinstance(error, ResourceExhausted):
        copy = ResourceExhausted(error.message, setting=error.setting, value=error.value, needed=error.needed)
    copy.hint, copy.retryable, copy.node = error.hint, error.retryable, error.node
    return copy
