"""Regular expressions that a simple backtracking matcher in C does several times faster than RE2, with RE2's answers.

That is: characters, classes of ASCII characters, `.`, `^` at the beginning, `$` at the end, groups, alternatives, and
`?`, `*` and `+`, the last two not of groups. Everything else is left to RE2, and so are texts that take too long.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
import torch

from pystachio.operators.column import BytesColumn
from pystachio.operators.kernels import native

_TEXT, _SET, _RUN, _ALL, _SPLIT, _JUMP, _SAVE, _BEGIN, _END, _MATCH = range(10)
_OTHERS: Final = 128
"""Where a set says whether it has all characters that are not ASCII."""

_MOST_GROUPS: Final = 9
_DEEPEST: Final = 50
_META: Final = frozenset("\\^$.|?*+()[]{}")
_CLASSES: Final = {"d": "0123456789", "s": "\t\n\f\r ", "w": "0123456789_"}
_CONTROL: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


class _Unknown(Exception):
    """The expression has something that only RE2 knows, or is wrong."""


@dataclass(frozen=True, slots=True)
class _Set:
    members: bytes


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    """One of the `options`, the first that leads to a match."""

    options: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    number: int
    inner: _Node


@dataclass(frozen=True, slots=True)
class _Repeat:
    inner: _Node
    least: int
    most: int | None
    greedy: bool


@dataclass(frozen=True, slots=True)
class _Anchor:
    operation: int


_Node = str | _Set | _Sequence | _Choice | _Group | _Repeat | _Anchor
"""A text is one character."""


class _Program(ctypes.Structure):
    _fields_ = (
        ("instructions", ctypes.c_void_p),
        ("sets", ctypes.c_char_p),
        ("texts", ctypes.c_char_p),
        ("slots", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A compiled expression with `groups` groups."""

    instructions: np.ndarray
    sets: bytes
    texts: bytes
    groups: int

    def spans(self, column: BytesColumn) -> np.ndarray | None:
        """int32 [rows, 2 * groups + 2]: where group 0 (all that matched) and the others begin and end in each row's
        bytes, -1 where they do not. None when that takes too long."""
        library = native.library()
        assert library is not None
        slots = 2 * self.groups + 2
        found = np.empty((len(column), slots), np.int32)
        program = _Program(self.instructions.ctypes.data, self.sets, self.texts, slots)
        offsets, data = column.offsets.contiguous(), column.data.contiguous()
        status = library.pystachio_regex_spans(
            ctypes.byref(program), offsets.data_ptr(), data.data_ptr(), len(data), len(column), found.ctypes.data
        )
        if status == native.Status.CORRUPT:
            raise IndexError("offsets outside the strings")
        return found if status == native.Status.OK else None

    def replace_first(self, column: BytesColumn, replacement: str) -> BytesColumn | None:
        """Each row with the first match replaced; in `replacement` \\1 is what group 1 matched and \\\\ a backslash.
        None when that takes too long or is not known."""
        parts = _replacement(replacement, self.groups)
        spans = None if parts is None else self.spans(column)
        if parts is None or spans is None:
            return None
        library = native.library()
        assert library is not None
        kinds = np.array([part if isinstance(part, int) else -1 - len(part) for part in parts], np.int32)
        literals = b"".join(part for part in parts if isinstance(part, bytes))
        offsets, data = column.offsets.contiguous(), column.data.contiguous()
        made = torch.empty(len(column) + 1, dtype=torch.int64)
        texts = offsets.data_ptr(), data.data_ptr(), len(column), spans.ctypes.data, spans.shape[1]
        filling = kinds.ctypes.data, len(kinds), literals, made.data_ptr()
        library.pystachio_regex_replace(*texts, *filling, None)
        out = torch.empty(int(made[-1]), dtype=torch.uint8)
        library.pystachio_regex_replace(*texts, *filling, out.data_ptr())
        return BytesColumn(column.type, made, out)


@lru_cache(maxsize=256)
def compile_expression(pattern: str) -> Expression | None:
    """None where RE2 has to do it, or nobody can."""
    if native.library() is None:
        return None
    try:
        parser = _Parser(pattern)
        tree = parser.parse()
        writer = _Writer()
        writer.write(tree)
    except _Unknown:
        return None
    return writer.finished(parser.groups)


