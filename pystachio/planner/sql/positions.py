"""Where a place in a rewritten text was in the text as it was written."""

from __future__ import annotations

from typing import Final

from pystachio.planner.sql.text import Kind, Token, position_of, tokenize

# IS NOT DISTINCT FROM is one operator for the parser.
_REACH: Final = 5


def written_position(written: str, parsed: str, line: int, column: int) -> tuple[int, int]:
    """Line and column in `written` of a place in `parsed`.

    The two differ by parentheses and by how some operators and values are spelt. Token by token: one that the written
    text does not have there was added or took the place of a few others. Off by as many at most.
    """
    offset = _offset(parsed, line, column)
    originals = tokenize(written)
    at = 0
    for token in tokenize(parsed):
        if token.start >= offset or at == len(originals):
            break
        near = range(at, min(at + (1 if token.text in "()" else _REACH), len(originals)))
        at = next((place + 1 for place in near if _is_same(token, originals[place])), at)
    if at == len(originals):
        end = originals[-1].end if originals else 0
        return position_of(written, end)
    return position_of(written, originals[at].start)


def _is_same(token: Token, original: Token) -> bool:
    return token.text == original.text or token.kind is original.kind is Kind.PLACEHOLDER


def _offset(text: str, line: int, column: int) -> int:
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return start + column - 1
