from __future__ import annotations

import random

import pytest

from pystachio.planner.cardinality import Estimator
from pystachio.planner.pushdown import prune_columns
from pystachio.planner.sharing import unify
from tests.planner.interpreter import multiset, rows_of
from tests.planner.random_plans import random_query, random_tables


@pytest.mark.parametrize("seed", range(300))
def test_pruned_plans_mean_the_same(seed: int) -> None:
    chance = random.Random(seed)
    tables = random_tables(chance)
    query = random_query(chance, tables)
    pruned = prune_columns(unify(query), Estimator(tables))
    assert multiset(rows_of(pruned.root, tables)) == multiset(rows_of(query.root, tables))
