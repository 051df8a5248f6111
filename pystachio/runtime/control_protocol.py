"""What goes over a node's control socket: a line of JSON for each request and each answer, both of bounded size.

The types below are the protocol: what does not fit them exactly is refused. Nothing in it can be executed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from pystachio.errors import DataError, InvalidRequest, PystachioError
from pystachio.runtime.activity import NodeActivity

VERSION: Final = 1
MOST_REQUEST_BYTES: Final = 16 << 10
MOST_ANSWER_BYTES: Final = 16 << 20
MOST_PLAN_ID: Final = 200
MOST_MATCHES: Final = 20

_STRICT = ConfigDict(extra="forbid")
PlanId = Annotated[str, Field(min_length=1, max_length=MOST_PLAN_ID)]


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class Look:
    """Answered with `Seen`."""

    kind: Literal["look"] = "look"
    version: Literal[1] = VERSION


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class Find:
    """Answered with `Matches`: the plans whose id begins so, without what they do."""

    beginning: PlanId
    kind: Literal["find"] = "find"
    version: Literal[1] = VERSION


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class Cancel:
    """Answered with `Done` when the plan was told to end."""

    plan_id: PlanId
    kind: Literal["cancel"] = "cancel"
    version: Literal[1] = VERSION


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class Prioritize:
    """Answered with `Done`. `deadline` is in seconds from now; None leaves the plan's as it is."""

    plan_id: PlanId
    priority: str
    deadline: float | None = None
    kind: Literal["prioritize"] = "prioritize"
    version: Literal[1] = VERSION


Request = Look | Find | Cancel | Prioritize


@dataclass(frozen=True, slots=True)
class Seen:
    """`program` is what the process was started as."""

    pid: int
    program: str
    activity: NodeActivity
    kind: Literal["seen"] = "seen"


@dataclass(frozen=True, slots=True)
class Matches:
    """The plan alone that has the whole id, otherwise at most `MOST_MATCHES` plans."""

    plan_ids: tuple[str, ...]
    kind: Literal["matches"] = "matches"


@dataclass(frozen=True, slots=True)
class Done:
    kind: Literal["done"] = "done"


@dataclass(frozen=True, slots=True)
class Refused:
    """A typed error of the node: `code` is that of its class in `pystachio.errors`."""

    code: str
    message: str
    hint: str | None = None
    kind: Literal["refused"] = "refused"


Answer = Seen | Matches | Done | Refused


@cache
def _requests() -> TypeAdapter[Request]:
    # Not at import: making one takes longer than opening a socket, and most processes never hear a request.
    return TypeAdapter(Annotated[Request, Field(discriminator="kind")])


@cache
def _answers() -> TypeAdapter[Answer]:
    return TypeAdapter(Annotated[Answer, Field(discriminator="kind")])


def request_line(request: Request) -> bytes:
    return _requests().dump_json(request) + b"\n"


def answer_line(answer: Answer) -> bytes:
    return _answers().dump_json(answer) + b"\n"


def read_request(line: bytes) -> Request:
    """Raises InvalidRequest for anything else than a request of this version."""
    try:
        return _requests().validate_json(line)
    except ValidationError as error:
        raise InvalidRequest(
            f"not a request to a node: {_first_problem(error)}",
            hint=f"this node speaks version {VERSION}; the version of pystachio-node must be that of the node",
        ) from None


def read_answer(line: bytes) -> Answer:
    """Raises DataError for anything else than an answer of this version."""
    try:
        return _answers().validate_json(line)
    except ValidationError as error:
        raise DataError(
            f"the node's answer makes no sense: {_first_problem(error)}",
            hint="the version of pystachio-node must be that of the node",
        ) from None


def refusal(error: PystachioError) -> Refused:
    return Refused(error.code, error.message, error.hint)


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {problem['msg']}" if place else problem["msg"]
