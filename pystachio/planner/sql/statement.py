"""SQL to Substrait: DataFusion parses, types and decorrelates a statement over a catalog that knows schemas only.

Its optimiser runs without the rules that place predicates: they lose the NULLs of NOT IN (`5 NOT IN (query)` becomes
a filter inside the query), and `planner.rewrite` does that work for plans from anywhere. The rule for cross joins
stays: it also takes away USING, which the conversion to Substrait lacks.
"""

from __future__ import annotations

import datetime
import decimal
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import pyarrow as pa

from pystachio.errors import InvalidRequest, PystachioError, SqlSyntaxError, Unsupported
from pystachio.operators.batch import Schema
from pystachio.parameter_values import no_parameter, plain
from pystachio.planner.sql.duplicates import numbered, of_subqueries, told_apart
from pystachio.planner.sql.errors import from_datafusion, is_of_the_same_name, is_selected_twice, is_unknown_column
from pystachio.planner.sql.guard import Admitted, admit
from pystachio.planner.sql.membership import has_quantifier, refuse_own_column, refuse_repeated_comparison
from pystachio.planner.sql.names import quoted, spelt_as_known
from pystachio.planner.sql.text import on_one_line, tokenize
from pystachio.planner.substrait.types import is_plannable

_T = TypeVar("_T")

# The parser and the planner recurse; `guard` bounds how deep. Pages that are not touched cost nothing.
STACK_BYTES: Final = 128 << 20
_PARSER_RECURSION: Final = 400
# The size for new threads is the process's: two planners at once must not take each other's for what it was before.
_STACK_SIZE: Final = threading.Lock()

# Beside those that place predicates: constants are computed here as columns are (`planner.rewrites.constants`), and
# not by rules of their own.
_RULES_LEFT_OUT: Final = (
    "simplify_expressions",
    "push_down_filter",
    "extract_equijoin_predicate",
    "eliminate_outer_join",
    "filter_null_join_keys",
    "single_distinct_aggregation_to_group_by",
    "extract_leaf_expressions",
    "push_down_leaf_projections",
)
# They would make gigabytes out of two constants.
_FUNCTIONS_LEFT_OUT: Final = (
    "repeat",
    "lpad",
    "rpad",
    "array_repeat",
    "list_repeat",
    "array_resize",
    "list_resize",
    "range",
)
_TABLE_FUNCTIONS_LEFT_OUT: Final = ("range", "generate_series")

# What another spelling of the statement helps against.
_RESPELT: Final = (
    (is_selected_twice, numbered),
    (is_of_the_same_name, told_apart),
    (is_selected_twice, of_subqueries),
)

_QUOTES: Final = frozenset('"`')
_LONG_TEXT: Final = 1 << 18

_JOIN: Final = re.compile(
    r"(?:Inner|Left|Right|Full|LeftSemi|RightSemi|LeftAnti|RightAnti|LeftMark|RightMark|Cross) Join:"
)
_KNOWN_NODE: Final = re.compile(
    r"(?:  )*(?:\w+ Join:|Projection:|Filter:|Aggregate:|Sort:|Limit:|Union$|Distinct:|SubqueryAlias:|Subquery:"
    r"|TableScan:|Values:|EmptyRelation|WindowAggr:|Unnest:|Repartition:|RecursiveQuery:)"
)
"""A line of a plan's display that is one."""
_DECIMAL: Final = re.compile(
    r"\b(?:decimal(?:128)?|numeric|dec)\b(?:\s*\(\s*(?P<precision>\d{1,3})\s*(?:,\s*(?P<scale>\d{1,3})\s*)?\))?",
    re.IGNORECASE,
)
_DECIMAL_WITHOUT_SIZE: Final = (38, 10)
_NODE: Final = re.compile(r"^(?P<indent>(?:  )*)(?P<text>\S.*)$")


@dataclass(frozen=True, slots=True)
class PlannedStatement:
    """A statement as Substrait, with what Substrait cannot say (`substrait.read_plan`): which joins stand for [NOT] IN,
    and which decimal types the statement names.

    A plan that is not `cacheable` holds the time at which it was made.
    """

    substrait: bytes
    null_aware: tuple[bool | None, ...]
    decimals: frozenset[pa.DataType]
    cacheable: bool


