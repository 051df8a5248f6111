"""Messages that nobody here will ask for, of all peers: who offers one is refused, also when he has connected again."""

from __future__ import annotations

from pystachio.io_scheduler.network.messages import MessageKey

CLOSED_PLANS = 4096
"""Plans that ended here whose messages are still refused, should they be offered late."""
GIVEN_UP = 1 << 16
"""Messages that were given up here before they were offered, and are refused when they are."""


class Unwanted:
    """What was added last is remembered."""

    def __init__(self) -> None:
        self._closed_plans: dict[str, None] = {}
        self._given_up: dict[str, dict[tuple[str, MessageKey], None]] = {}
        """By plan: the peer and the message."""
        self._count = 0

    def __len__(self) -> int:
        """Messages that were given up."""
        return self._count

    def close_plan(self, plan_id: str) -> None:
        """Of this plan nothing is wanted, from nobody."""
        self._closed_plans[plan_id] = None
        if len(self._closed_plans) > CLOSED_PLANS:
            del self._closed_plans[next(iter(self._closed_plans))]
        self._count -= len(self._given_up.pop(plan_id, ()))

    def is_closed(self, plan_id: str) -> bool:
        return plan_id in self._closed_plans

    def give_up(self, peer: str, key: MessageKey) -> None:
        """Until somebody wants it again, or it was refused."""
        if key.plan_id in self._closed_plans:
            return
        of_plan = self._given_up.setdefault(key.plan_id, {})
        self._count += (peer, key) not in of_plan
        of_plan[peer, key] = None
        if self._count > GIVEN_UP:
            self._remove(*next(iter(next(iter(self._given_up.values())))))

    def forget(self, peer: str, key: MessageKey) -> bool:
        """Whether the message was given up; it is not any more."""
        if (peer, key) not in self._given_up.get(key.plan_id, ()):
            return False
        self._remove(peer, key)
        return True

    def _remove(self, peer: str, key: MessageKey) -> None:
        of_plan = self._given_up[key.plan_id]
        del of_plan[peer, key]
        self._count -= 1
        if not of_plan:
            del self._given_up[key.plan_id]
