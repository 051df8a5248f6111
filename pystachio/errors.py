"""The tree of errors: whose fault it is and what to do.

Every error that leaves the public surface is a `PystachioError`. Foreign exceptions (pyarrow, DataFusion, OSError,
kvikio) are mapped once, at the edge where they enter. A message is static text first, values last.
"""

from __future__ import annotations

from typing import ClassVar

_LONGEST_VALUE = 200


def shown(value: object) -> str:
    """A value that somebody gave, in a message: of bounded length, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # Python writes no integer of many thousand digits; other people's objects may do anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


class PystachioError(Exception):
    """Base of the tree.

    `code` is stable across releases, `retryable` says whether the same request may succeed later (the class's default;
    who maps a foreign error may know better), `hint` says what the caller can do.
    """

    code: ClassVar[str] = "error"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        plan_id: str | None = None,
        operator: str | None = None,
        node: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.plan_id = plan_id
        self.operator = operator
        self.node = node

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


class InvalidRequest(PystachioError):
    """The request itself is wrong; repeating it cannot help."""

    code = "invalid_request"


class SqlSyntaxError(InvalidRequest):
    """SQL that does not parse. `line` and `column` count from 1; 0 when the parser did not say."""

    code = "syntax_error"

    def __init__(self, message: str, *, line: int = 0, column: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.line = line
        self.column = column


class Unsupported(InvalidRequest):
    """A construct that the engine does not implement. `construct` names it."""

    code = "unsupported"

    def __init__(self, construct: str, *, hint: str | None = None) -> None:
        super().__init__(f"not supported: {construct}", hint=hint)
        self.construct = construct


class NotFound(InvalidRequest):
    """A table, column, file, function or plan that does not exist."""

    code = "not_found"


class Unauthorized(InvalidRequest):
    """The caller may not do this (file permission, token)."""

    code = "unauthorized"


class ResourceExhausted(PystachioError):
    """A budget is too small. `setting` names it, `value` is what it was and `needed` what would have been enough."""

    code = "resource_exhausted"
    retryable = True

    def __init__(
        self,
        message: str,
        *,
        setting: str,
        value: float | None = None,
        needed: float | None = None,
        hint: str | None = None,
        plan_id: str | None = None,
        operator: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, plan_id=plan_id, operator=operator)
        self.setting = setting
        self.value = value
        self.needed = needed


class DataError(PystachioError):
    """The data cannot be what it claims: corrupt file, overflow, invalid cast, division by zero."""

    code = "data_error"


class NodeLost(PystachioError):
    """A node that held part of the plan is gone."""

    code = "node_lost"
    retryable = True


class Cancelled(PystachioError):
    """The plan was cancelled by its owner."""

    code = "cancelled"


class InternalError(PystachioError):
    """A defect in PystachIO: an invariant does not hold, or an exception nobody mapped."""

    code = "internal_error"