class SqlPlanner:
    """Plans statements over tables that do not change. Safe for several threads; a statement takes about 2 ms."""

    def __init__(self, tables: Mapping[str, Schema]) -> None:
        self._tables = dict(tables)
        self._context = _context()
        self._lock = threading.Lock()
        self._told: set[str] = set()
        """The tables that the context knows."""

    def plan(self, sql: str, parameters: Sequence[Any] = ()) -> PlannedStatement:
        """The statement as a plan.

        Raises SqlSyntaxError, NotFound (with the nearest name), Unsupported (naming the construct), InvalidRequest.
        """
        admitted = admit(sql)
        if len(parameters) != admitted.placeholders:
            raise InvalidRequest(
                f"the statement has {admitted.placeholders} parameters, values given: {len(parameters)}"
            )
        values = {str(number): parameter(value) for number, value in enumerate(parameters, 1)}
        self._tell_of_tables(sql)
        return on_deep_stack(lambda: self._plan(sql, admitted, values))

    def _tell_of_tables(self, sql: str) -> None:
        """Make those tables known to the context that the statement may name, in upper or lower case: a catalog may
        have many others. A name with a quotation mark may be written in several ways, and a long text takes as long to
        be searched for a name as telling of its table does."""
        text, is_long = sql.casefold(), len(sql) > _LONG_TEXT
        with self._lock:
            for name, schema in self._tables.items():
                if name not in self._told and (is_long or name.casefold() in text or not _QUOTES.isdisjoint(name)):
                    self._context.register_record_batches(quoted(name), [[_empty(schema)]])
                    self._told.add(name)

    def _plan(self, sql: str, admitted: Admitted, parameters: Mapping[str, pa.Scalar]) -> PlannedStatement:
        from datafusion import SQLOptions
        from datafusion.substrait import Producer

        options = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
        try:
            frame = self._context.sql_with_options(admitted.sql, options, param_values=dict(parameters) or None)
            if admitted.has_null_sensitive_in:
                refuse_repeated_comparison(frame.logical_plan().display_indent())
            if has_quantifier(admitted.sql):
                refuse_own_column(frame.logical_plan().display_indent())
            plan = frame.optimized_logical_plan()
            substrait = Producer.to_substrait_plan(plan, self._context).encode()
            null_aware = self._null_aware(plan, admitted, parameters, options)
        except BaseException as error:
            if isinstance(error, PystachioError | KeyboardInterrupt | SystemExit):
                raise
            for is_meant, respelt in _RESPELT:
                if is_meant(error) and (text := respelt(admitted.sql, tokenize(admitted.sql))) != admitted.sql:
                    return self._plan(sql, replace(admitted, sql=text), parameters)
            if is_unknown_column(error) and (text := self._spelt(admitted.sql)) != admitted.sql:
                # As it is written first: where that means something, nothing else is meant.
                with suppress(SqlSyntaxError, InvalidRequest, Unsupported):
                    return self._plan(sql, replace(admitted, sql=text), parameters)
            raise from_datafusion(error, sql, admitted.sql, tuple(self._tables)) from None
        return PlannedStatement(substrait, null_aware, _written_decimals(admitted.sql), not admitted.is_volatile)

    def _null_aware(
        self, plan: Any, admitted: Admitted, parameters: Mapping[str, pa.Scalar], options: Any
    ) -> tuple[bool | None, ...]:
        if not admitted.has_null_sensitive_in:
            return ()
        plain_sql, plain_values = on_one_line(admitted.sql), {k: _on_one_line(v) for k, v in parameters.items()}
        if plain_sql != admitted.sql or plain_values != parameters:
            # The display breaks its lines where texts do; another text in their place has the same joins.
            frame = self._context.sql_with_options(plain_sql, options, param_values=plain_values or None)
            plan = frame.optimized_logical_plan()
        display = plan.display_indent()
        if not all(_KNOWN_NODE.match(line) for line in display.split("\n")):
            raise Unsupported("a line break in a text or a name of a statement with IN (query)")
        return _marks(display, admitted)

    def _spelt(self, sql: str) -> str:
        """The text with the columns of the tables that it names as they are spelt there."""
        tokens = tokenize(sql)
        named = {sql[token.start : token.end].strip('"`').casefold() for token in tokens}
        schemas = [schema for name, schema in self._tables.items() if name.casefold() in named]
        return spelt_as_known(sql, tokens, [field.name for schema in schemas for field in schema])


def plan_sql(sql: str, tables: Mapping[str, Schema], parameters: Sequence[Any] = ()) -> PlannedStatement:
    """One statement over `tables`; whoever plans several keeps an `SqlPlanner`."""
    return SqlPlanner(tables).plan(sql, parameters)


def _written_decimals(sql: str) -> frozenset[pa.DataType]:
    """The decimal types that the text names, also within strings (`arrow_cast`)."""
    found = set()
    for match in _DECIMAL.finditer(sql):
        precision = int(match["precision"] or _DECIMAL_WITHOUT_SIZE[0])
        scale = int(match["scale"] or (0 if match["precision"] else _DECIMAL_WITHOUT_SIZE[1]))
        if 0 < precision <= 38:
            found.add(pa.decimal128(precision, scale))
    return frozenset(found)