def _replacement(text: str, groups: int) -> list[int | bytes] | None:
    parts: list[int | bytes] = []
    characters = iter(text)
    for character in characters:
        part: int | bytes = character.encode()
        if character == "\\":
            following = next(characters, "")
            if following.isascii() and following.isdigit():
                part = int(following)
                if part > groups:
                    return None
            elif following != "\\":
                return None
        parts.append(part)
    return parts


@dataclass(slots=True)
class _Parser:
    pattern: str
    at: int = 0
    groups: int = 0

    def parse(self) -> _Node:
        if not all(character >= " " or character in "\t\n" for character in self.pattern):
            raise _Unknown
        tree = self._choice(0)
        if self.at < len(self.pattern):
            raise _Unknown
        return tree

    def _next(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _choice(self, depth: int) -> _Node:
        options = [self._sequence(depth)]
        while self._next() == "|":
            self.at += 1
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self, depth: int) -> _Node:
        parts: list[_Node] = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._repeated(self._one(depth)))
        return _Sequence(tuple(parts))

    def _one(self, depth: int) -> _Node:
        character = self._next()
        self.at += 1
        match character:
            case "^" if depth == 0 and self.at == 1:
                return _Anchor(_BEGIN)
            case "$" if depth == 0 and self.at == len(self.pattern):
                return _Anchor(_END)
            case ".":
                return _set_of("\n", negated=True)
            case "[":
                return self._class()
            case "(":
                return self._group(depth)
            case "\\":
                return self._escaped()
            case _ if character in _META:
                raise _Unknown
            case _:
                return character

    def _group(self, depth: int) -> _Node:
        if depth == _DEEPEST:
            raise _Unknown
        number = 0
        if self._next() == "?":
            if self.pattern[self.at : self.at + 2] != "?:":
                raise _Unknown
            self.at += 2
        else:
            self.groups += 1
            number = self.groups
            if number > _MOST_GROUPS:
                raise _Unknown
        inner = self._choice(depth + 1)
        if self._next() != ")":
            raise _Unknown
        self.at += 1
        # Without a number too: a group is not repeated as a character is.
        return _Group(number, inner)

    def _escaped(self) -> _Node:
        character = self._next()
        self.at += 1
        if character in _CONTROL:
            return _CONTROL[character]
        if character and character.lower() in _CLASSES:
            return _set_of(_named(character.lower()), negated=character.isupper())
        if not character or character.isalnum() or not character.isascii():
            raise _Unknown
        return character

    def _class(self) -> _Node:
        negated = self._next() == "^"
        self.at += negated
        members: list[str] = []
        first = True
        while first or self._next() != "]":
            first = False
            low = self._member()
            if len(low) == 1 and self._next() == "-" and self.pattern[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self._member()
                if len(high) != 1 or high < low:
                    raise _Unknown
                members += map(chr, range(ord(low), ord(high) + 1))
            else:
                members += low
        self.at += 1
        return _set_of("".join(members), negated=negated)

    def _member(self) -> str:
        """The characters that are meant: several for an escaped class."""
        character = self._next()
        self.at += 1
        if character == "\\":
            escaped = self._escaped()
            if isinstance(escaped, str):
                return escaped
            if not isinstance(escaped, _Set) or escaped.members[_OTHERS]:
                raise _Unknown
            return "".join(chr(code) for code in range(_OTHERS) if escaped.members[code])
        if character in ("", "[") or not character.isascii():
            raise _Unknown
        return character

    def _repeated(self, node: _Node) -> _Node:
        mark = self._next()
        if mark not in ("?", "*", "+"):
            return node
        self.at += 1
        greedy = self._next() != "?"
        self.at += not greedy
        if self._next() in ("?", "*", "+"):
            raise _Unknown
        if isinstance(node, _Anchor) or (isinstance(node, _Group) and mark != "?"):
            raise _Unknown
        if isinstance(node, str):
            node = _set_of(node, negated=False) if node.isascii() else _Group(0, node)
            if isinstance(node, _Group) and mark != "?":
                raise _Unknown
        return _Repeat(node, int(mark == "+"), 1 if mark == "?" else None, greedy)


def _laid_out(members: bytes) -> bytes:
    """A set as the library reads it."""
    characters, others = members[:_OTHERS], members[_OTHERS]
    is_all_but_one = others == 1 and characters.count(0) == 1
    return characters + bytes(_OTHERS) + bytes((others, is_all_but_one, max(characters.find(0), 0)))


def _named(letter: str) -> str:
    letters = "".join(map(chr, [*range(65, 91), *range(97, 123)])) if letter == "w" else ""
    return _CLASSES[letter] + letters


def _set_of(characters: str, *, negated: bool) -> _Set:
    members = bytearray(_OTHERS + 1)
    for character in characters:
        members[ord(character)] = 1
    return _Set(bytes(1 - member for member in members) if negated else bytes(members))


@dataclass(slots=True)
class _Writer:
    instructions: list[list[int]] = field(default_factory=list)
    sets: dict[bytes, int] = field(default_factory=dict)
    texts: bytes = b""

    def write(self, node: _Node) -> None:
        match node:
            case str():
                self._text(node)
            case _Set(members=members):
                self._emit(_SET, self._set(members))
            case _Sequence(parts=parts):
                text = ""
                for part in parts:
                    if isinstance(part, str):
                        text += part
                        continue
                    self._text(text)
                    text = ""
                    self.write(part)
                self._text(text)
            case _Choice(options=options):
                self._choice(options)
            case _Group(number=0, inner=inner):
                self.write(inner)
            case _Group(number=number, inner=inner):
                self._emit(_SAVE, 2 * number)
                self.write(inner)
                self._emit(_SAVE, 2 * number + 1)
            case _Repeat():
                self._repeat(node)
            case _Anchor(operation=operation):
                self._emit(operation)

    def finished(self, groups: int) -> Expression:
        self._emit(_MATCH)
        for place, (operation, *_) in enumerate(self.instructions):
            if operation == _RUN and self._needs_all(place):
                self.instructions[place][0] = _ALL
        sets = b"".join(map(_laid_out, self.sets))
        return Expression(np.array(self.instructions, np.int32), sets, self.texts, groups)

    def _needs_all(self, place: int) -> bool:
        """Whether what follows a run cannot begin with any character of it: then fewer of them would not match."""
        members = list(self.sets)[self.instructions[place][1]]
        following = place + 1
        while self.instructions[following][0] == _SAVE:
            following += 1
        operation, a, _ = self.instructions[following]
        if operation == _TEXT:
            first = self.texts[a]
            return not members[min(first, _OTHERS)]
        return operation == _END

    def _emit(self, operation: int, a: int = 0, b: int = 0) -> list[int]:
        instruction = [operation, a, b]
        self.instructions.append(instruction)
        return instruction

    def _text(self, characters: str) -> None:
        if characters:
            text = characters.encode()
            self._emit(_TEXT, len(self.texts), len(text))
            self.texts += text

    def _set(self, members: bytes) -> int:
        return self.sets.setdefault(members, len(self.sets))

    def _choice(self, options: tuple[_Node, ...]) -> None:
        jumps = []
        for option in options[:-1]:
            split = self._emit(_SPLIT, len(self.instructions) + 1)
            self.write(option)
            jumps.append(self._emit(_JUMP))
            split[2] = len(self.instructions)
        self.write(options[-1])
        for jump in jumps:
            jump[1] = len(self.instructions)

    def _repeat(self, node: _Repeat) -> None:
        if node.most is None and node.greedy:
            assert isinstance(node.inner, _Set)
            self._emit(_RUN, self._set(node.inner.members), node.least)
            return
        if node.least:
            self.write(node.inner)
        split = self._emit(_SPLIT)
        inside = len(self.instructions)
        self.write(node.inner)
        if node.most is None:
            self._emit(_JUMP, inside - 1)
        behind = len(self.instructions)
        split[1:] = [inside, behind] if node.greedy else [behind, inside]
