"""A plan as its client holds it, on a connection that is scripted."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import pyarrow as pa
import pytest

from pystachio.errors import DataError, NodeLost
from pystachio.remote.connection import Connection
from pystachio.remote.messages import Answer, CancelPlan, Ended, Failed, Fetch, Request, Rows, Submitted
from pystachio.remote.plan import WINDOW, RemotePlan
from pystachio.remote.rows import pieces, schema_bytes
from pystachio.runtime.failure_message import Failure

SCHEMA = pa.schema([pa.field("n", pa.int64())])


def rows(value: int) -> Callable[[int], Answer]:
    (stream,) = pieces(pa.record_batch([pa.array([value])], schema=SCHEMA))
    return lambda number: Rows(number, stream)


class ScriptedConnection:
    """Answers fetches at once, in order; afterwards the node is gone."""

    def __init__(self, *answers: Callable[[int], Answer]) -> None:
        self.answers = list(answers)
        self.asked: list[Request] = []

    def post(self, make: Callable[[int], Request]) -> Future[Answer]:
        request = make(len(self.asked) + 1)
        self.asked.append(request)
        if isinstance(request, Fetch) and not self.answers:
            raise NodeLost("the node leaves")
        answer: Future[Answer] = Future()
        if isinstance(request, Fetch):
            answer.set_result(self.answers.pop(0)(request.number))
        return answer


def plan_on(connection: ScriptedConnection) -> RemotePlan:
    return RemotePlan(cast(Connection, connection), Submitted(1, "p", schema_bytes(SCHEMA)), object())


def values(plan: RemotePlan) -> list[Any]:
    found = []
    while (batch := plan.next_batch()) is not None:
        found += batch["n"].to_pylist()
    return found


def test_the_last_rows_of_a_node_that_leaves_are_not_lost() -> None:
    plan = plan_on(ScriptedConnection(*map(rows, range(5)), lambda number: Ended(number, 5, 0.5, 77)))
    assert values(plan) == list(range(5))
    assert plan.next_batch() is None
    assert (plan.rows, plan.seconds, plan.transferred().transferred_bytes, plan.progress()) == (5, 0.5, 77, 1.0)


def test_rows_without_an_end_are_no_answer() -> None:
    plan = plan_on(ScriptedConnection(*map(rows, range(5))))
    for _ in range(2):
        with pytest.raises(NodeLost) as caught:
            values(plan)
        assert caught.value.plan_id == "p"


def test_no_more_is_asked_for_than_the_window() -> None:
    connection = ScriptedConnection(*map(rows, range(100)))
    plan = plan_on(connection)
    assert connection.asked == []
    plan.next_batch()
    assert len(connection.asked) == WINDOW


def test_a_failure_is_the_plan_s_from_then_on() -> None:
    failure = Failure.of(DataError("division by zero"), "n0")
    plan = plan_on(ScriptedConnection(rows(0), *[lambda number: Failed(number, failure)] * WINDOW))
    for _ in range(2):
        with pytest.raises(DataError, match="zero"):
            values(plan)


def test_cancelling_is_said_once() -> None:
    connection = ScriptedConnection(*map(rows, range(9)))
    plan = plan_on(connection)
    plan.next_batch()
    plan.cancel()
    plan.cancel()
    assert [request for request in connection.asked if isinstance(request, CancelPlan)] == [CancelPlan(4, "p")]
