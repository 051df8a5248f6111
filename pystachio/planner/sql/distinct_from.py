"""IS [NOT] DISTINCT FROM before AND, OR and IS.

DataFusion's parser takes everything that follows for the right operand: `a IS DISTINCT FROM b AND c` means
`a IS DISTINCT FROM (b AND c)` there. In SQL the operand ends before AND, OR and IS. The parser's other spelling of
the comparison, `<=>`, ends where it should.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pystachio.planner.sql.text import Kind, Token


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The parser ends the operand before these by itself.
_ENDS: Final = _words(
    "SELECT FROM WHERE GROUP HAVING ORDER LIMIT UNION INTERSECT EXCEPT QUALIFY ON USING JOIN INNER CROSS NATURAL "
    "AS WHEN THEN ELSE"
)
# Join words that are also functions.
_ALSO_FUNCTIONS: Final = frozenset({"LEFT", "RIGHT", "FULL"})


def respell(sql: str, tokens: Sequence[Token]) -> str:
    """The text with `<=>` where the parser would read on; the same object when it reads right."""
    edits: dict[int, tuple[int, str]] = {}
    for number in range(len(tokens) - 3):
        if tokens[number].word != "IS":
            continue
        words = 4 if tokens[number + 1].word == "NOT" else 3
        operand = number + words
        if not _is_distinct_from(tokens[number:operand]):
            continue
        end = _end_of_operand(tokens, operand)
        if end is not None:
            edits[tokens[number].start] = tokens[operand].start, "<=> ("
            last = tokens[end - 1].end
            edits[last] = last, ")" if words == 4 else ") = false"
    return _edited(sql, edits) if edits else sql


def _is_distinct_from(tokens: Sequence[Token]) -> bool:
    return tokens[0].word == "IS" and tokens[-2].word == "DISTINCT" and tokens[-1].word == "FROM"


def _end_of_operand(tokens: Sequence[Token], start: int) -> int | None:
    """The position of the AND, OR or IS that ends the operand; None when something else does."""
    depth = betweens = 0
    for number in range(start, len(tokens)):
        token = tokens[number]
        if token.kind is Kind.SYMBOL:
            depth += (token.text in "([{") - (token.text in ")]}")
        elif token.word in ("CASE", "END"):
            depth += 1 if token.text == "CASE" else -1
        if depth < 0 or (depth == 0 and token.text in (",", ";")):
            return None
        if depth > 0 or token.kind is not Kind.WORD:
            continue
        if token.text == "BETWEEN":
            betweens += 1
        elif token.text == "AND" and betweens:
            betweens -= 1
        elif token.text in ("AND", "OR", "IS"):
            return number if number > start else None
        elif token.text in _ENDS or (token.text in _ALSO_FUNCTIONS and not _opens(tokens, number + 1)):
            return None
    return None


def _opens(tokens: Sequence[Token], number: int) -> bool:
    return number < len(tokens) and tokens[number].text == "("


def _edited(sql: str, edits: dict[int, tuple[int, str]]) -> str:
    """`edits`: by offset, the offset where the text goes on, and what stands between."""
    parts, at = [], 0
    for offset in sorted(edits):
        following, text = edits[offset]
        parts += [sql[at:offset], text]
        at = following
    return "".join((*parts, sql[at:]))
