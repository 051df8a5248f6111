"""Weights across the cluster, against the max-min fair allocation computed in another way."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pystachio.io_scheduler.central.fairness import LARGEST_FACTOR, SMALLEST_FACTOR, SharedLink, balance, forget


def max_min_fair(runs: Mapping[str, frozenset[str]], rates: Mapping[str, float]) -> dict[str, float]:
    """Totals by repeatedly taking the worst bottleneck: the set of plans whose nodes offer least for each of them.

    Exponential in the number of plans, and shares nothing with the code under test.
    """
    totals: dict[str, float] = {}
    left = set(runs)
    nodes = dict(rates)
    while left:
        subsets = chain.from_iterable(combinations(sorted(left), size) for size in range(len(left), 0, -1))
        offers = {
            subset: sum(nodes.get(n, 0.0) for n in frozenset().union(*(runs[p] for p in subset))) for subset in subsets
        }
        worst = min(offers, key=lambda subset: (offers[subset] / len(subset), -len(subset)))
        for plan in worst:
            totals[plan] = offers[worst] / len(worst)
        for node in frozenset().union(*(runs[plan] for plan in worst)):
            nodes.pop(node, None)
        left -= set(worst)
    return totals


def shared(
    runs: Mapping[str, frozenset[str]], rates: Mapping[str, float], factors: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """What fair queues on each node make of the factors."""
    totals = dict.fromkeys(runs, 0.0)
    for node, rate in rates.items():
        whole = sum(factors[node].values())
        for plan, factor in factors[node].items():
            totals[plan] += rate * factor / whole
    return totals


def converge(runs: Mapping[str, frozenset[str]], rates: Mapping[str, float], *, steps: int) -> list[dict[str, float]]:
    """Totals before and after each step."""
    factors = {node: {plan: 1.0 for plan in runs if node in runs[plan]} for node in rates}
    history = [shared(runs, rates, factors)]
    for _ in range(steps):
        links = [SharedLink(rates[node], factors[node]) for node in rates]
        factors = dict(zip(rates, balance(links, dict.fromkeys(runs, 1.0), {}), strict=True))
        history.append(shared(runs, rates, factors))
    return history


def test_the_oracle_knows_the_plain_cases() -> None:
    nodes = dict.fromkeys("1234", 1.0)
    assert max_min_fair({"a": frozenset("1234"), "b": frozenset("1")}, nodes) == {"a": 3.0, "b": 1.0}
    assert max_min_fair({"a": frozenset("1234"), "b": frozenset("1234")}, nodes) == {"a": 2.0, "b": 2.0}
    assert max_min_fair({"a": frozenset("123"), "b": frozenset("12")}, nodes) == {"a": 1.5, "b": 1.5}


def test_plans_that_wait_for_the_same_keep_equal_weights_exactly() -> None:
    links = [SharedLink(5.3, {"a": 1.0, "b": 1.0, "c": 1.0}), SharedLink(3.1, {"a": 1.0, "b": 1.0, "c": 1.0})]
    assert balance(links, {"a": 1.0, "b": 1.0, "c": 7.0}, {}) == [{"a": 1.0, "b": 1.0, "c": 1.0}] * 2


def test_a_plan_on_one_node_gets_what_a_plan_on_four_leaves_it() -> None:
    history = converge({"a": frozenset("1234"), "b": frozenset("1")}, dict.fromkeys("1234", 1.0), steps=8)
    assert history[0] == {"a": 3.5, "b": 0.5}
    assert history[3]["b"] > 0.9, "three seconds"
    assert history[8]["b"] > 0.98, "the fair allocation is 1, and nobody is shut out"
    assert history[8]["a"] > 3.0


def test_totals_become_equal_where_they_can() -> None:
    history = converge({"a": frozenset("123"), "b": frozenset("12")}, dict.fromkeys("123", 1.0), steps=8)
    assert history[0] == {"a": 2.0, "b": 1.0}
    assert history[3]["a"] == pytest.approx(1.5, rel=0.06)
    assert history[8]["b"] == pytest.approx(1.5, rel=0.01)


def test_a_heavier_plan_gets_more_in_proportion() -> None:
    factors = [{"heavy": 1.0, "light": 1.0}, {"heavy": 1.0}, {"light": 1.0}]
    weights = {"heavy": 3.0, "light": 1.0}
    for _ in range(20):
        factors = balance(
            [SharedLink(2.0, factors[0]), SharedLink(1.0, factors[1]), SharedLink(1.0, factors[2])], weights, {}
        )
    heavy = 3.0 * factors[0]["heavy"]
    assert 1.0 + 2.0 * heavy / (heavy + factors[0]["light"]) == pytest.approx(3.0, rel=0.02)


def test_what_a_plan_gets_without_waiting_counts() -> None:
    factors = [{"a": 1.0, "b": 1.0}]
    for _ in range(20):
        factors = balance([SharedLink(10.0, factors[0])], {"a": 1.0, "b": 1.0}, {"a": 4.0})
    assert factors[0]["a"] / factors[0]["b"] == pytest.approx(3.0 / 7.0, rel=0.01), "4 + 3 and 7"


def test_a_correction_is_forgotten_where_the_plan_waits_for_nothing() -> None:
    for factor in (SMALLEST_FACTOR, LARGEST_FACTOR):
        for _ in range(20):
            factor = forget(factor)
        assert factor == pytest.approx(1.0, abs=0.05)


def test_nothing_shared_is_nothing_to_correct() -> None:
    assert balance([], {}, {}) == []
    assert balance([SharedLink(1.0, {"a": 1.0})], {"a": 1.0}, {}) == [{"a": 1.0}]
    assert balance([SharedLink(1.0, {"a": 4.0})], {"a": 1.0}, {}) == [{"a": 2.0}]


NODES = "1234"
clusters = st.tuples(
    st.lists(st.frozensets(st.sampled_from(NODES), min_size=1), min_size=2, max_size=5),
    st.lists(st.floats(1.0, 4.0), min_size=len(NODES), max_size=len(NODES)),
)


@settings(max_examples=150)
@given(clusters)
def test_any_cluster_comes_to_max_min_fairness(cluster: tuple[list[frozenset[str]], list[float]]) -> None:
    """As close as the smallest factor lets it."""
    runs = {f"p{number}": nodes for number, nodes in enumerate(cluster[0])}
    rates = {
        node: rate for node, rate in zip(NODES, cluster[1], strict=True) if any(node in at for at in runs.values())
    }
    fair = max_min_fair(runs, rates)
    history = converge(runs, rates, steps=60)
    for plan, total in history[-1].items():
        assert total == pytest.approx(fair[plan], rel=0.1)
    worst = [min(totals[plan] / fair[plan] for plan in runs) for totals in history]
    assert worst[6] > 0.85


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcd"), st.floats(SMALLEST_FACTOR, LARGEST_FACTOR), min_size=1), max_size=5
    ),
    st.lists(st.floats(1e-3, 1e12), min_size=5, max_size=5),
    st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4),
)
def test_factors_stay_within_their_bounds(
    factors: list[dict[str, float]], rates: list[float], weights: list[float]
) -> None:
    links = [SharedLink(rate, factor) for rate, factor in zip(rates, factors, strict=False)]
    balanced = balance(links, dict(zip("abcd", weights, strict=True)), {})
    assert [after.keys() for after in balanced] == [before.keys() for before in factors]
    for after in balanced:
        assert all(SMALLEST_FACTOR <= factor <= LARGEST_FACTOR for factor in after.values())
