"""Where a distributed plan's rows are: on the coordinator alone, or spread over the nodes, perhaps by a hash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pystachio.operators.expressions import JoinKind
from pystachio.operators.joins.join import Join


@dataclass(frozen=True, slots=True)
class Spread:
    """Rows on all nodes, each on one.

    `keys`: each is on the node of the hash of so many values, in this order; each value stands in all fields of a set.
    None: rows are anywhere.
    """

    keys: tuple[frozenset[int], ...] | None = None


class Single:
    """Rows on the coordinator."""


Place = Spread | Single
SINGLE: Final = Single()
ANYWHERE: Final = Spread()


def hashed_by(keys: Sequence[int]) -> Spread:
    """After a shuffle by these fields."""
    return Spread(tuple(frozenset((key,)) for key in keys))


def moved(place: Place, fields: Iterable[tuple[int, int]]) -> Place:
    """After fields went to other positions, as pairs of the old and the new one; those that are left out are gone.
    Without one of its values nothing is known of a hash."""
    if isinstance(place, Single) or place.keys is None:
        return place
    found: dict[int, set[int]] = {}
    for old, new in fields:
        found.setdefault(old, set()).add(new)
    keys = tuple(frozenset(new for old in key for new in found.get(old, ())) for key in place.keys)
    return Spread(keys) if all(keys) else ANYWHERE


def among(place: Place, fields: Iterable[int]) -> bool:
    """Whether rows that agree in all `fields` are on one node: the hash is made of some of them."""
    if isinstance(place, Single):
        return True
    known = frozenset(fields)
    return place.keys is not None and all(key & known for key in place.keys)


def order_among(place: Place, keys: Sequence[int]) -> tuple[int, ...] | None:
    """Which of a join's keys (by position in `keys`) the hash is made of, in its order; None when not of them alone."""
    if isinstance(place, Single) or place.keys is None:
        return None
    found = [next((number for number, key in enumerate(keys) if key in value), None) for value in place.keys]
    order = tuple(number for number in found if number is not None)
    return order if len(order) == len(found) else None


def after_join(join: Join, left: Place, right: Place) -> Place:
    """Where a join's rows are, in terms of what it puts out, when the rows of its sides are at `left` and `right` and
    those that match are on one node. Fields that the join fills with NULL say nothing of where a row is, nor do the
    keys of the other side where rows without a partner are put out."""
    width = len(join.left.schema)
    left_fields = [(field, field) for field in range(width)]
    right_fields = [(field, width + field) for field in range(len(join.right.schema))]
    match join.kind:
        case JoinKind.INNER:
            pairs = list(zip(join.left_keys, join.right_keys, strict=True))
            place = _both(
                moved(left, [*left_fields, *((one, width + other) for one, other in pairs)]),
                moved(right, [*right_fields, *((other, one) for one, other in pairs)]),
            )
        case JoinKind.RIGHT:
            place = moved(right, right_fields)
        case JoinKind.FULL:
            place = ANYWHERE
        case _:
            place = moved(left, left_fields)
    return moved(place, [(field, position) for position, field in enumerate(join.output)])


def _both(one: Place, other: Place) -> Place:
    """Of rows that are made of a row of each. A side that is anywhere, or everywhere, is where the other one needs it;
    two that are spread are so by equal values in the same order."""
    known = [place for place in (one, other) if isinstance(place, Spread) and place.keys is not None]
    if len(known) < 2:
        return known[0] if known else ANYWHERE
    first, second = (place.keys or () for place in known)
    return Spread(tuple(a | b for a, b in zip(first, second, strict=True)))
