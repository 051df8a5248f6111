"""Patterns without anything but text in them, as the comparisons that they are."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from pystachio.operators.expressions import Call, Expression, Literal

_OF_LIKE: Final = re.compile(r"[%_\\]")
_OF_EXPRESSIONS: Final = re.compile(r"[\\.+*?()|\[\]{}^$]")


def plainer(node: Expression) -> Expression:
    """LIKE without wildcards as an equality, a regular expression that is a text as LIKE; others as they are."""
    match node:
        case Call(function="like", arguments=(subject, Literal(value=str(pattern)) as text)):
            return node if _OF_LIKE.search(pattern) else Call("equal", (subject, text), node.type)
        case Call(function="regexp_like", arguments=(subject, Literal(value=str(pattern)))):
            like = _like(pattern)
            return node if like is None else plainer(Call("like", (subject, Literal(like, pa.string())), node.type))
        case _:
            return node


def _like(expression: str) -> str | None:
    """The LIKE pattern of a text that is looked for anywhere, at the beginning (^), at the end ($)."""
    begins, ends = expression.startswith("^"), expression.endswith("$")
    text = expression[1 if begins else 0 : -1 if ends else None]
    if not text or _OF_EXPRESSIONS.search(text):
        return None
    return ("" if begins else "%") + _OF_LIKE.sub(r"\\\g<0>", text) + ("" if ends else "%")
