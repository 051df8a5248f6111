"""Bounds on SQL texts: what DataFusion plans within seconds, and within the stack of `sql.STACK_BYTES`.

Beyond them its parser overflows the stack, which ends the process, or its planner takes minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from pystachio.errors import Unsupported
from pystachio.planner.sql.chains import is_operator
from pystachio.planner.sql.text import QUERY_WORDS, Kind, Token

MOST_DIGITS: Final = 10_000
MOST_NESTED: Final = 100
MOST_SUBQUERIES_DEEP: Final = 16
MOST_OPERATORS_IN_A_ROW: Final = 256
MOST_CONDITIONS: Final = 20_000
MOST_QUERIES: Final = 1000
MOST_JOINS: Final = 150
MOST_GROUPING_SETS: Final = 4096
MOST_EXPANDED_QUERIES: Final = 5000

_RESETS: Final = frozenset({"AND", "OR", "WHEN", "THEN", "ELSE", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "ON"})
_CLAUSES: Final = frozenset(
    (
        "SELECT",
        "FROM",
        "WHERE",
        "GROUP",
        "HAVING",
        "ORDER",
        "LIMIT",
        "UNION",
        "INTERSECT",
        "EXCEPT",
        "WINDOW",
        "QUALIFY",
    )
)
# A query in parentheses behind one of these is a table, or a part of a set operation.
_TABLE_PLACES: Final = frozenset(
    ("FROM", "JOIN", "AS", "MATERIALIZED", "UNION", "INTERSECT", "EXCEPT", "LATERAL", "DISTINCT")
)


def require_bounded(tokens: Sequence[Token]) -> None:
    """Unsupported, naming the bound, for a statement beyond one."""
    _require_short_numbers(tokens)
    _require_shallow(tokens)
    _require_few_subqueries_deep(tokens)
    _require_small(tokens)


def _require_short_numbers(tokens: Sequence[Token]) -> None:
    if any(len(token.text) > MOST_DIGITS for token in tokens if token.kind is Kind.NUMBER):
        raise Unsupported(f"a number of more than {MOST_DIGITS} digits")


def _require_shallow(tokens: Sequence[Token]) -> None:
    """Unsupported when brackets or CASE nest too deep, or too many operators follow one another in one term."""
    chains = [0]
    for token in tokens:
        if token.kind is Kind.NUMBER or token.kind is Kind.STRING:
            continue
        if (token.kind is Kind.SYMBOL and token.text in "([{") or token.word == "CASE":
            chains.append(0)
            if len(chains) > MOST_NESTED:
                raise Unsupported(f"a statement nested more than {MOST_NESTED} deep")
        elif (token.kind is Kind.SYMBOL and token.text in ")]}") or token.word == "END":
            chains = chains[:-1] or [0]
        elif token.text == "," or (token.kind is Kind.WORD and token.text in _RESETS):
            chains[-1] = 0
        elif is_operator(token) or token.text == ".":
            chains[-1] += 1
            if chains[-1] > MOST_OPERATORS_IN_A_ROW:
                raise Unsupported(f"an expression of more than {MOST_OPERATORS_IN_A_ROW} operators in a row")


def _require_few_subqueries_deep(tokens: Sequence[Token]) -> None:
    """The planner's time doubles with every level of subqueries in expressions; those in FROM cost nothing."""
    subqueries = [False]
    for before, token, following in zip([None, *tokens], tokens, [*tokens[1:], tokens[-1]]):
        if token.kind is not Kind.SYMBOL:
            continue
        if token.text == "(":
            is_table = before is None or before.text == "(" or before.word in _TABLE_PLACES
            subqueries.append(following.word in QUERY_WORDS and not is_table)
            if sum(subqueries) > MOST_SUBQUERIES_DEEP:
                raise Unsupported(f"subqueries nested more than {MOST_SUBQUERIES_DEEP} deep")
        elif token.text == ")":
            subqueries = subqueries[:-1] or [False]