def _context() -> Any:
    from datafusion import SessionConfig, SessionContext

    config = (
        SessionConfig()
        .set("datafusion.sql_parser.parse_float_as_decimal", "true")
        .set("datafusion.sql_parser.recursion_limit", str(_PARSER_RECURSION))
        .set("datafusion.sql_parser.map_string_types_to_utf8view", "false")
        .set("datafusion.execution.target_partitions", "1")
        # A second pass would change the conditions of joins that the first made of NOT IN, and lose NULLs with them.
        .set("datafusion.optimizer.max_passes", "1")
    )
    context = SessionContext(config)
    for rule in _RULES_LEFT_OUT:
        context.remove_optimizer_rule(rule)
    for name in _FUNCTIONS_LEFT_OUT:
        context.deregister_udf(name)
    for name in _TABLE_FUNCTIONS_LEFT_OUT:
        context.deregister_udtf(name)
    return context


def _empty(schema: Schema) -> pa.RecordBatch:
    fields = [pa.field(f.name, _plannable(f.type), f.nullable) for f in schema]
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in fields], schema=pa.schema(fields))


def _plannable(type_: pa.DataType) -> pa.DataType:
    """The type as the planner is told. Binary stands in for one that Substrait lacks: a use of the column is refused
    when the plan is read, and the other columns stay usable."""
    return type_ if is_plannable(type_) else pa.binary()


def parameter(value: Any) -> pa.Scalar:
    """A parameter with the type that its Python value has. InvalidRequest when there is none that holds it."""
    value = plain(value)
    match value:
        case pa.Scalar():
            return value
        case bool() | None:
            return pa.scalar(value)
        case int() if not -(2**63) <= value < 2**63:
            raise InvalidRequest("an integer parameter beyond 64 bits")
        case int():
            return pa.scalar(value, pa.int64())
        case float():
            return pa.scalar(value, pa.float64())
        case decimal.Decimal() if not value.is_finite():
            raise InvalidRequest(f"a decimal parameter that is no number: {value}")
        case str() | bytes() | datetime.date() | datetime.time() | datetime.timedelta() | decimal.Decimal():
            try:
                return pa.scalar(value)
            except (pa.ArrowException, ValueError, OverflowError) as error:
                raise InvalidRequest(f"a parameter of the type {type(value).__name__} out of range: {error}") from None
            except Exception as error:  # of the value's own time zone
                raise InvalidRequest(f"a parameter of the type {type(value).__name__}: {error}") from error
        case _:
            raise no_parameter(value)


def _on_one_line(value: pa.Scalar) -> pa.Scalar:
    text = value.as_py() if pa.types.is_string(value.type) else None
    return value if text is None else pa.scalar(" ".join(text.splitlines()))


def _marks(display: str, admitted: Admitted) -> tuple[bool | None, ...]:
    """For each join in the order in which `substrait.read_plan` meets them: whether NULLs make [NOT] IN unknown.

    An anti join says so in DataFusion's display. A mark join does not, so it counts as IN when the NULLs of some IN
    matter, as they do here, and the statement has no EXISTS, and as undecided (None) when it has both.
    """
    in_mark = None if admitted.has_exists else True
    flags = [
        in_mark if "Mark Join:" in text[:16] else text.endswith(" null_aware") for text in _joins_in_order(display)
    ]
    return tuple(flags) if any(flag is not False for flag in flags) else ()


def _joins_in_order(display: str) -> list[str]:
    """The join lines of an indented plan: a node, then its inputs, then the subqueries of its expressions.

    The display puts subqueries before inputs.
    """
    root: list[Any] = ["", []]
    path = [root]
    for line in display.split("\n"):
        match = _NODE.match(line)
        if match is None:
            continue
        depth = len(match["indent"]) // 2
        if depth + 1 > len(path):
            continue
        node: list[Any] = [match["text"], []]
        path = path[: depth + 1]
        path[-1][1].append(node)
        path.append(node)
    found: list[str] = []
    waiting = [root]
    while waiting:
        text, children = waiting.pop()
        if _JOIN.match(text):
            found.append(text)
        subqueries = [child for child in children if child[0].startswith("Subquery:")]
        inputs = [child for child in children if not child[0].startswith("Subquery:")]
        waiting.extend(reversed(inputs + subqueries))
    return found


def on_deep_stack(function: Callable[[], _T]) -> _T:
    """The function's result, from a thread whose stack is large enough for what `guard` lets through."""
    outcome: list[_T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="sql-planner", daemon=True)
    with _STACK_SIZE:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
