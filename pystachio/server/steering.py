"""Plans of the whole cluster, found and steered from any of its nodes: who coordinates a plan acts on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from pystachio.errors import NodeLost, NotFound
from pystachio.runtime.urgency import Urgency
from pystachio.server.plan_messages import PlansAsked, PlansFound, SteerPlan
from pystachio.server.plane import Plane
from pystachio.server.questions import NotAnswered, Questions

ANSWER_SECONDS = 3.0
"""For all other nodes together: one that is lost is noticed later."""
MOST_FOUND = 20
"""Plans that begin alike: more do not help anybody to choose."""


class OwnPlans(Protocol):
    """The plans that clients gave to this node."""

    def plan_ids(self) -> Iterable[str]: ...

    def cancel(self, plan_id: str) -> None: ...

    def set_urgency(self, plan_id: str, priority: str, deadline: float | None) -> None:
        """Raises InvalidRequest for a class that does not exist; never waits."""
        ...


class Steering:
    """On the node's loop."""

    def __init__(self, plane: Plane, own: OwnPlans, *, nodes: Callable[[], Sequence[str]]) -> None:
        """`nodes` are all of the cluster, now."""
        self._plane = plane
        self._nodes = nodes
        self._own = own
        self._questions = Questions(plane, PlansFound, asked_for="which plans it has")
        plane.handle(PlansAsked, self._answer_search)
        plane.handle(SteerPlan, self._answer_order)

    async def find(self, beginning: str) -> tuple[str, ...]:
        """The plans whose id begins so; that one alone whose whole id it is. At most `MOST_FOUND`.

        Raises NodeLost when none was found, but not every node has answered.
        """
        own = self._matching(beginning)
        if beginning in own:
            return (beginning,)
        others, silent = await self._ask(lambda number: PlansAsked(number, beginning))
        found = sorted({*own, *others})
        if silent and not found:
            raise NodeLost(f"nodes did not say which plans they have: {', '.join(sorted(silent))}")
        return (beginning,) if beginning in found else tuple(found[:MOST_FOUND])

    async def cancel(self, plan_id: str) -> None:
        """Raises NotFound when no node has such a plan, NodeLost when one that may have it does not answer."""
        await self._steer(plan_id, None, None)

    async def set_urgency(self, plan_id: str, urgency: Urgency) -> None:
        """Raises as `cancel`."""
        await self._steer(plan_id, urgency.priority.name.lower(), urgency.deadline)

    async def _steer(self, plan_id: str, priority: str | None, deadline: float | None) -> None:
        if self._act(plan_id, priority, deadline):
            return
        found, silent = await self._ask(lambda number: SteerPlan(number, plan_id, priority, deadline))
        if found:
            return
        if silent:
            raise NodeLost(f"nodes did not say whether the plan is theirs: {', '.join(sorted(silent))}")
        raise NotFound(f"no running plan has this id: {plan_id}", hint="pystachio-node ps --node lists them")

    async def _ask(self, question: Callable[[int], PlansAsked | SteerPlan]) -> tuple[list[str], set[str]]:
        """What the other nodes have found, and who of them has not answered in time."""
        silent: set[str] = set()

        async def ask(node: str) -> tuple[str, ...]:
            try:
                return (await self._questions.ask(node, question, PlansFound, seconds=ANSWER_SECONDS)).plan_ids
            except NotAnswered:
                silent.add(node)
            except NodeLost:
                pass  # its plans are gone with it
            return ()

        others = [node for node in self._nodes() if node != self._plane.name]
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(node)) for node in others]
        return [plan_id for task in asked for plan_id in task.result()], silent

    def _matching(self, beginning: str) -> tuple[str, ...]:
        plan_ids = tuple(self._own.plan_ids())
        if beginning in plan_ids:
            return (beginning,)
        attempted = tuple(plan_id for plan_id in plan_ids if beginning.startswith(f"{plan_id}-"))
        if attempted:
            return attempted  # what nodes call a plan that is run again ends in a number
        return tuple([plan_id for plan_id in plan_ids if plan_id.startswith(beginning)][:MOST_FOUND])

    def _act(self, plan_id: str, priority: str | None, deadline: float | None) -> bool:
        if plan_id not in self._own.plan_ids():
            return False
        if priority is None:
            self._own.cancel(plan_id)
        else:
            self._own.set_urgency(plan_id, priority, deadline)
        return True

    def _answer_search(self, node: str, asked: PlansAsked) -> None:
        self._plane.tell(node, PlansFound(asked.number, self._matching(asked.beginning)))

    def _answer_order(self, node: str, order: SteerPlan) -> None:
        has_acted = self._act(order.plan_id, order.priority, order.deadline)
        self._plane.tell(node, PlansFound(order.number, (order.plan_id,) if has_acted else ()))
