"""Bytes from anybody: a typed error or a plan, never a crash, whatever was changed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import Message
from substrait import plan_pb2

from pystachio.cli.tpch import statements
from pystachio.errors import PystachioError, Unsupported
from pystachio.operators.batch import Field, Schema
from pystachio.planner.rewrites.rewrite import simplify
from pystachio.planner.sql.statement import SqlPlanner
from pystachio.planner.substrait.plan import read_plan
from tests.planner.substrait_plans import I64, field, plan, read, schema
from tests.planner.tpch_schema import TPCH

MUTANTS = 1500
INTEGERS = [0, 1, 2, 3, 5, 12, 38, 39, 99, 2**31 - 1, -1, -5]
WORDS = ["", "x", "sum", "add", "not", "and", "like", "count:any", "lineitem", "between", "if", "coalesce", "date_part"]


@pytest.fixture(scope="module")
def plans() -> list[bytes]:
    planner = SqlPlanner(TPCH)
    return [planner.plan(sql).substrait for sql in statements().values()]


def read_or_refuse(data: bytes, null_aware: list[bool | None] | None = None) -> bool:
    try:
        query, _ = read_plan(data, TPCH, null_aware or ())
        simplify(query)
    except PystachioError:
        return False
    return True


def places(message: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for part in value if descriptor.is_repeated else [value]:
                places(part, found)
        found.append((message, descriptor))
    return found


def mutate(message: Message, chance: random.Random) -> None:
    """Change one field anywhere: another value, gone, twice, or a copy of a message of its kind from elsewhere."""
    found = places(message, [])
    if not found:
        return
    owner, descriptor = chance.choice(found)
    value = getattr(owner, descriptor.name)
    if descriptor.is_repeated:
        at = chance.randrange(len(value))
        if chance.random() < 0.5:
            del value[at]
        elif descriptor.message_type is not None:
            value.add().CopyFrom(value[at])
        else:
            value[at] = "x" if isinstance(value[at], str) else chance.choice([0, 1, 5, 99])
    elif descriptor.message_type is None:
        changed = {bool: not value, bytes: chance.randbytes(16), str: chance.choice(WORDS)}
        choice = changed.get(type(value), chance.choice(INTEGERS))
        try:
            setattr(owner, descriptor.name, choice)
        except ValueError:
            owner.ClearField(descriptor.name)
    elif chance.random() < 0.5:
        owner.ClearField(descriptor.name)
    else:
        kin = [getattr(o, d.name) for o, d in found if d.message_type is descriptor.message_type and not d.is_repeated]
        copy = type(value)()
        copy.CopyFrom(chance.choice(kin))
        value.CopyFrom(copy)


def test_changed_plans(plans: list[bytes]) -> None:
    outcomes = {True: 0, False: 0}
    for seed in range(MUTANTS):
        chance = random.Random(seed)
        message = plan_pb2.Plan.FromString(chance.choice(plans))
        for _ in range(chance.choice((1, 1, 2, 4))):
            mutate(message, chance)
        null_aware = [chance.choice((True, False, None)) for _ in range(chance.choice((0, 8)))]
        outcomes[read_or_refuse(message.SerializeToString(), null_aware)] += 1
    assert all(outcomes.values())


@pytest.mark.parametrize(
    "damage",
    [
        lambda data, chance: chance.randbytes(chance.randint(0, 300)),
        lambda data, chance: data[: chance.randrange(len(data))],
        lambda data, chance: data + chance.randbytes(9),
        lambda data, chance: bytes(b ^ (1 << chance.randrange(8)) if chance.random() < 0.003 else b for b in data),
    ],
    ids=["random", "truncated", "longer", "flipped"],
)
def test_damaged_bytes(damage: Callable[[bytes, random.Random], bytes], plans: list[bytes]) -> None:
    for seed in range(200):
        chance = random.Random(seed)
        read_or_refuse(damage(chance.choice(plans), chance))


TABLES: dict[str, Schema] = {"t": (Field("a", pa.int64()),)}
READ = read("t", schema(a=I64))


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def wrapped(data: bytes, *tags: int) -> bytes:
    """The bytes inside messages, the innermost first."""
    for tag in tags:
        data = bytes([tag << 3 | 2]) + varint(len(data)) + data
    return data


def nested(depth: int, *tags: int) -> bytes:
    """A plan whose root relation is `depth` times `tags` around nothing (built from the inside in linear time)."""
    headers: list[bytes] = []
    size = 0
    for _ in range(depth):
        for tag in tags:
            header = bytes([tag << 3 | 2]) + varint(size)
            size += len(header)
            headers.append(header)
    return wrapped(b"".join(reversed(headers)), 1, 2, 3)


@pytest.mark.parametrize("depth", [60, 100, 300, 5_000, 100_000])
@pytest.mark.parametrize("tags", [(2, 2), (2, 7), (3, 3)], ids=["filters", "projects", "literals in relations"])
@pytest.mark.parametrize("stack", [512 << 10, 8 << 20])
def test_plans_nested_without_end(depth: int, tags: tuple[int, ...], stack: int) -> None:
    outcome: list[bool] = []
    before = threading.stack_size(stack)
    try:
        thread = threading.Thread(target=lambda: outcome.append(read_or_refuse(nested(depth, *tags))))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert outcome == [False]


def deep_plan(relation: bytes, names: list[str], functions: list[str]) -> bytes:
    """A plan around the bytes of a relation, which protobuf itself would not nest so deep."""
    rest = plan_pb2.Plan.FromString(plan(READ, [], functions))
    del rest.relations[:]
    named = b"".join(wrapped(name.encode(), 2) for name in names)
    return rest.SerializeToString() + wrapped(wrapped(relation, 1) + named, 2, 3)


def calls(anchor: int, *arguments: bytes) -> bytes:
    """An expression's bytes: Expression.scalar_function, its arguments, their values."""
    return wrapped(b"\x08" + varint(anchor) + b"".join(wrapped(a, 3, 4) for a in arguments), 3)


