"""The tokens of an SQL text: enough to judge and to rewrite a statement before it is parsed.

DataFusion's parser recurses on the machine's stack, ignores clauses that it does not implement (TABLESAMPLE), and
takes quadratic time on long chains. All that is decided here, on tokens, where nothing recurses.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, NamedTuple

QUERY_WORDS: Final = ("SELECT", "WITH", "VALUES")
"""What a query begins with."""


def words(text: str) -> frozenset[str]:
    """Those of a list that is written with blanks between them."""
    return frozenset(text.split())


class Kind(Enum):
    """What a token is. Words are not quoted; names are quoted identifiers."""

    WORD = auto()
    NAME = auto()
    STRING = auto()
    NUMBER = auto()
    PLACEHOLDER = auto()
    SYMBOL = auto()


class Token(NamedTuple):
    """`text` is upper case for words, else as written; `start` and `end` are offsets in the source. `word` is the text
    of a word, and empty for the other kinds: a quoted name is none."""

    kind: Kind
    text: str
    start: int
    end: int
    word: str


_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*)
  | (?P<comment>/\*)
  | (?P<escaped>[eE]'[^'\\]*(?:(?:\\.|'')[^'\\]*)*'?)
  | (?P<string>(?:[nNbBxX]|[uU]&)?'[^']*(?:''[^']*)*'?)
  | (?P<dollar>\$(?P<tag>[A-Za-z_]\w*)?\$(?:.*?)\$(?(tag)(?P=tag))\$)
  | (?P<name>"[^"]*(?:""[^"]*)*"?|`[^`]*`?)
  | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
  | (?P<placeholder>\$\w+|\?)
  | (?P<word>[^\W\d][\w$]*)
  | (?P<symbol>\|\||::|<=|>=|<>|!=|<<|>>|!~~\*|!~~|~~\*|~~|!~\*|!~|~\*|->>?|\S)
    """,
    re.VERBOSE | re.DOTALL,
)

# A line is shown as far as this on either side of the column.
_CARET_REACH: Final = 60

_KINDS: Final = {
    "escaped": Kind.STRING,
    "string": Kind.STRING,
    "dollar": Kind.STRING,
    "name": Kind.NAME,
    "number": Kind.NUMBER,
    "placeholder": Kind.PLACEHOLDER,
    "word": Kind.WORD,
    "symbol": Kind.SYMBOL,
}


def tokenize(sql: str, most: int | None = None) -> list[Token]:
    """The tokens without white space and comments, the first `most` of them.

    Anything goes: an unfinished string ends with the text.
    """
    tokens: list[Token] = []
    at = 0
    while at < len(sql) and (most is None or len(tokens) < most):
        match = _TOKEN.match(sql, at)
        assert match is not None
        name = match.lastgroup if match.lastgroup != "tag" else "dollar"
        if name == "comment":
            at = _end_of_comment(sql, at)
            continue
        at = match.end()
        if name is None or name == "space":
            continue
        text = match.group()
        word = text.upper() if name == "word" else ""
        tokens.append(Token(_KINDS[name], word or text, match.start(), at, word))
    return tokens


def on_one_line(sql: str) -> str:
    """The text with blanks where strings break lines."""
    if "\n" not in sql and "\r" not in sql:
        return sql
    parts: list[str] = []
    end = 0
    for token in tokenize(sql):
        if token.kind is Kind.STRING:
            parts += (sql[end : token.start], re.sub(r"[\r\n]", " ", token.text))
            end = token.end
    return "".join((*parts, sql[end:]))


def _end_of_comment(sql: str, start: int) -> int:
    """Block comments nest."""
    depth, at = 1, start + 2
    for match in re.compile(r"/\*|\*/").finditer(sql, at):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return match.end()
    return len(sql)


def position_of(sql: str, offset: int) -> tuple[int, int]:
    """Line and column of an offset, from 1."""
    line = sql.count("\n", 0, offset) + 1
    return line, offset - (sql.rfind("\n", 0, offset) + 1) + 1


def pointed_at(sql: str, line: int, column: int) -> str:
    """The source line, or the part around the column, and below it a caret."""
    lines = sql.split("\n")
    source = lines[line - 1].replace("\t", " ").rstrip("\r") if 0 < line <= len(lines) else ""
    start = max(0, column - 1 - _CARET_REACH)
    return f"  {source[start : column - 1 + _CARET_REACH]}\n  {' ' * (column - 1 - start)}^"
