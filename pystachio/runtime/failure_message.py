"""A typed error on its way from one process to another."""

from __future__ import annotations

from msgspec import Struct

from pystachio.errors import (
    Cancelled,
    DataError,
    InternalError,
    InvalidRequest,
    NodeLost,
    NotFound,
    PystachioError,
    ResourceExhausted,
    SqlSyntaxError,
    Unauthorized,
    Unsupported,
)

_KINDS = {
    kind.code: kind for kind in (Cancelled, DataError, InternalError, InvalidRequest, NodeLost, NotFound, Unauthorized)
}
_LONGEST_TEXT = 4000


class Failure(Struct, frozen=True, forbid_unknown_fields=True):
    """A typed error on the wire: `code` is that of its class."""

    code: str
    message: str
    hint: str | None = None
    node: str | None = None
    operator: str | None = None
    setting: str | None = None
    value: float | None = None
    needed: float | None = None
    retryable: bool = False
    line: int = 0
    column: int = 0

    @staticmethod
    def of(error: PystachioError, node: str) -> Failure:
        """`node` is where it happened, unless the error knows better."""
        exhausted = error if isinstance(error, ResourceExhausted) else None
        message = error.construct if isinstance(error, Unsupported) else error.message
        return Failure(
            error.code,
            _text(message),
            None if error.hint is None else _text(error.hint),
            error.node or node,
            error.operator,
            None if exhausted is None else exhausted.setting,
            None if exhausted is None else exhausted.value,
            None if exhausted is None else exhausted.needed,
            error.retryable,
            *((error.line, error.column) if isinstance(error, SqlSyntaxError) else ()),
        )

    def error(self, plan_id: str | None = None) -> PystachioError:
        """The same class of error; one of a newer node is an InternalError."""
        error: PystachioError
        if self.code == ResourceExhausted.code:
            setting = self.setting or "unknown"
            error = ResourceExhausted(self.message, setting=setting, value=self.value, needed=self.needed)
            error.hint = self.hint
        elif self.code == Unsupported.code:
            error = Unsupported(self.message, hint=self.hint)
        elif self.code == SqlSyntaxError.code:
            error = SqlSyntaxError(self.message, line=self.line, column=self.column, hint=self.hint)
        else:
            error = _KINDS.get(self.code, InternalError)(self.message, hint=self.hint)
        error.node, error.operator, error.plan_id, error.retryable = self.node, self.operator, plan_id, self.retryable
        return error


def _text(words: str) -> str:
    """Not too long, and of characters only: names of files may be other bytes, which are shown as such."""
    return words[:_LONGEST_TEXT].encode(errors="backslashreplace").decode()
