"""Function names of Substrait, DataFusion, DuckDB and Isthmus as the registry's canonical names.

A plan declares functions as a bare name (DataFusion), or as name and signature under a URN or a URI
(`functions_arithmetic.yaml`, `add:i64_i64`). The name alone says which function is meant: producers disagree about
the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from substrait import plan_pb2

from pystachio.errors import InvalidRequest, Unsupported

_SCALAR: Final[Mapping[str, str]] = {
    "=": "equal",
    "eq": "equal",
    "!=": "not_equal",
    "<>": "not_equal",
    "neq": "not_equal",
    "<": "lt",
    "<=": "lte",
    ">": "gt",
    ">=": "gte",
    "less_than": "lt",
    "greater_than": "gt",
    "equal_null_safe": "is_not_distinct_from",
    "isnull": "is_null",
    "isnotnull": "is_not_null",
    "is_unknown": "is_null",
    "is_not_unknown": "is_not_null",
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "/": "divide",
    "%": "modulus",
    "mod": "modulus",
    "modulo": "modulus",
    "negative": "negate",
    "pow": "power",
    "ceiling": "ceil",
    "log_e": "ln",
    "signum": "sign",
    "is_nan": "isnan",
    "like_match": "like",
    "like_imatch": "ilike",
    "~~": "like",
    "~~*": "ilike",
    "str_concat": "concat_operator",
    "||": "concat_operator",
    "substr": "substring",
    "length": "char_length",
    "len": "char_length",
    "character_length": "char_length",
    "btrim": "trim",
    "regex_match": "regexp_like",
    "prefix": "starts_with",
    "suffix": "ends_with",
    "datepart": "date_part",
    "extract": "date_part",
    "datetrunc": "date_trunc",
    "nvl": "coalesce",
    "ifnull": "coalesce",
    "&": "bitwise_and",
    "|": "bitwise_or",
    "^": "bitwise_xor",
    "~": "bitwise_not",
    "bitwise_shift_left": "shift_left",
    "bitwise_shift_right": "shift_right",
    "<<": "shift_left",
    ">>": "shift_right",
    "add_intervals": "add",
}

_NEGATED: Final[Mapping[str, str]] = {
    "like_not_match": "like",
    "like_not_imatch": "ilike",
    "not_like": "like",
    "not_ilike": "ilike",
    "!~~": "like",
    "!~~*": "ilike",
    "regex_not_match": "regexp_like",
    "regex_not_imatch": "regex_imatch",
}

_AGGREGATE: Final[Mapping[str, str]] = {
    "mean": "avg",
    "count_star": "count",
    "$sum0": "sum0",
    "stddev": "stddev_samp",
    "std_dev": "stddev_samp",
    "var": "var_samp",
    "variance": "var_samp",
    "var_sample": "var_samp",
    "stddev_sample": "stddev_samp",
    "var_population": "var_pop",
    "stddev_population": "stddev_pop",
    "every": "bool_and",
    "any": "any_value",
    "first": "first_value",
    "last": "last_value",
}


def declared_functions(plan: plan_pb2.Plan) -> dict[int, str]:
    """The plan's functions by anchor: lower case, without signature."""
    functions: dict[int, str] = {}
    for declaration in plan.extensions:
        kind = declaration.WhichOneof("mapping_type")
        if kind == "extension_function":
            function = declaration.extension_function
            functions[function.function_anchor] = bare_name(function.name)
    return functions


def bare_name(name: str) -> str:
    """`add:i64_i64` as `add`; a name that begins with a colon or has none stays."""
    return name.split(":", 1)[0].lower() if not name.startswith(":") else name.lower()


def function_name(functions: Mapping[int, str], anchor: int) -> str:
    """The name that the plan declared under `anchor`."""
    if anchor not in functions:
        raise InvalidRequest(f"the plan declares no function under the anchor {anchor}")
    name = functions[anchor]
    if not name:
        raise InvalidRequest(f"the function under the anchor {anchor} has no name")
    return name


def scalar_name(name: str) -> tuple[str, bool]:
    """The registry's name, and whether the result is negated."""
    if name in _NEGATED:
        return _NEGATED[name], True
    return _SCALAR.get(name, name), False


def aggregate_name(name: str) -> str:
    """The canonical name of an aggregate."""
    return _AGGREGATE.get(name, name)


AGGREGATES: Final = frozenset(
    {
        "sum",
        "avg",
        "min",
        "max",
        "count",
        "stddev_samp",
        "stddev_pop",
        "var_samp",
        "var_pop",
        "bool_and",
        "bool_or",
        "first_value",
        "any_value",
    }
)


def require_aggregate(name: str) -> str:
    """The canonical name of an aggregate that the engine has."""
    canonical = aggregate_name(name)
    if canonical not in AGGREGATES:
        raise Unsupported(f"the aggregate function {name}")
    return canonical
