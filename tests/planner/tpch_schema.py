"""The tables of TPC-H as a Parquet writer without NULLs declares them."""

from __future__ import annotations

import pyarrow as pa

from pystachio.operators.batch import Field, Schema

_TYPES = {"key": pa.int64(), "int": pa.int32(), "money": pa.decimal128(15, 2), "text": pa.string(), "date": pa.date32()}


def _table(prefix: str, columns: str) -> Schema:
    """From `name:type` words."""
    pairs = (column.split(":") for column in columns.split())
    return tuple(Field(f"{prefix}_{name}", _TYPES[kind], False) for name, kind in pairs)


TPCH: dict[str, Schema] = {
    "region": _table("r", "regionkey:key name:text comment:text"),
    "nation": _table("n", "nationkey:key name:text regionkey:key comment:text"),
    "supplier": _table("s", "suppkey:key name:text address:text nationkey:key phone:text acctbal:money comment:text"),
    "customer": _table(
        "c", "custkey:key name:text address:text nationkey:key phone:text acctbal:money mktsegment:text comment:text"
    ),
    "part": _table(
        "p",
        "partkey:key name:text mfgr:text brand:text type:text size:int container:text retailprice:money comment:text",
    ),
    "partsupp": _table("ps", "partkey:key suppkey:key availqty:int supplycost:money comment:text"),
    "orders": _table(
        "o",
        "orderkey:key custkey:key orderstatus:text totalprice:money orderdate:date orderpriority:text clerk:text"
        " shippriority:int comment:text",
    ),
    "lineitem": _table(
        "l",
        "orderkey:key partkey:key suppkey:key linenumber:int quantity:money extendedprice:money discount:money"
        " tax:money returnflag:text linestatus:text shipdate:date commitdate:date receiptdate:date shipinstruct:text"
        " shipmode:text comment:text",
    ),
}
