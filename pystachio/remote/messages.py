"""What clients and nodes say to each other: typed, of bounded size, in msgpack; nothing in it can be executed.

The two unions are the protocol. Every request has a number of its own, and every answer the number of its request:
there is one answer to each, in any order. What does not fit these types ends the conversation.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from pystachio.errors import InvalidRequest
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.remote.description import NodeDescription
from pystachio.remote.parameters import Value
from pystachio.runtime.activity import NodeActivity
from pystachio.runtime.failure_message import Failure

VERSION: Final = 1
ROWS_BYTES: Final = 2 << 20
"""What a batch of rows is cut to, roughly; one row may be longer."""
MOST_ROWS_BYTES: Final = 12 << 20
"""No answer is longer."""

Number = Annotated[int, Meta(ge=1, lt=2**53)]
PlanId = Annotated[str, Meta(min_length=1, max_length=200)]
Name = Annotated[str, Meta(min_length=1, max_length=1000)]
Path = Annotated[str, Meta(min_length=1, max_length=4096)]
Seconds = Annotated[float, Meta(ge=0)]


class _Said(Struct, frozen=True, forbid_unknown_fields=True):
    number: Number


class Hello(_Said, frozen=True, tag="hello"):
    """The first request. Answered with `Welcome`, or `Failed` when the node does not speak this version."""

    version: int = VERSION


class Register(_Said, frozen=True, tag="register"):
    """Paths on the node's machine, of one table for this client. Answered with `Registered`."""

    name: Name
    source: Annotated[tuple[Path, ...], Meta(min_length=1, max_length=100_000)]


class RegisterFolder(_Said, frozen=True, tag="register folder"):
    """A folder of tables on the node's machine. Answered with `Registered`."""

    folder: Path


class Tables(_Said, frozen=True, tag="tables"):
    """Answered with `TablesAre`."""


class Explain(_Said, frozen=True, tag="explain"):
    """The plan of a statement, which is not run. Answered with `Text`."""

    sql: str
    parameters: tuple[Value, ...] = ()


class Submit(_Said, frozen=True, tag="submit"):
    """Run a statement, or a Substrait plan. Answered with `Submitted`. `deadline` is in seconds from now.

    `parameters` are a statement's. `priority` is the name of a class; with none and no deadline it is normal.
    """

    sql: str | None = None
    plan: bytes | None = None
    parameters: tuple[Value, ...] = ()
    priority: str | None = None
    deadline: float | None = None


class Fetch(_Said, frozen=True, tag="fetch"):
    """The next rows of a plan of this client. Answered with `Rows`, `Ended` after the last, or `Failed`.

    Several may wait at once, and are answered in turn: how many is how far the plan may be ahead of its client.
    """

    plan_id: PlanId


class Measure(_Said, frozen=True, tag="measure"):
    """How far a plan of this client is. Answered with `Measured`."""

    plan_id: PlanId


class Profile(_Said, frozen=True, tag="profile"):
    """A plan of this client as a tree, with what its operators did if `analyze`. Answered with `Text`."""

    plan_id: PlanId
    analyze: bool = True


class Operators(_Said, frozen=True, tag="operators"):
    """What the operators of a plan of this client did. Answered with `OperatorsAre`."""

    plan_id: PlanId


class FindPlans(_Said, frozen=True, tag="find plans"):
    """The plans on the whole cluster whose id begins so. Answered with `Found`."""

    beginning: PlanId


class CancelPlan(_Said, frozen=True, tag="cancel plan"):
    """End a plan, whichever node it was given to. Answered with `Done`; without effect once it has ended."""

    plan_id: PlanId


class SetPriority(_Said, frozen=True, tag="set priority"):
    """Give a plan another class, whichever node it was given to. Answered with `Done`."""

    plan_id: PlanId
    priority: str
    deadline: float | None = None


class Look(_Said, frozen=True, tag="look"):
    """What the node does now. Answered with `Seen`."""


class Status(_Said, frozen=True, tag="status"):
    """The node, and the cluster as it knows it. Answered with `Described`."""


class Statistics(_Said, frozen=True, tag="statistics"):
    """What the node holds now. Answered with `Holds`."""


