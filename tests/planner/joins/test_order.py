from __future__ import annotations

import random

import pytest

from pystachio.planner.cardinality import Estimator
from pystachio.planner.joins.order import reorder
from tests.planner.interpreter import multiset, rows_of
from tests.planner.random_plans import random_query, random_tables


@pytest.mark.parametrize("seed", range(400))
def test_reordered_plans_mean_the_same(seed: int) -> None:
    chance = random.Random(seed)
    tables = random_tables(chance)
    query = random_query(chance, tables)
    reordered = reorder(query, Estimator(tables))
    assert multiset(rows_of(reordered.root, tables)) == multiset(rows_of(query.root, tables))
    assert [f.type for f in reordered.root.schema] == [f.type for f in query.root.schema]
