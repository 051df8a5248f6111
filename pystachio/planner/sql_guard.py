"""Which SQL texts go to the parser at all: one query, of bounded size and depth, without clauses it would ignore."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pystachio.errors import InvalidRequest, SqlSyntaxError, Unsupported
from pystachio.planner.sql_chains import balance, is_operator
from pystachio.planner.sql_text import Kind, Token, is_word, position_of, tokenize

# What DataFusion plans within seconds and within the stack of `sql.STACK_BYTES`.
MOST_CHARACTERS: Final = 16 << 20
MOST_NESTED: Final = 100
MOST_OPERATORS_IN_A_ROW: Final = 256
MOST_QUERIES: Final = 1000
MOST_JOINS: Final = 150
MOST_EXPANDED_QUERIES: Final = 5000

_QUERY_WORDS: Final = frozenset({"SELECT", "WITH", "VALUES"})


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STATEMENT_WORDS: Final = _words(
    "ALTER ANALYZE ATTACH BEGIN CACHE CALL CLOSE COMMENT COMMIT COPY CREATE DEALLOCATE DECLARE DELETE "
    "DESC DESCRIBE DETACH DISCARD DROP EXECUTE EXPLAIN EXPORT FETCH FLUSH FROM GRANT IMPORT INSERT "
    "INSTALL KILL LISTEN LOAD LOCK MERGE MSCK NOTIFY OPTIMIZE PRAGMA PREPARE REFRESH RELEASE RENAME "
    "REPLACE RESET REVOKE ROLLBACK SAVEPOINT SET SHOW START SUMMARIZE TABLE TRUNCATE UNCACHE UNLISTEN "
    "UNLOAD UPDATE USE VACUUM"
)
_RESETS: Final = frozenset({"AND", "OR", "WHEN", "THEN", "ELSE", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "ON"})
_VOLATILE: Final = frozenset(
    [
        "NOW",
        "CURRENT_DATE",
        "CURRENT_TIME",
        "CURRENT_TIMESTAMP",
        "LOCALTIME",
        "LOCALTIMESTAMP",
        "TODAY",
        "RANDOM",
        "UUID",
    ]
)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A text that may be parsed. `placeholders` counts the values it needs.

    `has_in` and `has_exists`: whether a subquery stands behind IN (or ANY, ALL) and behind EXISTS. `is_volatile`: its
    plan holds a value of the moment it was made.
    """

    sql: str
    placeholders: int
    has_in: bool
    has_exists: bool
    is_volatile: bool


def admit(sql: str) -> Admitted:
    """Raises SqlSyntaxError for an empty text, Unsupported for what is no query or beyond a limit."""
    if len(sql) > MOST_CHARACTERS:
        raise Unsupported(f"a statement of {len(sql)} characters; at most {MOST_CHARACTERS} are read")
    if "\0" in sql:
        raise SqlSyntaxError("a NUL character", line=1, column=1)
    tokens = tokenize(sql)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    _require_one_query(sql, tokens)
    _refuse_ignored(tokens)
    _require_shallow(tokens)
    _require_small(tokens)
    end = tokens[-1].end
    text, placeholders = _numbered(sql[:end], tokens)
    chosen = tokens if text == sql[:end] else tokenize(text)
    has_in, has_exists = _subquery_predicates(tokens)
    is_volatile = any(token.kind is Kind.WORD and token.text in _VOLATILE for token in tokens)
    return Admitted(balance(text, chosen), placeholders, has_in, has_exists, is_volatile)


def _require_one_query(sql: str, tokens: Sequence[Token]) -> None:
    if not tokens:
        raise SqlSyntaxError("the statement is empty", line=1, column=1)
    first = next((token for token in tokens if token.text != "("), tokens[0])
    if first.kind is Kind.WORD and first.text in _STATEMENT_WORDS:
        hint = "only queries can be run: SELECT, WITH, VALUES"
        raise Unsupported(f"the statement {first.text}", hint=hint)
    if not is_word(first, *_QUERY_WORDS):
        line, column = position_of(sql, first.start)
        found = sql[first.start : min(first.end, first.start + 40)]
        raise SqlSyntaxError(f"a query begins with SELECT, WITH or VALUES, not with {found}", line=line, column=column)
    if any(token.text == ";" and token.kind is Kind.SYMBOL for token in tokens):
        raise Unsupported("several statements in one text", hint="run them one by one")


def _refuse_ignored(tokens: Sequence[Token]) -> None:
    """Clauses that DataFusion parses and then ignores or gets wrong."""
    for token, following in zip(tokens, [*tokens[1:], tokens[-1]]):
        if is_word(token, "TABLESAMPLE"):
            raise Unsupported("TABLESAMPLE")
        if is_word(token, "EXCEPT", "INTERSECT", "MINUS") and is_word(following, "ALL"):
            raise Unsupported(f"{token.text} ALL", hint=f"{token.text} without ALL is supported")


