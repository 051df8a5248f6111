"""Subquery predicates in an SQL text: EXISTS, and IN, ANY, ALL whose NULLs may matter.

DataFusion makes marks (true or false) of those that do not stand alone in a conjunction, and does not say which came
from where. The mark of an IN whose value is only asked for truth may be false for NULL, like that of EXISTS.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pystachio.errors import Unsupported
from pystachio.planner.sql.text import QUERY_WORDS, Kind, Token

# NOT in front of these belongs to the operator behind it, and says nothing about a subquery.
_OWN_NEGATION: Final = ("EXISTS", "LIKE", "ILIKE", "SIMILAR", "BETWEEN", "NULL", "DISTINCT", "TRUE", "FALSE", "UNKNOWN")
# Around an IN, these ask only whether it is true.
_TRUTH_BEFORE: Final = ("WHERE", "AND", "OR", "ON", "HAVING", "WHEN", "QUALIFY")
_TRUTH_BEHIND: Final = (
    *("AND", "OR", "THEN", "GROUP", "ORDER", "HAVING", "LIMIT", "OFFSET", "UNION", "INTERSECT", "EXCEPT", "WINDOW"),
    *("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "WHERE", "QUALIFY"),
)
_IN_SUBQUERY: Final = re.compile(r"([\w.\"]+) (?:NOT )?IN \(<subquery>\)")
_QUANTIFIED: Final = re.compile(r"\b(?:any|some|all)\s*\(", re.IGNORECASE)
_QUANTIFIED_SUBQUERY: Final = re.compile(r" (?:ANY|ALL) \(<subquery>\)")
_COMPUTED: Final = re.compile(r"[()]| (?:[-+*/%]|\|\||AS) ")
_BEFORE_QUERIES: Final = frozenset({"IN", "ANY", "SOME", "ALL"})
_COMPARISONS: Final = frozenset({"=", "<>", "!=", "<", ">", "<=", ">=", "<=>"})


def has_exists(tokens: Sequence[Token]) -> bool:
    """Whether there is an EXISTS."""
    return any(token.word == "EXISTS" for token in tokens)


def has_null_sensitive_in(tokens: Sequence[Token]) -> bool:
    """Whether there is an IN (query), or a comparison with ANY or ALL, that may be asked for more than truth.

    Unsupported for a test for NULL, which DataFusion folds away.
    """
    negates = any(_negates(tokens, number) for number, token in enumerate(tokens) if token.word == "NOT")
    openings: list[int] = []
    found = False
    for number, token in enumerate(tokens):
        if token.kind is Kind.SYMBOL and token.text == "(":
            openings.append(number)
        elif token.kind is Kind.SYMBOL and token.text == ")":
            openings = openings[:-1]
        elif token.word in _BEFORE_QUERIES and _compares_with_query(tokens, number):
            behind = _behind(tokens, number + 1)
            if behind[:1] == ["IS"] and set(behind[1:]) & {"NULL", "UNKNOWN", "DISTINCT"}:
                raise Unsupported("a test for NULL of an IN subquery")
            asked_for_truth = not behind or behind[0] in _TRUTH_BEHIND
            found = found or negates or not (asked_for_truth and _stands_alone(tokens, number, openings))
    return found


def _compares_with_query(tokens: Sequence[Token], number: int) -> bool:
    token = tokens[number]
    if token.word in ("ANY", "SOME", "ALL") and not (number and tokens[number - 1].text in _COMPARISONS):
        return False
    if token.word not in _BEFORE_QUERIES or number + 1 == len(tokens) or tokens[number + 1].text != "(":
        return False
    inner = number + 2
    while inner < len(tokens) and tokens[inner].text == "(":
        inner += 1
    return inner < len(tokens) and tokens[inner].word in QUERY_WORDS


def _negates(tokens: Sequence[Token], number: int) -> bool:
    """Whether the NOT at `number` may be about a subquery."""
    if number + 1 == len(tokens):
        return False
    if tokens[number + 1].word == "IN":
        return _compares_with_query(tokens, number + 1)
    return tokens[number + 1].word not in _OWN_NEGATION


def _behind(tokens: Sequence[Token], opening: int) -> list[str]:
    """The next words behind the parenthesis at `opening` and those that close right behind it."""
    depth, at = 0, opening
    while at < len(tokens):
        depth += (tokens[at].text == "(") - (tokens[at].text == ")")
        at += 1
        if depth <= 0 and (at == len(tokens) or tokens[at].text != ")"):
            break
    return [token.text for token in tokens[at : at + 3]]


def _stands_alone(tokens: Sequence[Token], number: int, openings: Sequence[int]) -> bool:
    """Whether nothing but AND, OR and parentheses stands between the IN at `number` and its clause."""
    start = number
    depth = 0
    while start > 0:
        before = tokens[start - 1]
        depth += (before.text == ")") - (before.text == "(")
        if depth < 0 or (depth == 0 and before.word in _TRUTH_BEFORE):
            break
        if depth == 0 and ((before.text in _COMPARISONS and start < number) or before.word in ("IS", "NOT")):
            return False
        start -= 1
    for opening in reversed(openings):
        if tokens[opening + 1].word in QUERY_WORDS:
            break
        if not (opening and (tokens[opening - 1].text == "(" or tokens[opening - 1].word in _TRUTH_BEFORE)):
            return False
    return True


def refuse_repeated_comparison(display: str) -> None:
    """Raises Unsupported for `x NOT IN (select y ... where x = y)`; `display` is DataFusion's plan as written.

    DataFusion drops one of the two equal comparisons, and what is left looks like a subquery without the condition,
    whose NULLs would matter.
    """
    lines = display.splitlines()
    for number, line in enumerate(lines):
        for operand in _IN_SUBQUERY.findall(line):
            block = _deeper(lines, number)
            projected = next(
                (text.removeprefix("Projection: ") for text in block if text.startswith("Projection: ")), ""
            )
            repeated = (f"outer_ref({operand}) = {projected}", f"{projected} = outer_ref({operand})")
            if projected and any(comparison in text for text in block for comparison in repeated):
                raise Unsupported(
                    "[NOT] IN whose subquery repeats the comparison",
                    hint="write [NOT] EXISTS with that condition, which means the same",
                )


def _deeper(lines: Sequence[str], number: int) -> list[str]:
    """The lines behind line `number` that are indented more, stripped."""
    depth = len(lines[number]) - len(lines[number].lstrip())
    block: list[str] = []
    for line in lines[number + 1 :]:
        if len(line) - len(line.lstrip()) <= depth:
            break
        block.append(line.strip())
    return block


def has_quantifier(sql: str) -> bool:
    """Whether there may be a comparison with ANY or ALL."""
    return _QUANTIFIED.search(sql) is not None


def refuse_own_column(display: str) -> None:
    """Raises Unsupported for `t.x > ANY (select t.x from t)`; `display` is DataFusion's plan as written.

    DataFusion takes both for the column of the subquery, and compares it with itself.
    """
    lines = display.split("\n")
    for number, line in enumerate(lines):
        compared = [re.split(r" (?:AND|OR) ", part)[-1] for part in _QUANTIFIED_SUBQUERY.split(line)[:-1]]
        if not compared:
            continue
        depth = _depth(line)
        for at in range(number + 1, len(lines)):
            if _depth(lines[at]) <= depth:
                break
            if _depth(lines[at]) == depth + 1 and lines[at].strip() == "Subquery:":
                column = _put_out(lines, at)
                if column is not None and any(_reads(operand, column) for operand in compared):
                    raise Unsupported(
                        f"a comparison of {column} with ANY or ALL of a column of the same name",
                        hint="give the table inside the parentheses another name: from t other",
                    )


def _reads(operand: str, column: str) -> bool:
    return re.search(rf'(?<![\w."]){re.escape(column)}(?![\w."])', operand) is not None


def _put_out(lines: Sequence[str], subquery: int) -> str | None:
    """The column that a subquery of the display puts out as it is; None for anything else."""
    for line in lines[subquery + 1 :]:
        kind, _, content = line.strip().partition(": ")
        if kind == "Projection":
            return None if _COMPUTED.search(content) else content
        # The left side of a join comes first: EXCEPT and INTERSECT are joins.
        if kind not in ("Sort", "Limit", "Filter", "Distinct:", "Union") and not kind.endswith("Join"):
            return None
    return None


def _depth(line: str) -> int:
    return (len(line) - len(line.lstrip(" "))) // 2