class Drain(_Said, frozen=True, tag="drain"):
    """Take no more plans, or take them again. Answered with `Done`."""

    draining: bool = True


Request = (
    Hello
    | Register
    | RegisterFolder
    | Tables
    | Explain
    | Submit
    | Fetch
    | Measure
    | Profile
    | Operators
    | FindPlans
    | CancelPlan
    | SetPriority
    | Look
    | Status
    | Statistics
    | Drain
)

LOOKING: Final = (Hello, Tables, FindPlans, Look, Status, Statistics)
"""What an observer may ask for."""


class Welcome(_Said, frozen=True, tag="welcome"):
    """`role` is what the client may do, `release` that of the node's software."""

    version: int
    node: str
    role: str
    release: str


class Done(_Said, frozen=True, tag="done"):
    pass


class Failed(_Said, frozen=True, tag="failed"):
    failure: Failure


class Registered(_Said, frozen=True, tag="registered"):
    names: tuple[str, ...]


class TablesAre(_Said, frozen=True, tag="tables are"):
    """Schemas by name, each an Arrow IPC schema message."""

    tables: dict[str, bytes]


class Text(_Said, frozen=True, tag="text"):
    text: str


class Submitted(_Said, frozen=True, tag="submitted"):
    """`schema` is an Arrow IPC schema message."""

    plan_id: str
    schema: bytes


class Rows(_Said, frozen=True, tag="rows"):
    """An Arrow IPC stream of one record batch."""

    batch: bytes


class Ended(_Said, frozen=True, tag="ended"):
    """All rows were fetched."""

    rows: int
    seconds: float
    transferred_bytes: int


class Measured(_Said, frozen=True, tag="measured"):
    """`progress` is the share of the rows to scan, None where nothing is scanned."""

    rows: int
    seconds: float
    transferred_bytes: int
    progress: float | None


class OperatorDone(Struct, frozen=True, forbid_unknown_fields=True):
    """`running_plan.OperatorReport`."""

    name: str
    kind: str
    label: str
    rows_in: int
    rows_out: int
    busy_seconds: float
    counts: dict[str, int]


class OperatorsAre(_Said, frozen=True, tag="operators are"):
    operators: tuple[OperatorDone, ...]


class Found(_Said, frozen=True, tag="found"):
    plan_ids: tuple[str, ...]


class Seen(_Said, frozen=True, tag="seen"):
    """`node` is the node's name, `program` what its process was started as."""

    node: str
    pid: int
    program: str
    activity: NodeActivity


class Described(_Said, frozen=True, tag="described"):
    description: NodeDescription


class Holds(_Said, frozen=True, tag="holds"):
    running_plans: int
    reserved_bytes: int
    leaks: int


Answer = (
    Welcome
    | Done
    | Failed
    | Registered
    | TablesAre
    | Text
    | Submitted
    | Rows
    | Ended
    | Measured
    | OperatorsAre
    | Found
    | Seen
    | Described
    | Holds
)

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(said: Request | Answer) -> bytes:
    """Raises InvalidRequest for a text that is no Unicode or a number beyond 64 bits."""
    try:
        return _encoder.encode(said)
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidRequest(f"cannot be sent: {error}") from None


def encode_request(request: Request) -> bytes:
    """Raises InvalidRequest for what the node would not take for a request, which would end the conversation."""
    body = encode(request)
    longest = NetworkLimits().visitor_body_bytes
    if len(body) > longest:
        raise InvalidRequest(
            f"a request is too long: {len(body):,} of {longest:,} bytes",
            hint="a statement with its parameters is no place for data: write that to a Parquet file and register it",
        )
    try:
        _requests.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"no request that a node takes: {error}") from None
    return body


def decode_request(body: bytes) -> Request:
    """Raises InvalidRequest for anything else than a request."""
    try:
        return _requests.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"not a request to a node: {error}",
            hint=f"this node speaks version {VERSION}; the client's must be the same",
        ) from None


def decode_answer(body: bytes) -> Answer:
    """Raises InvalidRequest for anything else than an answer."""
    try:
        return _answers.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"the node's answer makes no sense: {error}",
            hint=f"this client speaks version {VERSION}; the node's must be the same",
        ) from None
