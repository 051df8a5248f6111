"""The search for a join order: the sum of the rows that all joins put out is to be small.

Few relations: every bushy tree without products, by dynamic programming over connected sets (Moerkotte and Neumann,
"Analysis of two existing and one new dynamic programming algorithm", 2006). Many: greedily, smallest output first (GOO:
Fegaras, "A new heuristic for optimizing large queries", 1998).
"""

from __future__ import annotations

from collections.abc import Iterator

from pystachio.planner.joins.components import Component, JoinSpace

_MOST_ENUMERATED = 8
"""Relations and attachments up to which all trees are tried: 3**8 splits at the very most, a few milliseconds."""


def best_order(space: JoinSpace) -> Component:
    """All relations joined, with all attachments."""
    if space.relations + space.attachments <= _MOST_ENUMERATED:
        found = _enumerated(space)
        if found is not None:
            return found
    return _greedy(space)


def _enumerated(space: JoinSpace) -> Component | None:
    """The cheapest tree; None when keys do not connect all relations.

    Estimates of a set are made once, for its cheapest split: what the other splits would put out is the same.
    """
    best = {1 << index: space.leaf(index) for index in range(space.relations)}
    links = space.links()
    for parts in range(1, space.everything + 1):
        if parts in best or not _is_connected(parts, links):
            continue
        made = _cheapest(space, parts, best)
        if made is not None:
            best[parts] = made
    return best.get(space.everything)


def _cheapest(space: JoinSpace, parts: int, best: dict[int, Component]) -> Component | None:
    pair = min(_splits(parts, best), key=lambda split: split[0].cost + split[1].cost, default=None)
    lowest = None if pair is None else pair[0].cost + pair[1].cost
    made = None
    for index in range(space.attachments):
        source = best.get(parts & ~space.attachment_bit(index))
        if source is None or source.parts == parts or (lowest is not None and source.cost >= lowest):
            continue
        attached = space.attached(source, index)
        if attached is not None:
            made, lowest = attached, source.cost
    return space.joined(*pair) if made is None and pair is not None else made


def _splits(parts: int, best: dict[int, Component]) -> Iterator[tuple[Component, Component]]:
    """Every two connected components that make up `parts` and that a key connects."""
    lowest = parts & -parts
    rest = parts ^ lowest
    beside = rest
    while beside:
        beside = (beside - 1) & rest
        left, right = best.get(lowest | beside), best.get(rest ^ beside)
        if left is not None and right is not None and left.neighbours & right.parts:
            yield left, right


def _is_connected(parts: int, links: list[int]) -> bool:
    reached = parts & -parts
    frontier = reached
    while frontier:
        beyond = 0
        while frontier:
            beyond |= links[(frontier & -frontier).bit_length() - 1]
            frontier &= frontier - 1
        frontier = beyond & parts & ~reached
        reached |= frontier
    return reached == parts


def _greedy(space: JoinSpace) -> Component:
    """Take the step with the smallest output until all is done; each step is estimated once."""
    components = [space.leaf(index) for index in range(space.relations)]
    pending = set(range(space.attachments))
    steps: list[Component] = []
    for position, component in enumerate(components):
        steps += _steps(space, component, components[:position], pending)
    while len(components) > 1 or pending:
        if not steps:
            steps = _products(space, components)
        taken = min(steps, key=lambda step: (step.rows, step.parts))
        components = [component for component in components if not component.parts & taken.parts]
        pending = {index for index in pending if not taken.parts & space.attachment_bit(index)}
        unused = sum(component.parts for component in components)
        steps = [step for step in steps if _is_possible(step, unused, space, pending)]
        steps += _steps(space, taken, components, pending)
        components.append(taken)
    return components[0]


def _steps(space: JoinSpace, component: Component, others: list[Component], pending: set[int]) -> list[Component]:
    """What joins of `component` with others over keys, and attachments to it, would make."""
    made = [space.joined(other, component) for other in others if other.neighbours & component.parts]
    attached = (space.attached(component, index) for index in sorted(pending))
    return made + [step for step in attached if step is not None]


def _products(space: JoinSpace, components: list[Component]) -> list[Component]:
    """Nothing is connected any more: every pair."""
    return [space.joined(left, right) for at, right in enumerate(components) for left in components[:at]]


def _is_possible(step: Component, unused: int, space: JoinSpace, pending: set[int]) -> bool:
    """Whether a step is still about whole components that exist and attachments that are pending."""
    allowed = unused | sum(space.attachment_bit(index) for index in pending)
    return not step.parts & ~allowed
