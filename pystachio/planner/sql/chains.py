"""Long chains of AND and OR as balanced trees of parentheses.

The parser makes `a OR b OR c ...` a tree as deep as the chain is long, and DataFusion's planner takes quadratic time
over its depth: a thousand terms cost seconds and ten thousand overflow the stack. Balanced, they cost milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pystachio.planner.sql.text import Kind, Token

# Shorter chains are left as they are written.
MOST_TERMS_IN_A_ROW: Final = 16

# An expression begins behind these words ...
_OPENING: Final = frozenset({"WHERE", "HAVING", "ON", "WHEN", "QUALIFY"})


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ... and ends before these, and any other clause.
_BOUNDARIES: Final = _words(
    "SELECT FROM GROUP ORDER LIMIT OFFSET FETCH UNION INTERSECT EXCEPT MINUS WINDOW FOR THEN ELSE AS BY "
    "ASC DESC NULLS JOIN INNER CROSS NATURAL OUTER SEMI ANTI LATERAL USING VALUES WITH DISTINCT OVER "
    "PARTITION ROWS RANGE INTO SET RETURNING TABLESAMPLE SORT CLUSTER DISTRIBUTE"
)
# Join words that are also functions.
_ALSO_FUNCTIONS: Final = frozenset({"LEFT", "RIGHT", "FULL"})


@dataclass(slots=True)
class _Frame:
    """A bracket or a CASE: the expression that is being read in it, and its operators so far."""

    start: int | None
    ors: list[int] = field(default_factory=list)
    ands: list[int] = field(default_factory=list)
    betweens: int = 0

    def restart(self, start: int | None) -> None:
        self.start, self.ors, self.ands, self.betweens = start, [], [], 0


def balance(sql: str, tokens: Sequence[Token]) -> str:
    """The text with parentheses in its long chains; the same object when it has none."""
    insertions: dict[int, list[str]] = {}
    frames = [_Frame(None)]
    for number, token in enumerate(tokens):
        frame = frames[-1]
        if token.kind is Kind.SYMBOL and token.text in "([{":
            frames.append(_Frame(number + 1))
        elif token.kind is Kind.SYMBOL and token.text in ")]}":
            _finish(frame, number, tokens, insertions)
            frames = frames[:-1] if len(frames) > 1 else [_Frame(None)]
        elif token.kind is Kind.SYMBOL and token.text in ",;":
            _finish(frame, number, tokens, insertions)
            frame.restart(number + 1 if len(frames) > 1 and frame.start is not None else None)
        elif token.kind is Kind.WORD:
            _read_word(frames, number, tokens, insertions)
    for frame in frames:
        _finish(frame, len(tokens), tokens, insertions)
    return _inserted(sql, insertions) if insertions else sql


def _read_word(frames: list[_Frame], number: int, tokens: Sequence[Token], insertions: dict[int, list[str]]) -> None:
    frame, text = frames[-1], tokens[number].text
    if text == "CASE":
        frames.append(_Frame(None))
    elif text == "END" and len(frames) > 1:
        _finish(frame, number, tokens, insertions)
        frames.pop()
    elif text == "BETWEEN":
        frame.betweens += 1
    elif text == "AND":
        if frame.betweens:
            frame.betweens -= 1
        else:
            frame.ands.append(number)
    elif text == "OR":
        frame.ors.append(number)
    elif text in _OPENING:
        _finish(frame, number, tokens, insertions)
        frame.restart(number + 1)
    elif text in _BOUNDARIES or (text in _ALSO_FUNCTIONS and not _opens(tokens, number + 1)):
        _finish(frame, number, tokens, insertions)
        frame.restart(None)


def _opens(tokens: Sequence[Token], number: int) -> bool:
    return number < len(tokens) and tokens[number].text == "("


def _finish(frame: _Frame, end: int, tokens: Sequence[Token], insertions: dict[int, list[str]]) -> None:
    """Balance the expression from the frame's start to the token `end`."""
    if frame.start is None or len(frame.ors) + len(frame.ands) < MOST_TERMS_IN_A_ROW:
        return
    terms = _split(frame.start, end, frame.ors)
    groups = []
    at = 0
    for first, last in terms:
        inside = []
        while at < len(frame.ands) and frame.ands[at] < last:
            inside.append(frame.ands[at])
            at += 1
        groups.append(_split(first, last, inside))
    # A term without tokens means that a word was taken for a boundary wrongly, or a syntax error: leave it alone.
    if any(first >= last for group in groups for first, last in group):
        return
    for group in groups:
        _balance_terms(group, tokens, insertions)
    _balance_terms(terms, tokens, insertions)


def _split(start: int, end: int, operators: Sequence[int]) -> list[tuple[int, int]]:
    starts = [start, *(operator + 1 for operator in operators)]
    return list(zip(starts, [*operators, end]))


def _balance_terms(terms: list[tuple[int, int]], tokens: Sequence[Token], insertions: dict[int, list[str]]) -> None:
    if len(terms) < MOST_TERMS_IN_A_ROW:
        return
    waiting = [(0, len(terms))]
    while waiting:
        low, high = waiting.pop()
        if high - low < 2:
            continue
        middle = (low + high) // 2
        for first, last in ((low, middle), (middle, high)):
            if last - first > 1:
                insertions.setdefault(tokens[terms[first][0]].start, []).append("(")
                insertions.setdefault(tokens[terms[last - 1][1] - 1].end, []).append(")")
                waiting.append((first, last))


def _inserted(sql: str, insertions: dict[int, list[str]]) -> str:
    parts, at = [], 0
    for offset in sorted(insertions):
        parts.append(sql[at:offset])
        parts.extend(insertions[offset])
        at = offset
    return "".join((*parts, sql[at:]))


def is_operator(token: Token) -> bool:
    """Whether the token makes the parser's tree one level deeper within a term."""
    if token.kind is Kind.SYMBOL:
        return token.text not in "()[]{},;."
    return token.word in ("IS", "LIKE", "ILIKE", "BETWEEN", "IN", "NOT", "COLLATE", "AT", "SIMILAR", "DIV")
