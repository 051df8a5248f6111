"""DataFusion's errors as ours. It raises ValueError, RuntimeError and Exception, and panics; the text decides."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from pystachio.errors import InternalError, InvalidRequest, NotFound, PystachioError, SqlSyntaxError, Unsupported
from pystachio.planner.sql.positions import written_position
from pystachio.planner.sql.text import pointed_at, position_of
from pystachio.planner.substrait.tables import nearest

_LONGEST: Final = 300
_MOST_NAMES: Final = 10

_SYNTAX: Final = re.compile(r'^SQL error: (?:Parser|Tokenizer)Error\("(?P<text>.*)"\)$', re.DOTALL)
_PLACE: Final = re.compile(r" at Line: (?P<line>\d+), Column: (?P<column>\d+)")
_TABLE: Final = re.compile(r"(?<!function )table '(?:datafusion\.)?(?:public\.)?(?P<name>.*?)' not found")
_VALID: Final = re.compile(r"Valid fields are (?P<valid>.*?)\.?$", re.DOTALL)
_FUNCTION: Final = re.compile(r"Invalid function '(?P<name>.*?)'\.(?:\s*Did you mean '(?P<near>.*?)'\?)?")
_UNFIT: Final = re.compile(
    r"Function '(?P<name>\w+)' failed to match any signature(?:.*?received \w+ \(DataType: (?P<type>\w+))?", re.DOTALL
)
_NAMES: Final = {
    "RecursiveQuery": "WITH RECURSIVE",
    "Unnest": "UNNEST",
    "literal: Decimal256": "a number beyond 38 digits",
}
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


def from_datafusion(error: BaseException, written: str, parsed: str, tables: Collection[str]) -> PystachioError:
    """The typed error for what DataFusion raised on the text `parsed`, which the user had written as `written`."""
    if type(error).__name__ == "PanicException":
        return InternalError(f"the SQL planner failed: {_shortened(str(error))}")
    text = _innermost(str(error))
    syntax = _SYNTAX.match(text)
    if syntax is not None:
        return _syntax_error(written, parsed, _unescaped(syntax["text"]))
    if "RecursionLimitExceeded" in text:
        return Unsupported("a statement nested this deep")
    table = _TABLE.search(text)
    if table is not None:
        return NotFound(f"no table named {table['name']}", hint=nearest_or_all(table["name"], tables, "tables"))
    table_function = re.search(r"table function '(.*?)' not found", text)
    if table_function is not None:
        return NotFound(f"no table function named {table_function[1]}")
    if "No field named" in text:
        return _unknown_column(text)
    function = _FUNCTION.search(text)
    if function is not None:
        # DataFusion names one however far it is.
        hint = nearest(function["name"], [function["near"]]) if function["near"] else None
        return NotFound(f"no function named {function['name']}", hint=hint)
    refused = _REFUSED.search(text)
    if refused is not None:
        return Unsupported(f"the statement {refused['name']}", hint="only queries can be run: SELECT, WITH, VALUES")
    if text.startswith("SchemaError(FieldNotFound"):
        return Unsupported("a subquery correlated with a query further out than the one around it")
    named = re.search(r"Cannot parse placeholder id as numeric index: (\S+?)\"", text)
    if named is not None:
        return Unsupported(f"the named parameter {named[1]}", hint="write $1, $2, ... or ?")
    unfit = _UNFIT.search(text)
    if unfit is not None:
        return InvalidRequest(f"the function {unfit['name']} does not take {unfit['type'] or 'these arguments'}")
    if is_selected_twice(error):
        return InvalidRequest("a column is selected twice", hint="give one of them another name with AS")
    if is_of_the_same_name(error):
        return InvalidRequest(
            "two columns, groups or aggregates have the same name (an expression's leaves casts out)",
            hint="give one of them another name with AS, in a subquery where it is a group or an argument",
        )
    if "join constraint: `using`" in text:
        return Unsupported("USING or NATURAL in an outer join", hint="write the condition with ON")
    missing = _MISSING.search(text)
    if missing is not None:
        return Unsupported(_construct(next(part for part in missing.groups() if part is not None)))
    return InvalidRequest(_shortened(_bare(text)))


def is_selected_twice(error: BaseException) -> bool:
    """Whether a SELECT has two columns of the same name."""
    return "Projections require unique expression names" in str(error)


def is_of_the_same_name(error: BaseException) -> bool:
    """Whether two aggregates, groups or columns inside of a statement have the same name."""
    return "Schema contains duplicate" in str(error) or "which would be ambiguous" in str(error)


def is_unknown_column(error: BaseException) -> bool:
    """Whether a column is not found."""
    return "No field named" in str(error)


def _syntax_error(written: str, parsed: str, text: str) -> SqlSyntaxError:
    """The parser's complaint with the line it is about and a caret under the column."""
    place = _PLACE.search(text)
    if place is None:
        line, column = position_of(written, len(written.rstrip()))
    else:
        line, column = int(place["line"]), int(place["column"])
        if parsed != written:
            line, column = written_position(written, parsed, line, column)
    what = _shortened(_PLACE.sub("", text))
    message = f"{what} at line {line}, column {column}\n{pointed_at(written, line, column)}"
    return SqlSyntaxError(message, line=line, column=column)


def _unknown_column(text: str) -> NotFound:
    column = re.search(r"No field named (.+?)\.(?:\s|$)", text)
    name = column[1].replace('"', "") if column is not None else "?"
    listed = _VALID.search(text)
    spelt = [part.strip() for part in listed["valid"].split(",")] if listed is not None else []
    known = [part.replace('"', "") for part in spelt]
    for part, bare in zip(spelt, known, strict=True):
        if "." in name and bare.casefold() == name.casefold():
            return NotFound(f"no column named {name}", hint=f"did you mean {part}?")
    same = [part for part in known if part.split(".")[-1] == name.split(".")[-1]]
    if same:
        return NotFound(f"no column named {name}", hint=f"did you mean {same[0]}?")
    return NotFound(f"no column named {name}", hint=nearest_or_all(name.split(".")[-1], known, "columns"))


def nearest_or_all(name: str, known: Collection[str], what: str) -> str | None:
    """A hint with the nearest name, or with the names there are."""
    bare = list(dict.fromkeys(part.split(".")[-1] if what == "columns" else part for part in known))
    near = nearest(name, bare)
    if near is not None or not bare:
        return near
    more = ", ..." if len(bare) > _MOST_NAMES else ""
    return f"the {what} are {', '.join(bare[:_MOST_NAMES])}{more}"


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
    return _NAMES.get(name, _shortened(name or text))


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