def filters(relation: bytes, condition: bytes) -> bytes:
    """A relation's bytes: Rel.filter with its input and condition."""
    return wrapped(wrapped(relation, 2) + wrapped(condition, 3), 2)


FIELD, TABLE = field(0).SerializeToString(), READ.SerializeToString()
SAME = calls(0, FIELD, FIELD)


def test_deep_expressions_are_refused() -> None:
    expression = SAME
    for _ in range(150):
        expression = calls(1, expression)
    with pytest.raises(Unsupported, match="expression nested more than"):
        read_plan(deep_plan(filters(TABLE, expression), ["a"], ["equal", "not"]), TABLES)


def test_deep_relations_are_refused() -> None:
    relation = TABLE
    for _ in range(200):
        relation = filters(relation, SAME)
    with pytest.raises(Unsupported, match="relations deep"):
        read_plan(deep_plan(relation, ["a"], ["equal"]), TABLES)


def test_plans_beyond_protobufs_default_depth_are_read() -> None:
    condition = SAME
    for _ in range(240):
        condition = calls(1, condition, SAME)
    relation = filters(TABLE, condition)
    for _ in range(100):
        relation = filters(relation, SAME)
    for data in (filters(TABLE, condition), filters(TABLE, SAME), relation):
        query, names = read_plan(deep_plan(data, ["a"], ["equal", "and"]), TABLES)
        assert names == ("a",)
        assert simplify(query).root.schema == TABLES["t"]


def test_references_that_double_are_refused() -> None:
    message = plan_pb2.Plan()
    message.relations.add(rel=READ)
    for number in range(40):
        both = {"subtree_ordinal": number}
        message.relations.add().rel.cross.left.reference.MergeFrom(type(message.relations[0].rel.reference)(**both))
        message.relations[-1].rel.cross.right.reference.subtree_ordinal = number
    message.relations.add().root.input.reference.subtree_ordinal = 40
    with pytest.raises(Unsupported, match="relations"):
        read_plan(message.SerializeToString(), TABLES)
    circle = plan_pb2.Plan()
    circle.relations.add().root.input.reference.subtree_ordinal = 0
    with pytest.raises(Unsupported, match="relations deep"):
        read_plan(circle.SerializeToString(), TABLES)
