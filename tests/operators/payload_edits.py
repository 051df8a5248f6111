"""Damage that keeps a payload well-formed: random edits of what msgpack decoded."""

from __future__ import annotations

import random
from typing import Any

_NUMBERS = (-1, 1, 2, -2, 5, 1000, -1000, 2**40)
_OTHERS = (None, True, 0, -1, 1.5, "x", b"", [], [0])


def edit(value: list[Any], rng: random.Random) -> None:
    """One change somewhere below: another number or value, one that is gone, there twice or in another's place."""
    parent, place = value, rng.randrange(len(value))
    while isinstance(parent[place], list) and parent[place] and rng.random() < 0.97:
        parent = parent[place]
        place = rng.randrange(len(parent))
    old, choice = parent[place], rng.random()
    if choice < 0.5 and type(old) is int:
        parent[place] = old + rng.choice(_NUMBERS)
    elif choice < 0.6:
        parent[place] = rng.choice(_OTHERS)
    elif choice < 0.7:
        del parent[place]
    elif choice < 0.8:
        parent.insert(place, old)
    else:
        parent[place] = parent[rng.randrange(len(parent))]
