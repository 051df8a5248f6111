"""A frame of every type there is, made from the types themselves: a new type is here without being named."""

from __future__ import annotations

import random
from typing import Any, get_type_hints

from pystachio.io_scheduler.network import frames
from pystachio.io_scheduler.network.frames import FRAME_TYPES, Frame

_LENGTHS = {"instance": frames.INSTANCE_BYTES, "nonce": frames.NONCE_BYTES, "proof": frames.PROOF_BYTES}


def any_frame(kind: type[Frame], chance: random.Random) -> Frame:
    """Of this type, with values that may well mean something."""
    made: Any = kind
    return made(*(_value(name, hint, chance) for name, hint in get_type_hints(kind).items()))  # type: ignore[no-any-return]


def random_frame(chance: random.Random) -> Frame:
    return any_frame(chance.choice(FRAME_TYPES), chance)


def _value(name: str, hint: type, chance: random.Random) -> Any:
    if hint is bool:
        return chance.random() < 0.5
    if hint is int:
        if name in ("version", "role", "carrier", "code"):
            return chance.choice([0, 1, 2, 3, 255])
        return chance.choice([0, 1, 2, 10, 1000, (1 << 32) - 1])
    if hint is bytes:
        return chance.randbytes(_LENGTHS[name] if name in _LENGTHS else chance.choice([0, 1, 100, 16_000]))
    assert hint is str, f"a field of another type: {name}"
    return chance.choice(["", "first", "second", "normal", "exchange", "pst1.client.never.alice", "é" * 100])
