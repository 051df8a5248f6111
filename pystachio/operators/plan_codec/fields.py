"""The fields of a plan's dataclasses as msgpack's values and back, driven by their annotations.

Each annotation that occurs has a `Form`: what checks and writes a value of it, and what checks and reads one. Numbers
and text go as they are; another dataclass of the plan, a table or a type goes as its number in the payload.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import pyarrow as pa

from pystachio.errors import InternalError, shown
from pystachio.operators.operator import Operator
from pystachio.operators.plan_codec.classes import CLASSES, OPERATORS
from pystachio.operators.table import Table

_LARGE_INTEGER: Final = 1
"""The code of the extension that holds an integer beyond 64 bits: its bytes, little-endian and signed."""
_LARGEST_INTEGER_BYTES: Final = 32
_INTEGERS: Final = range(-(2**63), 2**64)


class Mismatch(Exception):
    """A value is not what its annotation says: `expected` in words."""

    def __init__(self, expected: str, value: object) -> None:
        super().__init__(f"expected {expected}, not {shown(value)}")


@dataclass(slots=True)
class Trees:
    """How deep and large the trees below the nodes are, by number, and the one of the node at hand: its parts may be
    shared, but whoever walks the tree meets them as often as they occur."""

    depths: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    depth: int = 0
    size: int = 1

    def meet(self, number: int) -> None:
        """A part of the node at hand."""
        self.size += self.sizes[number]
        self.depth = max(self.depth, self.depths[number] + 1)

    def end(self) -> tuple[int, int]:
        """The node at hand is complete: its depth and size."""
        done = self.depth, self.size
        self.depths.append(self.depth)
        self.sizes.append(self.size)
        self.depth, self.size = 0, 1
        return done


@dataclass(slots=True)
class Writing:
    """What the payload has so far: the numbers of its nodes by identity, of its tables by identity, of its types."""

    trees: Trees = field(default_factory=Trees)
    nodes: dict[int, int] = field(default_factory=dict)
    tables: dict[int, int] = field(default_factory=dict)
    types: dict[pa.DataType, int] = field(default_factory=dict)


@dataclass(slots=True)
class Reading:
    """What is read so far."""

    tables: Sequence[Table]
    types: Sequence[pa.DataType]
    nodes: list[Any] = field(default_factory=list)
    trees: Trees = field(default_factory=Trees)


class Form(NamedTuple):
    """How values of one annotation are written and read. Both raise Mismatch."""

    write: Callable[[Any, Writing], Any]
    read: Callable[[Any, Reading], Any]


class FieldForm(NamedTuple):
    name: str
    form: Form


def forms_of(class_: type) -> tuple[FieldForm, ...]:
    """The fields that an object of a registered class is made from, in order; not its caches (`init=False`)."""
    return _all_forms()[class_]


@cache
def _all_forms() -> Mapping[type, tuple[FieldForm, ...]]:
    return {class_: tuple(_forms(class_)) for class_ in CLASSES.values()}


def _forms(class_: type) -> Iterator[FieldForm]:
    hints = get_type_hints(class_)
    for each in dataclasses.fields(class_):
        if each.init:
            yield FieldForm(each.name, form_of(hints[each.name]))


def form_of(annotation: Any) -> Form:
    """InternalError for an annotation that has no form: give it one here."""
    if annotation is Any:
        return Form(_write_constant, _read_constant)
    if annotation in _ATOMS:
        return _atom(annotation)
    if annotation is pa.DataType:
        return Form(_write_type, _read_type)
    if annotation is Table:
        return Form(_write_table, _read_table)
    if annotation is Operator:
        return _reference(OPERATORS, "an operator")
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return _sequence(form_of(arguments[0]), arguments[0])
        return _fixed(tuple(map(form_of, arguments)))
    if origin is Literal:
        return _one_of({value: value for value in arguments})
    if origin is Union or origin is types.UnionType:
        return _union(arguments)
    if isinstance(annotation, type):
        if issubclass(annotation, Enum):
            return _one_of({member.value: member for member in annotation})
        if CLASSES.get(annotation.__name__) is annotation:
            return _reference((annotation,), annotation.__name__)
    raise InternalError(f"a field of a plan has an annotation that cannot be sent: {annotation}")


_ATOMS: Final[Mapping[type, str]] = {
    int: "an integer",
    bool: "a boolean",
    str: "text",
    bytes: "bytes",
    float: "a float",
}


def _atom(kind: type) -> Form:
    name = _ATOMS[kind]

    def same(value: Any, _: Writing | Reading) -> Any:
        if type(value) is not kind:
            raise Mismatch(name, value)
        return value

    return Form(_write_integer, _read_integer) if kind is int else Form(same, same)


def _write_integer(value: Any, _: Writing) -> Any:
    if type(value) is not int:
        raise Mismatch("an integer", value)
    if value in _INTEGERS:
        return value
    length = value.bit_length() // 8 + 1
    if length > _LARGEST_INTEGER_BYTES:
        raise Mismatch(f"an integer of at most {_LARGEST_INTEGER_BYTES} bytes", value)
    return msgspec.msgpack.Ext(_LARGE_INTEGER, value.to_bytes(length, "little", signed=True))


def _read_integer(value: Any, _: Reading) -> int:
    if type(value) is int:
        return value
    if type(value) is msgspec.msgpack.Ext and value.code == _LARGE_INTEGER:
        number = int.from_bytes(value.data, "little", signed=True)
        if memoryview(value.data).nbytes <= _LARGEST_INTEGER_BYTES and number not in _INTEGERS:
            return number
    raise Mismatch("an integer", value)


def _write_constant(value: Any, writing: Writing) -> Any:
    if value is None or type(value) in (bool, float, str, bytes):
        return value
    if type(value) is tuple:
        return [_write_integer(part, writing) for part in value]
    return _write_integer(value, writing)


def _read_constant(value: Any, reading: Reading) -> Any:
    if value is None or type(value) in (bool, float, str, bytes):
        return value
    if type(value) is list:
        return tuple(_read_integer(part, reading) for part in value)
    return _read_integer(value, reading)


def _write_type(value: Any, writing: Writing) -> int:
    if not isinstance(value, pa.DataType):
        raise Mismatch("a type", value)
    return writing.types.setdefault(value, len(writing.types))


def _read_type(value: Any, reading: Reading) -> pa.DataType:
    if type(value) is not int or not 0 <= value < len(reading.types):
        raise Mismatch(f"one of {len(reading.types)} types", value)
    return reading.types[value]


def _write_table(value: Any, writing: Writing) -> int:
    if not isinstance(value, Table):
        raise Mismatch("a table", value)
    return writing.tables[id(value)]


def _read_table(value: Any, reading: Reading) -> Table:
    if type(value) is not int or not 0 <= value < len(reading.tables):
        raise Mismatch(f"one of {len(reading.tables)} tables", value)
    return reading.tables[value]


def _reference(classes: Sequence[type], name: str) -> Form:
    allowed = frozenset(classes)

    def write(value: Any, writing: Writing) -> int:
        if type(value) not in allowed:
            raise Mismatch(name, value)
        number = writing.nodes[id(value)]
        writing.trees.meet(number)
        return number

    def read(value: Any, reading: Reading) -> Any:
        # Only nodes before this one are there: no plan contains itself.
        if type(value) is not int or not 0 <= value < len(reading.nodes):
            raise Mismatch(f"one of the {len(reading.nodes)} nodes before", value)
        node = reading.nodes[value]
        if type(node) not in allowed:
            raise Mismatch(name, type(node))
        reading.trees.meet(value)
        return node

    return Form(write, read)


def _sequence(item: Form, annotation: Any) -> Form:
    is_plain = annotation is bool

    def write(values: Any, writing: Writing) -> list[Any]:
        if type(values) is not tuple:
            raise Mismatch("a tuple", values)
        return [item.write(value, writing) for value in values]

    def read(values: Any, reading: Reading) -> tuple[Any, ...]:
        if type(values) is not list:
            raise Mismatch("a list", values)
        if is_plain and all(type(value) is annotation for value in values):
            return tuple(values)
        return tuple([item.read(value, reading) for value in values])

    return Form(write, read)


def _fixed(items: tuple[Form, ...]) -> Form:
    expected = f"a tuple of {len(items)}"

    def write(values: Any, writing: Writing) -> list[Any]:
        if type(values) is not tuple or len(values) != len(items):
            raise Mismatch(expected, values)
        return [item.write(value, writing) for item, value in zip(items, values, strict=True)]

    def read(values: Any, reading: Reading) -> tuple[Any, ...]:
        if type(values) is not list or len(values) != len(items):
            raise Mismatch(expected, values)
        return tuple(item.read(value, reading) for item, value in zip(items, values, strict=True))

    return Form(write, read)


def _one_of(members: Mapping[Any, Any]) -> Form:
    """Of the members, written as their keys, which are text."""
    expected = f"one of {', '.join(map(str, members))}"
    written = {value: key for key, value in members.items()}

    def write(value: Any, _: Writing) -> Any:
        if not isinstance(value, str) or value not in written:
            raise Mismatch(expected, value)
        return str(written[value])

    def read(value: Any, _: Reading) -> Any:
        if type(value) is not str or value not in members:
            raise Mismatch(expected, value)
        return members[value]

    return Form(write, read)


def _union(arguments: tuple[Any, ...]) -> Form:
    """Of dataclasses of the plan, or of one other annotation, and None."""
    present = tuple(argument for argument in arguments if argument is not type(None))
    if all(isinstance(one, type) and CLASSES.get(one.__name__) is one for one in present):
        form = _reference(present, " or ".join(one.__name__ for one in present))
    elif len(present) == 1:
        form = form_of(present[0])
    else:
        raise InternalError(f"a field of a plan has an annotation that cannot be sent: {arguments}")
    if len(present) == len(arguments):
        return form
    return Form(
        lambda value, writing: None if value is None else form.write(value, writing),
        lambda value, reading: None if value is None else form.read(value, reading),
    )
