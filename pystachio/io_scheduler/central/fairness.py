"""Weights that make the plans of a class share the whole cluster fairly, not only each link by itself.

Each link shares its rate among the plans that wait for it in proportion to their weights there. With equal weights, a
plan that waits on four nodes gets four times what a plan on one of them gets. Here each link's weights are corrected so
that the totals of the plans become equal, or as nearly equal as the links allow: max-min fair in the whole cluster.

With `rate[n]` what link n delivers to those that wait for it, x[p, n] what plan p would get of that by the present
factors, and X[p] its total, with what it gets where it does not wait, one iteration is

    y[p, n] = x[p, n] * w[p] / X[p],
    x[p, n] <- rate[n] * y[p, n] / (sum of y[q, n] over the plans q that wait for n).

This is expectation maximisation (Cover: "An algorithm for maximizing expected log investment return", IEEE Trans. Inf.
Theory 30, 1984; without other income the alternate scaling of rows and columns by Sinkhorn and Knopp): each iteration
increases the sum of w[p] log X[p], up to its maximum. The totals that links can give form the base of a polymatroid,
where this maximum is the weighted max-min fair one (Fujishige: "Lexicographically optimal base of a polymatroid with
respect to a weight vector", Math. Oper. Res. 5, 1980).

It is stable because nothing is fed back: links are work-conserving, so what one delivers to those that wait for it does
not depend on their weights, and how it is divided at present is not an input. Only who waits is measured, and comes and
goes; so a factor moves by `SMOOTHING` of the way with each step, which leaves the fixed point where it is. Plans that
wait for the same links keep equal weights exactly. A factor is at least `SMALLEST_FACTOR`: whatever a plan gets
elsewhere, about that part of its locally fair share of a link remains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pystachio.io_scheduler.core.request import Direction

SMALLEST_FACTOR = 0.03
LARGEST_FACTOR = 32.0
SMOOTHING = 0.5
ITERATIONS = 8
"""With each step; the next one goes on from where this one ended."""
FORGETTING = 0.2
"""The part of its correction that a plan loses with each step on a node where it waits for nothing."""


class LinkClass(NamedTuple):
    """Links of the same kind in the whole cluster: what a plan gets of them may be added up."""

    medium: str
    direction: Direction


class SharedLink(NamedTuple):
    """Bytes per second that a node's links of one class deliver to those that wait for them, and the present factors
    of these plans: by plan, a correction of its weight.
    """

    rate: float
    factors: Mapping[str, float]


def balance(
    links: Sequence[SharedLink], weights: Mapping[str, float], elsewhere: Mapping[str, float]
) -> list[dict[str, float]]:
    """The next factors on each of the links, which are of one class.

    `weights` are the plans' own; `elsewhere` is what a plan gets on links of the class where it does not wait.
    """
    shares = [_shares(link, weights) for link in links]
    for _ in range(ITERATIONS):
        _iterate(links, shares, weights, elsewhere)
    return [_factors(link, share, weights) for link, share in zip(links, shares, strict=True)]


def forget(factor: float) -> float:
    """The next factor where the plan waits for nothing."""
    return round(math.pow(factor, 1.0 - FORGETTING), 4)


def _shares(link: SharedLink, weights: Mapping[str, float]) -> dict[str, float]:
    whole = sum(weights[plan_id] * factor for plan_id, factor in link.factors.items())
    return {plan_id: link.rate * weights[plan_id] * factor / whole for plan_id, factor in link.factors.items()}


def _iterate(
    links: Sequence[SharedLink],
    shares: Sequence[dict[str, float]],
    weights: Mapping[str, float],
    elsewhere: Mapping[str, float],
) -> None:
    totals = {plan_id: elsewhere.get(plan_id, 0.0) for plan_id in weights}
    for share in shares:
        for plan_id, rate in share.items():
            totals[plan_id] += rate
    for link, share in zip(links, shares, strict=True):
        for plan_id, rate in share.items():
            share[plan_id] = rate * weights[plan_id] / totals[plan_id]
        whole = sum(share.values())
        for plan_id, part in share.items():
            share[plan_id] = link.rate * part / whole


def _factors(link: SharedLink, share: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """From shares to corrections: 1 for the share that the plan's own weight gives it on this link."""
    whole = sum(weights[plan_id] for plan_id in share)
    factors = {}
    for plan_id, rate in share.items():
        wanted = max(SMALLEST_FACTOR, rate / link.rate * whole / weights[plan_id])
        factor = link.factors[plan_id] ** (1.0 - SMOOTHING) * wanted**SMOOTHING
        # Rounded, so that equal plans have equal weights, not nearly equal ones.
        factors[plan_id] = round(max(SMALLEST_FACTOR, min(LARGEST_FACTOR, factor)), 4)
    return factors
