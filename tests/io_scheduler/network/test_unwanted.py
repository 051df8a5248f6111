"""What is remembered of messages that nobody wants."""

from __future__ import annotations

import pytest

from pystachio.io_scheduler.network import unwanted as module
from pystachio.io_scheduler.network.messages import MessageKey
from pystachio.io_scheduler.network.unwanted import Unwanted


def key(plan: str, number: int = 0) -> MessageKey:
    return MessageKey(plan, "operator", number)


def test_a_message_is_given_up_until_it_is_forgotten() -> None:
    unwanted = Unwanted()
    unwanted.give_up("a", key("plan"))
    unwanted.give_up("a", key("plan"))
    assert len(unwanted) == 1
    assert not unwanted.forget("b", key("plan"))
    assert not unwanted.forget("a", key("plan", 1))
    assert unwanted.forget("a", key("plan"))
    assert not unwanted.forget("a", key("plan"))
    assert len(unwanted) == 0


def test_a_plan_that_is_closed_has_no_messages() -> None:
    unwanted = Unwanted()
    for plan in ("one", "other"):
        unwanted.give_up("a", key(plan))
    unwanted.close_plan("one")
    unwanted.give_up("a", key("one"))
    assert (unwanted.is_closed("one"), unwanted.is_closed("other"), len(unwanted)) == (True, False, 1)
    assert not unwanted.forget("a", key("one"))
    assert unwanted.forget("a", key("other"))


def test_so_much_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSED_PLANS", 3)
    monkeypatch.setattr(module, "GIVEN_UP", 5)
    unwanted = Unwanted()
    for number in range(10):
        unwanted.give_up("a", key(f"plan {number // 2}", number))
        unwanted.close_plan(f"closed {number}")
    assert [number for number in range(10) if unwanted.is_closed(f"closed {number}")] == [7, 8, 9]
    assert len(unwanted) == 5
    assert [number for number in range(10) if unwanted.forget("a", key(f"plan {number // 2}", number))] == [
        5,
        6,
        7,
        8,
        9,
    ]
    assert len(unwanted) == 0
