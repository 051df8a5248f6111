"""One client at its node, which is faked: what it may ask for, and what becomes of its plans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from pystachio import __version__
from pystachio.errors import (
    Cancelled,
    DataError,
    InvalidRequest,
    NodeLost,
    NotFound,
    PystachioError,
    ResourceExhausted,
    Unauthorized,
)
from pystachio.io_scheduler.network.tokens import TokenRole
from pystachio.remote import messages
from pystachio.remote.messages import Answer, Failed, Fetch, Hello, Request, Submit, encode
from pystachio.remote.rows import read_rows
from pystachio.runtime.host import NodeStopped
from pystachio.runtime.urgency import Urgency
from pystachio.server import guest as guest_module
from pystachio.server.guest import MOST_LOOKS, MOST_REQUESTS, Guest
from pystachio.server.guest_plan import MOST_WAITING
from pystachio.server.house import House
from tests.remote.request_samples import KINDS, sample
from tests.server.fake_house import SCHEMA, FakeHouse, FakePlan, FakeVisit


class Client:
    def __init__(self, role: TokenRole = TokenRole.CLIENT) -> None:
        self.house = FakeHouse()
        self.visit = FakeVisit(role)
        self.guest = Guest(self.visit, cast(House, self.house))

    def say(self, request: Request) -> None:
        self.guest.hear(encode(request))

    async def ask(self, request: Request) -> Answer:
        self.say(request)
        async with asyncio.timeout(10):
            answer = await self.visit.answers.get()
        assert answer.number == request.number
        return answer

    async def greeted(self) -> Client:
        assert isinstance(await self.ask(Hello(1)), messages.Welcome)
        return self

    async def submitted(self, number: int = 2) -> str:
        answer = await self.ask(Submit(number, "select n from t"))
        assert isinstance(answer, messages.Submitted)
        return answer.plan_id


def failure(answer: Answer) -> PystachioError:
    assert isinstance(answer, Failed), answer
    return answer.failure.error()


async def test_a_client_is_welcomed() -> None:
    answer = await Client(TokenRole.OBSERVER).ask(Hello(5))
    assert answer == messages.Welcome(5, messages.VERSION, "n0", "observer", __version__)


async def test_another_version_is_told_so() -> None:
    client = Client()
    error = failure(await client.ask(Hello(1, messages.VERSION + 1)))
    assert isinstance(error, InvalidRequest)
    assert "version" in str(error)
    with pytest.raises(InvalidRequest, match="hello"):
        client.say(messages.Tables(2))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Hello])
async def test_nothing_is_done_before_hello(kind: type[Any]) -> None:
    client = Client()
    with pytest.raises(InvalidRequest, match="hello"):
        client.say(sample(kind))
    assert client.house.malformed == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_observers_may_only_look(kind: type[Any]) -> None:
    client = await Client(TokenRole.OBSERVER).greeted()
    answer = await client.ask(sample(kind, 2))
    if kind in messages.LOOKING:
        assert not isinstance(answer, Failed)
    else:
        assert isinstance(failure(answer), Unauthorized)
    assert client.house.started == []
    assert client.house.steering.orders == []


@pytest.mark.parametrize(("role", "most"), [(TokenRole.OBSERVER, MOST_LOOKS), (TokenRole.CLIENT, MOST_REQUESTS + 64)])
async def test_so_many_requests_may_be_unanswered(role: TokenRole, most: int) -> None:
    client = await Client(role).greeted()
    await asyncio.sleep(0)
    for number in range(most):
        client.say(messages.Look(number + 2))
    with pytest.raises(InvalidRequest, match=f"more than {most} requests at once"):
        client.say(messages.Look(most + 2))


@pytest.mark.parametrize("kind", KINDS)
async def test_clients_may_ask_for_everything(kind: type[Any]) -> None:
    client = await Client().greeted()
    answer = await client.ask(sample(kind, 2))
    assert not isinstance(answer, Failed) or not isinstance(failure(answer), Unauthorized)


@pytest.mark.parametrize("body", [b"", b"\x00", b"select 1", b"\x82\xa4type\xa5hello", b"\x90" * 100])
async def test_what_is_no_request_ends_the_visit_and_is_counted(body: bytes) -> None:
    client = await Client().greeted()
    with pytest.raises(InvalidRequest, match="not a request"):
        client.guest.hear(body)
    assert client.house.malformed == 1


async def test_rows_are_fetched_and_the_end_is_told_as_often_as_it_is_asked() -> None:
    client = await Client().greeted()
    plan_id = await client.submitted()
    assert client.house.plans == {plan_id}
    rows = []
    for number in (3, 4, 5):
        answer = await client.ask(Fetch(number, plan_id))
        assert isinstance(answer, messages.Rows)
        rows += read_rows(answer.batch, SCHEMA)["n"].to_pylist()
    assert rows == [1, 2, 3]
    for number in (6, 7):
        assert await client.ask(Fetch(number, plan_id)) == messages.Ended(number, 3, 0.5, 77)
    assert client.house.plans == set()
    assert await client.ask(messages.Profile(8, plan_id)) == messages.Text(8, "a tree, analyze True")
    assert await client.ask(messages.Measure(9, plan_id)) == messages.Measured(9, 3, 0.5, 77, 0.25)


async def test_a_plan_runs_no_further_than_its_client_asks() -> None:
    client = await Client().greeted()
    client.house.next_plan = plan = FakePlan("p", batches=100)
    await client.submitted()
    assert plan.taken == 0
    await client.ask(Fetch(3, "p"))
    assert plan.taken == 1
    client.visit.reads.clear()
    for number in range(4, 8):
        client.say(Fetch(number, "p"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert plan.taken == 2
    assert client.visit.answers.empty()
    client.visit.reads.set()
    for number in range(4, 8):
        answer = await client.visit.answers.get()
        assert answer.number == number
    assert plan.taken == 5


async def test_a_plan_that_fails_says_so_with_its_error() -> None:
    client = await Client().greeted()
    client.house.next_plan = FakePlan("p", batches=0, error=DataError("division by zero"))
    await client.submitted()
    for number in (3, 4):
        error = failure(await client.ask(Fetch(number, "p")))
        assert isinstance(error, DataError)
        assert error.node == "n0"
    assert client.house.plans == set()


async def test_a_plan_that_is_cancelled_is_gone_though_nobody_fetches_its_end() -> None:
    client = await Client().greeted()
    plan_id = await client.submitted()
    await client.ask(Fetch(3, plan_id))
    assert await client.ask(messages.CancelPlan(4, plan_id)) == messages.Done(4)
    for _ in range(20):
        await asyncio.sleep(0)
    assert client.house.plans == set()
    assert isinstance(failure(await client.ask(Fetch(5, plan_id))), Cancelled)


async def test_a_cancel_after_the_plans_end_does_not_cut_its_rows_short() -> None:
    """Whoever cancels: rows that are left are dropped, so the answer may not end as if it were whole."""

    class EndedPlan(FakePlan):
        """Its rows wait; to cancel it changes nothing any more."""

        def cancel(self) -> None:
            """Too late."""

    client = await Client().greeted()
    client.house.next_plan = plan = EndedPlan("p", batches=50)
    await client.submitted()
    assert isinstance(await client.ask(Fetch(3, "p")), messages.Rows)
    assert await client.ask(messages.CancelPlan(4, "p")) == messages.Done(4)
    for number in (5, 6):
        assert isinstance(failure(await client.ask(Fetch(number, "p"))), Cancelled)
    assert plan.taken == 50
    assert client.house.plans == set()


async def test_a_client_that_goes_takes_its_plans_along() -> None:
    client = await Client().greeted()
    client.house.next_plan = plan = FakePlan("p")
    await client.submitted()
    client.visit.is_gone = True
    client.guest.leave()
    assert plan.cancelled.is_set()
    assert client.house.plans == set()


async def test_a_client_that_goes_while_its_statement_is_planned() -> None:
    client = await Client().greeted()
    client.house.next_plan = plan = FakePlan("p")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(work: Callable[[], Any]) -> Any:
        begun.set()
        await asyncio.shield(go_on.wait())
        return work()

    client.house.plan = slowly  # type: ignore[method-assign]
    session, wanted = client.house.session, Urgency
    client.say(Submit(2, "select n from t"))
    await begun.wait()
    client.visit.is_gone = True
    client.guest.leave()
    # The thread that plans cannot be stopped: it comes to its end later.
    client.guest._started(cast(Any, session), "select n from t", cast(Any, wanted), ())
    assert plan.cancelled.is_set()


async def test_too_many_plans_and_too_many_fetches() -> None:
    client = await Client().greeted()
    client.house.most_plans = 2
    first = await client.submitted(2)
    await client.submitted(3)
    error = failure(await client.ask(Submit(4, "select n from t")))
    assert isinstance(error, ResourceExhausted)
    client.visit.reads.clear()
    client.say(Fetch(5, first))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for number in range(6, 6 + MOST_WAITING):
        client.say(Fetch(number, first))
    with pytest.raises(InvalidRequest, match="fetches"):
        client.say(Fetch(99, first))
    assert client.house.malformed == 1


async def test_what_many_ended_plans_did_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_module, "KEPT_PLANS", 1)
    client = await Client().greeted()
    for number in (10, 20):
        client.house.next_plan = FakePlan(f"p{number}", batches=0)
        plan_id = await client.submitted(number)
        assert isinstance(await client.ask(Fetch(number + 1, plan_id)), messages.Ended)
    assert isinstance(await client.ask(messages.Profile(30, "p20")), messages.Text)
    assert isinstance(failure(await client.ask(messages.Profile(31, "p10"))), NotFound)


async def test_tables_are_the_client_s_own() -> None:
    client = await Client().greeted()
    assert await client.ask(messages.Tables(2)) == messages.TablesAre(2, {})
    assert await client.ask(messages.Register(3, "t", ("/a",))) == messages.Registered(3, ("t",))
    answer = await client.ask(messages.Tables(4))
    assert isinstance(answer, messages.TablesAre)
    assert list(answer.tables) == ["t"]
    assert client.house.session.registered == {}
    assert isinstance(failure(await client.ask(messages.Register(5, "missing", ("/a",)))), NotFound)
    assert isinstance(failure(await client.ask(messages.RegisterFolder(6, "/no/such/folder"))), NotFound)


@pytest.mark.parametrize(
    "request_",
    [
        Submit(2),
        Submit(2, "select 1", b"plan"),
        Submit(2, "select 1", priority="urgent"),
        Submit(2, "select 1", priority="batch", deadline=1.0),
        Submit(2, "select 1", deadline=-1.0),
        messages.SetPriority(2, "p", "urgent"),
    ],
)
async def test_requests_that_make_no_sense_are_refused(request_: Request) -> None:
    client = await Client().greeted()
    assert isinstance(failure(await client.ask(request_)), InvalidRequest)
    assert client.house.started == []


async def test_a_draining_node_takes_no_plans() -> None:
    client = await Client().greeted()
    assert await client.ask(messages.Drain(2)) == messages.Done(2)
    assert isinstance(failure(await client.ask(Submit(3, "select 1"))), ResourceExhausted)
    await client.ask(messages.Drain(4, draining=False))
    assert isinstance(await client.ask(Submit(5, "select 1")), messages.Submitted)


async def test_a_defect_is_an_internal_error_of_that_request_only() -> None:
    client = await Client().greeted()
    assert failure(await client.ask(Submit(2, "defect"))).code == "internal_error"
    assert isinstance(await client.ask(Submit(3, "select 1")), messages.Submitted)


async def test_plans_are_steered_wherever_they_are() -> None:
    client = await Client().greeted()
    client.house.next_plan = plan = FakePlan("p")
    await client.submitted()
    await client.ask(messages.CancelPlan(3, "p"))
    assert plan.cancelled.is_set()
    await client.ask(messages.CancelPlan(4, "other"))
    await client.ask(messages.SetPriority(5, "other", "interactive", 2.0))
    orders = client.house.steering.orders
    assert orders[0] == ("other",)
    assert (orders[1][0], orders[1][1].priority.name, orders[1][1].deadline) == ("other", "INTERACTIVE", 2.0)
    assert await client.ask(messages.FindPlans(6, "abc")) == messages.Found(6, ("abcdef",))


@pytest.mark.parametrize(("role", "shown"), [(TokenRole.OBSERVER, 3), (TokenRole.CLIENT, 0)])
async def test_who_only_looks_takes_no_thread_of_those_who_work(role: TokenRole, shown: int) -> None:
    client = await Client(role).greeted()
    for number, request in enumerate((messages.Tables(2), messages.Status(3), messages.Statistics(4)), start=2):
        assert not isinstance(await client.ask(request), Failed), number
    assert client.house.shown == shown


async def test_a_node_that_has_just_stopped_sends_its_clients_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    client = await Client().greeted()

    def stopped(*_: Any) -> None:
        raise NodeStopped

    monkeypatch.setattr(client.house.session, "start", stopped)
    error = failure(await client.ask(Submit(2, "select n from t")))
    assert isinstance(error, NodeLost)
    assert error.retryable
    assert "another node" in str(error)
