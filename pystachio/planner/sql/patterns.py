"""Regular expressions with a literal backslash, which DataFusion would turn into a LIKE that means something else.

It takes an expression of plain characters for a text to be contained, and leaves its backslashes to LIKE, whose escapes
they are. An expression with a group is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from pystachio.planner.sql.text import Kind, Token

_BACKSLASH = "\\\\"
_OPERATORS = ("~", "!~", "~*", "!~*")


def is_misread(pattern: str) -> bool:
    """Whether an expression may be one that is taken for a text."""
    return _BACKSLASH in pattern


def group(sql: str, tokens: Sequence[Token]) -> str:
    """The statement with such expressions in groups."""
    parts, at = [], 0
    for token in _patterns(tokens):
        text = sql[token.start : token.end]
        if token.kind is Kind.STRING and text.startswith("'") and text.endswith("'") and is_misread(text):
            parts.append(f"{sql[at : token.start]}'({text[1:-1]})'")
            at = token.end
    return "".join((*parts, sql[at:])) if parts else sql


def parameters(tokens: Sequence[Token]) -> frozenset[int]:
    """The numbers of the parameters that are regular expressions."""
    marks = (token for token in tokens if token.kind is Kind.PLACEHOLDER)
    numbers = {token.start: number for number, token in enumerate(marks, 1)}
    patterns = (token for token in _patterns(tokens) if token.kind is Kind.PLACEHOLDER)
    return frozenset(numbers[token.start] if token.text == "?" else int(token.text[1:]) for token in patterns)


def _patterns(tokens: Sequence[Token]) -> list[Token]:
    """What is compared with, in order."""
    found = []
    for number, token in enumerate(tokens[:-1]):
        if token.kind is Kind.SYMBOL and token.text in _OPERATORS:
            found.append(tokens[number + 1])
        elif token.word == "REGEXP_LIKE":
            depth = 0
            for place in range(number + 1, len(tokens) - 1):
                depth += (tokens[place].text == "(") - (tokens[place].text == ")")
                if depth < 1:
                    break
                if depth == 1 and tokens[place].text == ",":
                    found.append(tokens[place + 1])
                    break
    return sorted(found, key=lambda token: token.start)
