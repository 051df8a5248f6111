"""Actors: one message at a time, answers, and supervisors that decide about crashes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from pystachio.errors import InternalError
from pystachio.runtime.actors import ActorRef, Children, Decide, Directive, Reply
from tests import virtual_time


@dataclass(frozen=True)
class Add:
    number: int


@dataclass(frozen=True)
class Total:
    reply: Reply[int]


@dataclass(frozen=True)
class Crash:
    reply: Reply[int] | None = None


Message = Add | Total | Crash


class Adder:
    def __init__(self) -> None:
        self.total = 0

    async def receive(self, message: Message) -> None:
        match message:
            case Add(number=number):
                before = self.total
                await asyncio.sleep(1)
                self.total = before + number
            case Total(reply=reply):
                reply.answer(self.total)
            case Crash():
                raise ValueError("crash")


def always(directive: Directive) -> Decide:
    return lambda name, error: directive


def spawn(children: Children) -> ActorRef[Message]:
    return children.spawn("adder", lambda _: Adder())


def test_messages_are_handled_one_by_one_in_order() -> None:
    async def main() -> None:
        async with Children(always(Directive.ESCALATE)) as children:
            ref = spawn(children)
            for number in (1, 2, 3):
                ref.tell(Add(number))
            assert await ref.ask(Total) == 6

    virtual_time.run(main())


def test_a_restarted_actor_starts_afresh_and_the_one_who_asked_gets_an_error() -> None:
    async def main() -> None:
        crashes: list[tuple[str, str]] = []

        def decide(name: str, error: BaseException) -> Directive:
            crashes.append((name, str(error)))
            return Directive.RESTART

        async with Children(decide) as children:
            ref = spawn(children)
            ref.tell(Add(5))
            with pytest.raises(InternalError, match="adder"):
                await ref.ask(Crash)
            assert await ref.ask(Total) == 0
        assert crashes == [("adder", "crash")]

    virtual_time.run(main())


def test_a_crash_fails_only_the_question_that_crashed() -> None:
    async def main() -> None:
        async with Children(always(Directive.RESTART)) as children:
            ref = spawn(children)
            ref.tell(Crash())
            assert await ref.ask(Total) == 0

    virtual_time.run(main())


def test_a_stopped_actor_refuses_messages_and_its_siblings_go_on() -> None:
    async def main() -> None:
        async with Children(always(Directive.STOP)) as children:
            ref, sibling = spawn(children), spawn(children)
            waiting = asyncio.ensure_future(ref.ask(Total))
            await asyncio.sleep(0)
            ref.tell(Crash())
            late = asyncio.ensure_future(ref.ask(Total))
            assert await waiting == 0
            with pytest.raises(InternalError, match="ended"):
                await late
            with pytest.raises(InternalError, match="ended"):
                ref.tell(Add(1))
            assert await sibling.ask(Total) == 0

    virtual_time.run(main())


def test_an_escalated_crash_is_the_supervisors_own() -> None:
    async def main() -> None:
        async def supervise() -> None:
            async with Children(always(Directive.ESCALATE)) as children:
                spawn(children).tell(Crash())
                await asyncio.sleep(10)

        with pytest.raises(ExceptionGroup) as caught:
            await supervise()
        assert caught.group_contains(ValueError, match="crash")

    virtual_time.run(main())


def test_leaving_the_block_ends_every_child() -> None:
    async def main() -> None:
        ended: list[str] = []

        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("task")

        async with Children(always(Directive.ESCALATE)) as children:
            ref = spawn(children)
            children.start("task", wait)
            await asyncio.sleep(1)
        assert ended == ["task"]
        with pytest.raises(InternalError):
            ref.tell(Add(1))

    virtual_time.run(main())


def test_a_task_that_crashes_is_decided_about_too() -> None:
    async def main() -> None:
        async def crash() -> None:
            raise ValueError("crash")

        async with Children(always(Directive.STOP)) as children:
            task = children.start("task", crash)
            sibling = spawn(children)
            await task
            assert await sibling.ask(Total) == 0

    virtual_time.run(main())


def test_a_stopped_child_fails_those_who_wait_for_its_answer() -> None:
    async def main() -> None:
        async with Children(always(Directive.ESCALATE)) as children:
            ref = spawn(children)
            ref.tell(Add(1))
            waiting = asyncio.ensure_future(ref.ask(Total))
            await asyncio.sleep(0.1)
            children.stop(ref)
            with pytest.raises(InternalError, match="ended"):
                await waiting

    virtual_time.run(main())


def test_an_error_of_the_block_itself_stays_what_it_is() -> None:
    async def main() -> None:
        async def supervise() -> None:
            async with Children(always(Directive.ESCALATE)) as children:
                spawn(children)
                raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await supervise()

    virtual_time.run(main())
