"""A star schema after the Star Schema Benchmark: one table of facts, four of dimensions, skewed, with sparse keys.

Customers have random 64-bit keys, parts have keys with gaps, dates are numbers like 19940131; only suppliers are
numbered from 1. A few customers and parts have most of the orders.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.data import ROOT
from benchmarks.random_columns import generate, picked, random_keys, shuffled_skew

FACTS = 6_000_000
"""Rows of lineorder at scale 1."""

REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
NATIONS = (
    *("ALGERIA", "ETHIOPIA", "KENYA", "MOROCCO", "MOZAMBIQUE"),
    *("ARGENTINA", "BRAZIL", "CANADA", "PERU", "UNITED STATES"),
    *("CHINA", "INDIA", "INDONESIA", "JAPAN", "VIETNAM"),
    *("FRANCE", "GERMANY", "ROMANIA", "RUSSIA", "UNITED KINGDOM"),
    *("EGYPT", "IRAN", "IRAQ", "JORDAN", "SAUDI ARABIA"),
)
COLORS = ("almond", "azure", "blush", "coral", "cyan", "forest", "ghost", "indian", "khaki", "lemon", "navy", "plum")
MODES = ("AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK")
PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
CONTAINERS = ("SM CASE", "LG BOX", "MED BAG", "JUMBO JAR", "WRAP PACK")
FIRST_DAY = date(1992, 1, 1)
DAYS = 2557


def folder(scale: float) -> Path:
    """The five tables at this scale, generated once."""
    facts = int(FACTS * scale)
    customers, suppliers = max(int(30_000 * scale), 500), max(int(2_000 * scale), 100)
    parts = int(200_000 * (1 + np.log2(scale))) if scale >= 1 else max(int(200_000 * scale), 2_000)
    random = np.random.default_rng(1)
    customer_keys = random_keys(random, customers)
    part_keys = np.cumsum(random.integers(1, 200, parts))
    return generate(
        ROOT / f"star-{scale:g}",
        {
            "date": _dates,
            "customer": lambda: _customers(np.random.default_rng(2), customer_keys),
            "supplier": lambda: _suppliers(np.random.default_rng(3), suppliers),
            "part": lambda: _parts(np.random.default_rng(4), part_keys),
            "lineorder": lambda: _facts(np.random.default_rng(5), facts, customer_keys, part_keys, suppliers),
        },
    )


def _dates() -> pa.Table:
    days = [FIRST_DAY + timedelta(days=number) for number in range(DAYS)]
    return pa.table(
        {
            "d_datekey": pa.array([_date_key(day) for day in days], pa.int32()),
            "d_date": pa.array(days),
            "d_dayofweek": [day.strftime("%A") for day in days],
            "d_month": [day.strftime("%B") for day in days],
            "d_year": pa.array([day.year for day in days], pa.int32()),
            "d_yearmonthnum": pa.array([day.year * 100 + day.month for day in days], pa.int32()),
            "d_yearmonth": [day.strftime("%b%Y") for day in days],
            "d_weeknuminyear": pa.array([(day.timetuple().tm_yday - 1) // 7 + 1 for day in days], pa.int32()),
            "d_weekdayfl": [day.weekday() < 5 for day in days],
        }
    )


def _date_key(day: date) -> int:
    return day.year * 10_000 + day.month * 100 + day.day


def _cities(nations: np.ndarray, digits: np.ndarray) -> list[str]:
    return [f"{NATIONS[nation]:<9.9}{digit}" for nation, digit in zip(nations, digits)]


def _customers(random: np.random.Generator, keys: np.ndarray) -> pa.Table:
    nations = random.integers(0, 25, len(keys))
    return pa.table(
        {
            "c_custkey": keys,
            "c_name": [f"Customer#{number:09d}" for number in range(len(keys))],
            "c_city": _cities(nations, random.integers(0, 10, len(keys))),
            "c_nation": picked(NATIONS, nations),
            "c_region": picked(REGIONS, nations // 5),
            "c_mktsegment": picked(SEGMENTS, random.integers(0, 5, len(keys))),
        }
    )


def _suppliers(random: np.random.Generator, count: int) -> pa.Table:
    nations = random.integers(0, 25, count)
    return pa.table(
        {
            "s_suppkey": np.arange(1, count + 1, dtype=np.int32),
            "s_name": [f"Supplier#{number:09d}" for number in range(count)],
            "s_city": _cities(nations, random.integers(0, 10, count)),
            "s_nation": picked(NATIONS, nations),
            "s_region": picked(REGIONS, nations // 5),
        }
    )


def _parts(random: np.random.Generator, keys: np.ndarray) -> pa.Table:
    makers, categories, brands = (random.integers(1, top + 1, len(keys)) for top in (5, 5, 40))
    return pa.table(
        {
            "p_partkey": keys,
            "p_name": [f"{COLORS[a]} {COLORS[b]}" for a, b in random.integers(0, len(COLORS), (len(keys), 2)).tolist()],
            "p_mfgr": [f"MFGR#{a}" for a in makers],
            "p_category": [f"MFGR#{a}{b}" for a, b in zip(makers, categories)],
            "p_brand1": [f"MFGR#{a}{b}{c}" for a, b, c in zip(makers, categories, brands)],
            "p_color": picked(COLORS, random.integers(0, len(COLORS), len(keys))),
            "p_size": random.integers(1, 51, len(keys)).astype(np.int32),
            "p_container": picked(CONTAINERS, random.integers(0, len(CONTAINERS), len(keys))),
        }
    )


def _facts(
    random: np.random.Generator, rows: int, customer_keys: np.ndarray, part_keys: np.ndarray, suppliers: int
) -> pa.Table:
    """Orders of four lines on average, in the order in which they came; their numbers leave gaps."""
    order = np.sort(random.integers(0, max(rows // 4, 1), rows))
    orders = int(order[-1]) + 1
    starts = np.searchsorted(order, np.arange(orders))
    date_keys = np.array([_date_key(FIRST_DAY + timedelta(days=day)) for day in range(DAYS)], np.int32)
    day_of_order = np.sort(random.integers(0, DAYS - 120, orders))
    customer_of_order = customer_keys[shuffled_skew(random, len(customer_keys), orders, 0.8)]
    quantity = random.integers(1, 51, rows).astype(np.int32)
    price = random.integers(90_000, 2_100_000, rows)
    discount = random.integers(0, 11, rows).astype(np.int32)
    extended = quantity * price // 10
    return pa.table(
        {
            "lo_orderkey": order // 8 * 32 + order % 8 + 1,
            "lo_linenumber": (np.arange(rows) - starts[order] + 1).astype(np.int32),
            "lo_custkey": customer_of_order[order],
            "lo_partkey": part_keys[shuffled_skew(random, len(part_keys), rows, 0.7)],
            "lo_suppkey": (shuffled_skew(random, suppliers, rows, 0.5) + 1).astype(np.int32),
            "lo_orderdate": date_keys[day_of_order[order]],
            "lo_orderpriority": picked(PRIORITIES, random.integers(0, 5, orders)[order]),
            "lo_shippriority": np.zeros(rows, np.int32),
            "lo_quantity": quantity,
            "lo_extendedprice": extended,
            "lo_ordtotalprice": np.add.reduceat(extended, starts.clip(0, rows - 1))[order],
            "lo_discount": discount,
            "lo_revenue": extended * (100 - discount) // 100,
            "lo_supplycost": 6 * price // 100,
            "lo_tax": random.integers(0, 9, rows).astype(np.int32),
            "lo_commitdate": date_keys[day_of_order[order] + random.integers(30, 91, rows)],
            "lo_shipmode": picked(MODES, shuffled_skew(random, len(MODES), rows, 0.5)),
        }
    )
