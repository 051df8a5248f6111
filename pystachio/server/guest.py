"""A client at its node: what it asks for, what it may ask for, and the plans that end when it goes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, assert_never, cast

from pystachio import __version__
from pystachio.errors import (
    InternalError,
    InvalidRequest,
    NodeLost,
    NotFound,
    PystachioError,
    ResourceExhausted,
    Unauthorized,
)
from pystachio.io_scheduler.network.tokens import TokenRole
from pystachio.remote.messages import (
    LOOKING,
    VERSION,
    Answer,
    CancelPlan,
    Described,
    Done,
    Drain,
    Explain,
    Failed,
    Fetch,
    FindPlans,
    Found,
    Hello,
    Holds,
    Look,
    Measure,
    Measured,
    OperatorDone,
    Operators,
    OperatorsAre,
    Profile,
    Register,
    Registered,
    RegisterFolder,
    Request,
    Seen,
    SetPriority,
    Statistics,
    Status,
    Submit,
    Submitted,
    Tables,
    TablesAre,
    Text,
    Welcome,
    decode_request,
    encode,
)
from pystachio.remote.parameters import parameters_of
from pystachio.remote.rows import schema_bytes
from pystachio.runtime.failure_message import Failure
from pystachio.runtime.host import NodeStopped
from pystachio.runtime.logging import get_logger
from pystachio.runtime.observation import short_label
from pystachio.runtime.urgency import USUAL, Urgency, priority_class, urgency
from pystachio.server.guest_plan import GuestPlan
from pystachio.server.house import GuestVisit, House
from pystachio.server.served_node import ServedPlan
from pystachio.session import Session

R = TypeVar("R")

KEPT_PLANS = 32
"""Of one client, whose end it knows: it may ask what they did."""
MOST_REQUESTS = 256
"""Of one client, unanswered, beside one for each of its plans."""
MOST_LOOKS = 16
"""Of one observer."""


class Guest:
    """On the node's loop, but for what is said to block."""

    def __init__(self, visit: GuestVisit, house: House) -> None:
        self._visit = visit
        self._house = house
        self._most_requests = MOST_LOOKS if self._is_observer else MOST_REQUESTS + house.most_plans
        self._is_known = False
        self._own_session: Session | None = None
        self._registering = asyncio.Lock()
        self._telling = asyncio.Lock()
        self._plans: OrderedDict[str, GuestPlan] = OrderedDict()
        self._unclaimed: set[ServedPlan] = set()
        """Started on a thread, and not yet met here."""
        self._starting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_left = False

    def hear(self, body: bytes) -> None:
        """Raises InvalidRequest for what ends the visit."""
        try:
            request = decode_request(body)
            if not self._is_known and not isinstance(request, Hello):
                raise InvalidRequest("a client begins with hello")
            asked = self._plans.get(request.plan_id) if isinstance(request, Fetch) and self._may(request) else None
            if asked is not None and not asked.is_delivered:
                asked.fetch(request.number)
                return
            if len(self._tasks) >= self._most_requests:
                raise InvalidRequest(f"more than {self._most_requests} requests at once")
        except InvalidRequest:
            self._house.count_malformed()
            raise
        self._start(self._respond(request) if asked is None else self._tell_end(asked, request.number))

    async def _tell_end(self, guest_plan: GuestPlan, number: int) -> None:
        with suppress(PystachioError):  # the client is gone
            await self._tell(guest_plan.last(number))

    async def drained(self) -> None:
        """Wait until the client has taken all that it was told. Raises NodeLost when it is gone."""
        await self._visit.drained()

    def leave(self) -> None:
        """The client is gone: so are its plans."""
        self._has_left = True
        for guest_plan in self._plans.values():
            guest_plan.plan.cancel()
            self._house.remove_plan(guest_plan)
        self._plans.clear()
        for plan in tuple(self._unclaimed):
            plan.cancel()
        for task in tuple(self._tasks):
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _may(self, request: Request) -> bool:
        return self._visit.credential.role is TokenRole.CLIENT or isinstance(request, LOOKING)

    async def _respond(self, request: Request) -> None:
        try:
            self._visit.tell(encode(await self._answer(request)))
        except NodeStopped:
            leaves = NodeLost("the node is leaving", hint="ask another node of the cluster")
            self._refuse(request.number, leaves)
        except PystachioError as error:
            self._refuse(request.number, error)
        except Exception as unexpected:
            get_logger().error("a client's request failed", exc_info=unexpected)
            kind = type(unexpected).__name__
            self._refuse(request.number, InternalError(f"the request failed: {kind}: {unexpected}"))

    def _refuse(self, number: int, error: PystachioError) -> None:
        if not self._has_left:
            self._visit.tell(encode(Failed(number, Failure.of(error, self._house.node.name))))

    async def _answer(self, request: Request) -> Answer:
        if not self._may(request):
            raise Unauthorized(
                f"an observer's token does not allow this: {type(request).__name__}",
                hint="pystachio-node token --role client makes one that does",
            )
        number = request.number
        match request:
            case Hello(version=version):
                return self._welcome(number, version)
            case Register(name=name, source=source):
                return Registered(number, await self._register({name: list(source)}))
            case RegisterFolder(folder=folder):
                found = await self._house.tables_of(folder)
                return Registered(number, await self._register({name: [str(path)] for name, path in found.items()}))
            case Tables():
                schemas = await self._off_loop(self._session.tables, self._house.plan)
                return TablesAre(number, {name: schema_bytes(schema) for name, schema in schemas.items()})
            case Explain(sql=sql, parameters=values):
                session, given = self._session, parameters_of(values)
                return Text(number, await self._house.plan(lambda: session.explain(sql, parameters=given)))
            case Submit():
                return await self._submit(request)
            case Fetch(plan_id=plan_id):
                raise _no_such_plan(plan_id)
            case Measure() | Profile() | Operators():
                return await self._tell_of(request)
            case FindPlans(beginning=beginning):
                return Found(number, await self._house.steering.find(beginning))
            case CancelPlan(plan_id=plan_id):
                await self._cancel(plan_id)
                return Done(number)
            case SetPriority():
                chosen = priority_class(request.priority)
                wanted = urgency(chosen, request.deadline, Urgency(chosen))
                await self._house.steering.set_urgency(request.plan_id, wanted)
                return Done(number)
            case Look():
                return Seen(number, self._house.node.name, os.getpid(), _program(), self._house.activity())
            case Status():
                return Described(number, await self._off_loop(self._house.node.describe, self._house.ask))
            case Statistics():
                now = await self._off_loop(self._house.node.statistics, self._house.ask)
                return Holds(number, now.running_plans, now.reserved_bytes, now.leaks)
            case Drain(draining=draining):
                await self._house.ask(lambda: self._house.drain(draining))
                return Done(number)
        assert_never(request)

    async def _off_loop(self, work: Callable[[], R], run: Callable[[Callable[[], R]], Awaitable[R]]) -> R:
        """What everybody may see: who may see no more takes no thread from those who may."""
        return await (self._house.show if self._is_observer else run)(work)

    @property
    def _is_observer(self) -> bool:
        return self._visit.credential.role is TokenRole.OBSERVER

    def _welcome(self, number: int, version: int) -> Welcome:
        if version != VERSION:
            raise InvalidRequest(
                f"this node speaks version {VERSION} with clients, not {version}",
                hint=f"the node is of PystachIO {__version__}: the client must be of the same release",
            )
        self._is_known = True
        return Welcome(number, VERSION, self._house.node.name, self._visit.credential.role.value, __version__)

    @property
    def _session(self) -> Session:
        return self._own_session or self._house.session

    async def _register(self, sources: dict[str, list[str]]) -> tuple[str, ...]:
        async with self._registering:
            session = self._own_session
            if session is None:
                session = await self._house.plan(self._house.own_session)
            await self._house.plan(partial(_register_all, session, sources))
            self._own_session = session
        return tuple(sources)

    async def _submit(self, request: Submit) -> Submitted:
        self._house.check_open()
        running = sum(not guest_plan.has_ended for guest_plan in self._plans.values())
        most = self._house.most_plans
        if running + self._starting >= most:
            raise ResourceExhausted(
                f"too many plans of one client at once: {running}",
                setting="cluster_client_plans",
                value=most,
                hint="wait for some of them, or cancel them",
            )
        if (request.sql is None) == (request.plan is None):
            raise InvalidRequest("either a statement or a Substrait plan is submitted")
        statement: str | bytes = request.sql if request.sql is not None else request.plan or b""
        wanted = urgency(request.priority, request.deadline, USUAL)
        given = parameters_of(request.parameters)
        session = self._session
        self._starting += 1
        try:
            started = await self._house.plan(lambda: self._started(session, statement, wanted, given))
        finally:
            self._starting -= 1
        self._unclaimed.discard(started)
        house = self._house
        guest_plan = GuestPlan(started, house.node.name, tell=self._tell, ask=house.ask, ended=self._note_ended)
        self._plans[started.plan_id] = guest_plan
        house.add_plan(guest_plan)
        self._start(self._deliver(guest_plan))
        return Submitted(request.number, started.plan_id, schema_bytes(started.schema))

    def _started(
        self, session: Session, statement: str | bytes, wanted: Urgency, given: tuple[object, ...]
    ) -> ServedPlan:
        """On a thread that plans: the client may leave meanwhile, and nobody waits for the plan any more."""
        started = cast(ServedPlan, session.start(statement, wanted, given))
        self._unclaimed.add(started)
        if self._has_left:
            started.cancel()
        return started

    async def _deliver(self, guest_plan: GuestPlan) -> None:
        try:
            await guest_plan.deliver()
        except PystachioError:
            guest_plan.plan.cancel()  # the client is gone

    async def _tell(self, answer: Answer) -> None:
        """Rows wait here for a client that does not read, whatever they are rows of."""
        async with self._telling:
            await self._visit.drained()
            self._visit.tell(encode(answer))

    def _note_ended(self, guest_plan: GuestPlan) -> None:
        self._house.remove_plan(guest_plan)
        self._plans.move_to_end(guest_plan.plan.plan_id)
        ended = [plan_id for plan_id, each in self._plans.items() if each.has_ended]
        for plan_id in ended[: max(0, len(ended) - KEPT_PLANS)]:
            del self._plans[plan_id]

    async def _tell_of(self, request: Measure | Profile | Operators) -> Answer:
        if request.plan_id not in self._plans:
            raise _no_such_plan(request.plan_id)
        plan = self._plans[request.plan_id].plan
        match request:
            case Measure(number=number):
                moved = await self._house.ask(lambda: plan.transferred().transferred_bytes)
                progress = await self._house.ask(plan.progress)
                return Measured(number, plan.rows, plan.seconds, moved, progress)
            case Profile(number=number, analyze=analyze):
                return Text(number, await self._house.plan(lambda: plan.explain(analyze)))
            case Operators(number=number):
                reports = await self._house.ask(plan.operators)
                return OperatorsAre(
                    number,
                    tuple(
                        OperatorDone(
                            each.name,
                            each.kind,
                            each.label,
                            each.rows_in,
                            each.rows_out,
                            each.busy_seconds,
                            dict(each.counts),
                        )
                        for each in reports
                    ),
                )

    async def _cancel(self, plan_id: str) -> None:
        own = self._plans.get(plan_id)
        if own is None:
            await self._house.steering.cancel(plan_id)
        else:
            own.cancel()


def _register_all(session: Session, sources: Mapping[str, list[str]]) -> None:
    for name, source in sources.items():
        session.register(name, source)


def _no_such_plan(plan_id: str) -> NotFound:
    return NotFound(f"no plan of this client has this id: {plan_id}")


def _program() -> str:
    """The beginning of its name is enough."""
    name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else os.path.basename(sys.executable)
    return short_label(name)
