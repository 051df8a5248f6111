"""Which SQL texts go to the parser at all: one query, of bounded size and depth, without clauses it would ignore."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pystachio.errors import InvalidRequest, SqlSyntaxError, Unsupported
from pystachio.planner.sql.chains import balance
from pystachio.planner.sql.distinct_from import respell
from pystachio.planner.sql.limits import require_bounded
from pystachio.planner.sql.membership import has_exists, has_null_sensitive_in
from pystachio.planner.sql.text import QUERY_WORDS, Kind, Token, pointed_at, position_of, tokenize, words

MOST_CHARACTERS: Final = 16 << 20
MOST_TOKENS: Final = 1_000_000


_STATEMENT_WORDS: Final = words(
    "ALTER ANALYZE ATTACH BEGIN CACHE CALL CLOSE COMMENT COMMIT COPY CREATE DEALLOCATE DECLARE DELETE DESC DESCRIBE "
    "DETACH DISCARD DROP EXECUTE EXPLAIN EXPORT FETCH FLUSH FROM GRANT IMPORT INSERT INSTALL KILL LISTEN LOAD LOCK "
    "MERGE MSCK NOTIFY OPTIMIZE PRAGMA PREPARE REFRESH RELEASE RENAME REPLACE RESET REVOKE ROLLBACK SAVEPOINT SET SHOW "
    "START SUMMARIZE TABLE TRUNCATE UNCACHE UNLISTEN UNLOAD UPDATE USE VACUUM"
)
_VOLATILE: Final = words("NOW CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP TODAY RANDOM UUID")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A text that may be parsed. `placeholders` counts the values it needs.

    `has_null_sensitive_in` and `has_exists`: which subquery predicates it has (`membership`). `is_volatile`: its
    plan holds a value of the moment it was made.
    """

    sql: str
    placeholders: int
    has_null_sensitive_in: bool
    has_exists: bool
    is_volatile: bool


def admit(sql: str) -> Admitted:
    """Raises SqlSyntaxError for an empty text, Unsupported for what is no query or beyond a limit."""
    if len(sql) > MOST_CHARACTERS:
        raise Unsupported(f"a statement of {len(sql)} characters; at most {MOST_CHARACTERS} are read")
    if "\0" in sql:
        raise SqlSyntaxError("a NUL character", line=1, column=1)
    tokens = tokenize(sql, most=MOST_TOKENS + 1)
    if len(tokens) > MOST_TOKENS:
        raise Unsupported(f"a statement of more than {MOST_TOKENS} words and signs")
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    _require_one_query(sql, tokens)
    _refuse_ignored(tokens)
    require_bounded(tokens)
    end = tokens[-1].end
    placeholders = _placeholders(tokens)
    source = sql[:end]
    text = _respelt(source, tokens)
    unambiguous = respell(text, tokens if text == source else tokenize(text))
    chosen = tokens if unambiguous == source else tokenize(unambiguous)
    # A function's name may be quoted, and so may be a column's: that one's plan is not kept, then.
    is_volatile = any(
        token.text in _VOLATILE
        if token.kind is Kind.WORD
        else token.kind is Kind.NAME and token.text[1:-1].upper() in _VOLATILE
        for token in tokens
    )
    return Admitted(
        balance(unambiguous, chosen),
        placeholders,
        has_null_sensitive_in(tokens),
        has_exists(tokens),
        is_volatile,
    )


def _require_one_query(sql: str, tokens: Sequence[Token]) -> None:
    if not tokens:
        raise SqlSyntaxError("the statement is empty", line=1, column=1)
    first = next((token for token in tokens if token.text != "("), tokens[0])
    if first.kind is Kind.WORD and first.text in _STATEMENT_WORDS:
        hint = "only queries can be run: SELECT, WITH, VALUES"
        raise Unsupported(f"the statement {first.text}", hint=hint)
    if first.word not in QUERY_WORDS:
        line, column = position_of(sql, first.start)
        what = f"a query begins with SELECT, WITH or VALUES at line {line}, column {column}"
        raise SqlSyntaxError(f"{what}\n{pointed_at(sql, line, column)}", line=line, column=column)
    if any(token.text == ";" and token.kind is Kind.SYMBOL for token in tokens):
        raise Unsupported("several statements in one text", hint="run them one by one")


def _refuse_ignored(tokens: Sequence[Token]) -> None:
    """Clauses that DataFusion parses and then ignores or gets wrong."""
    for token, following in zip(tokens, [*tokens[1:], tokens[-1]]):
        if token.kind is not Kind.WORD:
            continue
        if token.word == "TABLESAMPLE":
            raise Unsupported("TABLESAMPLE")
        if token.word in ("EXCEPT", "INTERSECT", "MINUS") and following.word == "ALL":
            raise Unsupported(f"{token.text} ALL", hint=f"{token.text} without ALL is supported")
        if token.word == "AT" and following.word == "TIME":
            raise Unsupported("AT TIME ZONE", hint="timestamps with a time zone are shown and taken apart in UTC")


def _placeholders(tokens: Sequence[Token]) -> int:
    """How many values the parameters want."""
    marks = [token for token in tokens if token.kind is Kind.PLACEHOLDER]
    anonymous = [token for token in marks if token.text == "?"]
    if anonymous and len(anonymous) != len(marks):
        raise InvalidRequest("parameters written as ? and as $1 in one statement")
    if anonymous:
        return len(anonymous)
    named = next((token for token in marks if not token.text[1:].isdecimal() or token.text == "$0"), None)
    if named is not None:
        raise Unsupported(f"the named parameter {named.text}", hint="write $1, $2, ... or ?")
    return max((int(token.text[1:]) for token in marks), default=0)


def _respelt(sql: str, tokens: Sequence[Token]) -> str:
    """`?` as `$1`, `$2`, ..., and numbers with an exponent as the floats that they are in SQL."""
    parts, at, number = [], 0, 0
    for token in tokens:
        if token.kind is Kind.PLACEHOLDER and token.text == "?":
            number += 1
            spelt = f"${number}"
        elif token.kind is Kind.NUMBER and "e" in token.text.lower():
            # The parser takes every number with a point or an exponent for a decimal, here of negative scale.
            spelt = f"CAST('{token.text}' AS DOUBLE)"
        else:
            continue
        parts.append(sql[at : token.start] + spelt)
        at = token.end
    return "".join((*parts, sql[at:])) if parts else sql