def _require_small(tokens: Sequence[Token]) -> None:
    counted = ("SELECT", "JOIN", "AND", "OR")
    words = Counter(token.text for token in tokens if token.kind is Kind.WORD and token.text in counted)
    if words["AND"] + words["OR"] > MOST_CONDITIONS:
        raise Unsupported(f"a statement of more than {MOST_CONDITIONS} conditions joined by AND and OR")
    if words["SELECT"] > MOST_QUERIES:
        raise Unsupported(f"a statement of more than {MOST_QUERIES} queries")
    if words["JOIN"] + _listed_tables(tokens) > MOST_JOINS:
        raise Unsupported(f"a statement of more than {MOST_JOINS} joins")
    if _grouping_sets(tokens) > MOST_GROUPING_SETS:
        raise Unsupported(f"a grouping by more than {MOST_GROUPING_SETS} sets")
    if _expanded_queries(tokens) > MOST_EXPANDED_QUERIES:
        raise Unsupported(f"common table expressions that stand for more than {MOST_EXPANDED_QUERIES} queries")


def _listed_tables(tokens: Sequence[Token]) -> int:
    """Commas in FROM clauses: each is a join."""
    total = 0
    in_from = [False]
    for token in tokens:
        if token.kind is Kind.SYMBOL:
            if token.text == "(":
                in_from.append(False)
            elif token.text == ")":
                in_from = in_from[:-1] or [False]
            elif token.text == "," and in_from[-1]:
                total += 1
        elif token.kind is Kind.WORD and token.text in _CLAUSES:
            in_from[-1] = token.text == "FROM"
    return total


def _grouping_sets(tokens: Sequence[Token]) -> int:
    """The most grouping sets that ROLLUP, CUBE and GROUPING SETS multiply to in one query of the statement."""
    most, product = 1, 1
    for number, token in enumerate(tokens[:-1]):
        if token.kind is not Kind.WORD:
            continue
        if token.word == "SELECT":
            product = 1
        elif token.word in ("ROLLUP", "CUBE", "SETS") and tokens[number + 1].text == "(":
            elements = _elements(tokens, number + 1)
            product *= 1 << min(elements, 64) if token.text == "CUBE" else elements + 1
            most = max(most, product)
            if most > MOST_GROUPING_SETS:
                break
    return most


def _elements(tokens: Sequence[Token], opening: int) -> int:
    """How many elements the parenthesis at `opening` lists."""
    depth, commas = 0, 0
    for number in range(opening, len(tokens)):
        token = tokens[number]
        if token.kind is Kind.SYMBOL:
            depth += (token.text == "(") - (token.text == ")")
            commas += token.text == "," and depth == 1
            if depth == 0:
                break
    return commas + 1


def _expanded_queries(tokens: Sequence[Token]) -> int:
    """How many queries the statement has once each use of a common table expression stands for its text."""
    sizes: dict[str, int] = {}
    frames: list[tuple[str | None, int]] = [(None, 0)]
    last_opening = 0
    for number, token in enumerate(tokens):
        if token.kind is Kind.NUMBER or token.kind is Kind.STRING:
            continue
        name, size = frames[-1]
        if token.text == "(" and token.kind is Kind.SYMBOL:
            frames.append((_defined_name(tokens, number, last_opening), 0))
            last_opening = number
        elif token.text == ")" and token.kind is Kind.SYMBOL and len(frames) > 1:
            frames.pop()
            outer, total = frames[-1]
            if name is not None:
                sizes[name] = max(size, 1)
            else:
                frames[-1] = (outer, total + size)
        else:
            size += sizes.get(token.text.upper(), 0) if token.kind is Kind.WORD else 0
            frames[-1] = (name, size + (token.word == "SELECT"))
            if size > MOST_EXPANDED_QUERIES:
                return size
    return max(size for _, size in frames)


def _defined_name(tokens: Sequence[Token], number: int, last_opening: int) -> str | None:
    """The name in `name AS (` or `name (columns) AS (`, where the parenthesis is token `number`, and the one before it
    `last_opening`.
    """
    at = number - 1
    if at >= 0 and tokens[at].word == "MATERIALIZED":
        at -= 1
    if at < 1 or tokens[at].word != "AS":
        return None
    before = tokens[at - 1]
    if before.text == ")":
        before = tokens[last_opening - 1] if last_opening else before
    return before.text.strip('"').upper() if before.kind in (Kind.WORD, Kind.NAME) else None