def _require_shallow(tokens: Sequence[Token]) -> None:
    """Unsupported when brackets or CASE nest too deep, or too many operators follow one another in one term."""
    chains = [0]
    for token in tokens:
        if (token.kind is Kind.SYMBOL and token.text in "([{") or is_word(token, "CASE"):
            chains.append(0)
            if len(chains) > MOST_NESTED:
                raise Unsupported(f"a statement nested more than {MOST_NESTED} deep")
        elif (token.kind is Kind.SYMBOL and token.text in ")]}") or is_word(token, "END"):
            chains = chains[:-1] or [0]
        elif token.text == "," or (token.kind is Kind.WORD and token.text in _RESETS):
            chains[-1] = 0
        elif is_operator(token) or token.text == ".":
            chains[-1] += 1
            if chains[-1] > MOST_OPERATORS_IN_A_ROW:
                raise Unsupported(f"an expression of more than {MOST_OPERATORS_IN_A_ROW} operators in a row")


def _require_small(tokens: Sequence[Token]) -> None:
    words = Counter(token.text for token in tokens if token.kind is Kind.WORD and token.text in ("SELECT", "JOIN"))
    if words["SELECT"] > MOST_QUERIES:
        raise Unsupported(f"a statement of more than {MOST_QUERIES} queries")
    if words["JOIN"] > MOST_JOINS:
        raise Unsupported(f"a statement of more than {MOST_JOINS} joins")
    if _expanded_queries(tokens) > MOST_EXPANDED_QUERIES:
        raise Unsupported(f"common table expressions that stand for more than {MOST_EXPANDED_QUERIES} queries")


def _expanded_queries(tokens: Sequence[Token]) -> int:
    """How many queries the statement has once each use of a common table expression stands for its text."""
    sizes: dict[str, int] = {}
    frames: list[tuple[str | None, int]] = [(None, 0)]
    for number, token in enumerate(tokens):
        name, size = frames[-1]
        if token.text == "(" and token.kind is Kind.SYMBOL:
            frames.append((_defined_name(tokens, number), 0))
        elif token.text == ")" and token.kind is Kind.SYMBOL and len(frames) > 1:
            frames.pop()
            outer, total = frames[-1]
            if name is not None:
                sizes[name] = max(size, 1)
            else:
                frames[-1] = (outer, total + size)
        else:
            size += sizes.get(token.text.upper(), 0) if token.kind is Kind.WORD else 0
            frames[-1] = (name, size + is_word(token, "SELECT"))
            if size > MOST_EXPANDED_QUERIES:
                return size
    return max(size for _, size in frames)


def _defined_name(tokens: Sequence[Token], number: int) -> str | None:
    """The name in `name AS (`, where the parenthesis is token `number`."""
    at = number - 1
    if at >= 0 and is_word(tokens[at], "MATERIALIZED"):
        at -= 1
    if at < 1 or not is_word(tokens[at], "AS"):
        return None
    before = tokens[at - 1]
    if before.text == ")":
        opening = max((n for n in range(at - 1) if tokens[n].text == "("), default=0)
        before = tokens[opening - 1] if opening else before
    return before.text.strip('"').upper() if before.kind in (Kind.WORD, Kind.NAME) else None


def _numbered(sql: str, tokens: Sequence[Token]) -> tuple[str, int]:
    """`?` as `$1`, `$2`, ... and the number of values wanted."""
    marks = [token for token in tokens if token.kind is Kind.PLACEHOLDER]
    anonymous = [token for token in marks if token.text == "?"]
    if anonymous and len(anonymous) != len(marks):
        raise InvalidRequest("parameters written as ? and as $1 in one statement")
    if not anonymous:
        named = next((token for token in marks if not token.text[1:].isdecimal() or token.text == "$0"), None)
        if named is not None:
            raise Unsupported(f"the named parameter {named.text}", hint="write $1, $2, ... or ?")
        return sql, max((int(token.text[1:]) for token in marks), default=0)
    parts, at = [], 0
    for number, token in enumerate(anonymous, 1):
        parts.append(sql[at : token.start] + f"${number}")
        at = token.end
    return "".join((*parts, sql[at:])), len(anonymous)


def _subquery_predicates(tokens: Sequence[Token]) -> tuple[bool, bool]:
    """Whether there is [NOT] IN (query), ANY (query) or ALL (query), and whether there is EXISTS."""
    has_in = False
    for number, token in enumerate(tokens[:-2]):
        if not is_word(token, "IN", "ANY", "SOME", "ALL") or tokens[number + 1].text != "(":
            continue
        inner = next((t for t in tokens[number + 2 :] if t.text != "("), token)
        if is_word(inner, *_QUERY_WORDS):
            has_in = True
            _refuse_null_test(tokens, number + 1)
    return has_in, any(is_word(token, "EXISTS") for token in tokens)


def _refuse_null_test(tokens: Sequence[Token], opening: int) -> None:
    """DataFusion takes `x IN (query)` for never NULL, and folds a test for that away."""
    depth, at = 0, opening
    while at < len(tokens):
        depth += (tokens[at].text == "(") - (tokens[at].text == ")")
        at += 1
        if depth <= 0 and (at >= len(tokens) or tokens[at].text != ")"):
            break
    rest = [token.text for token in tokens[at : at + 3]]
    if rest[:1] == ["IS"] and (set(rest[1:]) & {"NULL", "UNKNOWN", "DISTINCT"}):
        raise Unsupported("a test for NULL of an IN subquery")
