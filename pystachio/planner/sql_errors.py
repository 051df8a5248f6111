"""DataFusion's errors as ours. It raises ValueError, RuntimeError and Exception, and panics; the text decides."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from pystachio.errors import InternalError, InvalidRequest, NotFound, PystachioError, SqlSyntaxError, Unsupported
from pystachio.planner.substrait_tables import nearest

_LONGEST: Final = 300
_CARET_REACH: Final = 60

_SYNTAX: Final = re.compile(r'^SQL error: (?:Parser|Tokenizer)Error\("(?P<text>.*)"\)$', re.DOTALL)
_PLACE: Final = re.compile(r" at Line: (?P<line>\d+), Column: (?P<column>\d+)")
_TABLE: Final = re.compile(r"table '(?:datafusion\.)?(?:public\.)?(?P<name>.*?)' not found")
_COLUMN: Final = re.compile(
    r"No field named (?P<name>.+?)\.(?: Did you mean|\s*$|\nValid fields are (?P<valid>.*?)\.?$)", re.DOTALL
)
_VALID: Final = re.compile(r"Valid fields are (?P<valid>.*?)\.?$", re.DOTALL)
_FUNCTION: Final = re.compile(r"Invalid function '(?P<name>.*?)'\.(?:\s*Did you mean '(?P<near>.*?)'\?)?")
_REFUSED: Final = re.compile(r"(?:DDL|DML|Statement) not supported: (?P<name>\w+)")
_MISSING: Final = re.compile(
    r"This feature is not implemented: (.*)|^NotImplemented\(\"(.*)\"\)$|^Substrait\(\"(.*)\"\)$",
    re.DOTALL,
)
_PREFIXES: Final = (
    "DataFusion error: ",
    "Error during planning: ",
    "Execution error: ",
    "Schema error: ",
    "Internal error: ",
    "Arrow error: ",
    "SQL error: ",
    "Cast error: ",
    "Parser error: ",
    "External error: ",
)


def from_datafusion(error: BaseException, sql: str, tables: Collection[str]) -> PystachioError:
    """The typed error for what DataFusion raised on `sql`."""
    if type(error).__name__ == "PanicException":
        return InternalError(f"the SQL planner failed: {_shortened(str(error))}")
    text = _innermost(str(error))
    syntax = _SYNTAX.match(text)
    if syntax is not None:
        return syntax_error(sql, _unescaped(syntax["text"]))
    if "RecursionLimitExceeded" in text:
        return Unsupported("a statement nested this deep")
    table = _TABLE.search(text)
    if table is not None:
        return NotFound(f"no table named {table['name']}", hint=nearest(table["name"], list(tables)))
    if "No field named" in text:
        return _unknown_column(text)
    function = _FUNCTION.search(text)
    if function is not None:
        hint = f"did you mean {function['near']}?" if function["near"] else None
        return NotFound(f"no function named {function['name']}", hint=hint)
    refused = _REFUSED.search(text)
    if refused is not None:
        return Unsupported(f"the statement {refused['name']}", hint="only queries can be run: SELECT, WITH, VALUES")
    if "join constraint: `using`" in text:
        return Unsupported("USING or NATURAL in an outer join", hint="write the condition with ON")
    missing = _MISSING.search(text)
    if missing is not None:
        return Unsupported(_construct(next(part for part in missing.groups() if part is not None)))
    return InvalidRequest(_shortened(_bare(text)))


def syntax_error(sql: str, text: str) -> SqlSyntaxError:
    """The parser's complaint with the line it is about and a caret under the column."""
    place = _PLACE.search(text)
    if place is None:
        line, column = sql.count("\n") + 1, len(sql) - (sql.rfind("\n") + 1) + 1
    else:
        line, column = int(place["line"]), int(place["column"])
    what = _shortened(_PLACE.sub("", text))
    message = f"{what} at line {line}, column {column}\n{pointed_at(sql, line, column)}"
    return SqlSyntaxError(message, line=line, column=column)


def pointed_at(sql: str, line: int, column: int) -> str:
    """The source line, or the part around the column, and below it a caret."""
    lines = sql.split("\n")
    source = lines[line - 1].replace("\t", " ").rstrip("\r") if 0 < line <= len(lines) else ""
    start = max(0, column - 1 - _CARET_REACH)
    return f"  {source[start : column - 1 + _CARET_REACH]}\n  {' ' * (column - 1 - start)}^"


def _unknown_column(text: str) -> NotFound:
    column = re.search(r"No field named (.+?)\.(?:\s|$)", text)
    name = column[1] if column is not None else "?"
    listed = _VALID.search(text)
    known = [part.strip().replace('"', "") for part in listed["valid"].split(",")] if listed is not None else []
    bare = name.replace('"', "").split(".")[-1]
    unqualified = list(dict.fromkeys(part.split(".")[-1] for part in known))
    return NotFound(f"no column named {name}", hint=nearest(bare, unqualified))


def _innermost(text: str) -> str:
    """What lies behind the last `caused by`."""
    return text.rsplit("\ncaused by\n", 1)[-1].removeprefix("DataFusion error: ")


def _construct(text: str) -> str:
    """The name of what is missing, without the dump of the syntax tree behind it."""
    text = _unescaped(text)
    for noise in (
        "Unsupported plan type: ",
        "Unsupported ast node in sqltorel: ",
        "Unsupported ast node ",
        "Unsupported ",
    ):
        text = text.removeprefix(noise)
    if text.startswith("Cannot convert OuterReferenceColumn"):
        return "a correlated subquery in this place"
    if text.startswith("Cannot convert "):
        text = text.removeprefix("Cannot convert ")
    name = re.split(r"\s*[{(]|\n", text, maxsplit=1)[0].strip()
    return _shortened(name or text)


def _bare(text: str) -> str:
    while True:
        stripped = text
        for prefix in _PREFIXES:
            stripped = stripped.removeprefix(prefix)
        if stripped == text:
            return text.split("\n\nBacktrace:")[0].split("\nThis issue was likely caused by a bug")[0]
        text = stripped


def _unescaped(text: str) -> str:
    return text.replace('\\"', '"').replace("\\n", "\n").replace("\\'", "'").replace("\\\\", "\\")


def _shortened(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 3] + "..."
