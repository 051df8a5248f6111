"""What connects the parts of a group of joins: equality classes, pairs of keys, and predicates, by the parts they read.

A set of *parts* is an int with a bit per relation and, above them, one per attachment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pystachio.operators.expressions import Call, Expression, FieldReference, fields_of
from pystachio.planner.joins.graph import Attachment, JoinGraph, Numbers

Members = Mapping[int, Numbers]
"""Field numbers by equality class."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Pairs of field numbers that must be equal, and predicates over field numbers."""

    keys: tuple[tuple[int, int, bool], ...]
    predicates: tuple[Expression, ...]


class JoinLinks:
    """The connections of one group."""

    def __init__(self, graph: JoinGraph) -> None:
        self._graph = graph
        self._relations = len(graph.relations)
        self._bit = [1 << (owner if owner >= 0 else self._relations - 1 - owner) for owner in graph.owner]
        self._class_of = _equality_classes(graph.equalities)
        self._class_members = _by_class(self._class_of)
        self._owners = [self._parts_of(fields_of(p)) for p in graph.predicates]

    def attachment_bit(self, index: int) -> int:
        """The part that an attachment is."""
        return 1 << (self._relations + index)

    def predicates_of(self, parts: int) -> tuple[Expression, ...]:
        """The predicates that read exactly these parts; of no part: the constant ones."""
        return tuple(p for p, owners in zip(self._graph.predicates, self._owners) if owners == parts)

    def links(self) -> list[int]:
        """For each part those that it may be joined or attached to directly."""
        linked = [self.neighbours_of(1 << part) for part in range(self._relations + len(self._graph.attachments))]
        for index, attachment in enumerate(self._graph.attachments):
            classes = (self._class_members.get(self._class_of.get(n, -1), (n,)) for n in attachment.left_keys)
            bases = self._parts_of(n for choice in classes for n in choice)
            bases |= self._parts_of(attachment.residual_numbers)
            linked[self._relations + index] |= bases
            for part in range(len(linked)):
                if bases >> part & 1:
                    linked[part] |= self.attachment_bit(index)
        return linked

    def leaf_members(self, index: int) -> dict[int, Numbers]:
        """The fields of one relation that are in equality classes."""
        members: dict[int, Numbers] = {}
        for number in self._graph.relations[index].numbers:
            if number in self._class_of:
                class_ = self._class_of[number]
                members[class_] = (*members.get(class_, ()), number)
        return members

    def equal(self, left: int, right: int, null_equal: bool = False) -> Expression:
        """The condition of a pair of keys as a predicate."""
        sides = tuple(FieldReference(number, self._graph.fields[number].type) for number in (left, right))
        return Call("is_not_distinct_from" if null_equal else "equal", sides, pa.bool_())

    def neighbours_of(self, bit: int) -> int:
        """The parts with which the part shares an equality class or a pair of keys."""
        linked = 0
        for members in self._class_members.values():
            parts = self._parts_of(members)
            if parts & bit:
                linked |= parts
        for a, b, _ in self._graph.pairs:
            parts = self._bit[a] | self._bit[b]
            if parts & bit:
                linked |= parts
        return linked & ~bit

    def numbers_read(self) -> frozenset[int]:
        """The fields that some condition of the group reads."""
        read = set(self._class_of)
        for a, b, _ in self._graph.pairs:
            read |= {a, b}
        for predicate in self._graph.predicates:
            read |= fields_of(predicate)
        for attachment in self._graph.attachments:
            read |= {*attachment.left_keys, *attachment.residual_numbers}
        return frozenset(read)

    def condition(self, left: int, right: int, left_members: Members, right_members: Members) -> Condition:
        """What two sets of parts have to agree in, and what can be tested once they are together."""
        shared = [class_ for class_ in right_members if class_ in left_members]
        left_keys = self._together([left_members[class_] for class_ in shared])
        right_keys = self._together([right_members[class_] for class_ in shared])
        keys = [(a, b, False) for a, b in zip(left_keys, right_keys, strict=True)]
        for a, b, null_equal in self._graph.pairs:
            if left & self._bit[a] and right & self._bit[b]:
                keys.append((a, b, null_equal))
            elif left & self._bit[b] and right & self._bit[a]:
                keys.append((b, a, null_equal))
        predicates = tuple(
            p
            for p, owners in zip(self._graph.predicates, self._owners)
            if owners & left and owners & right and not owners & ~(left | right)
        )
        return Condition(tuple(keys), predicates)

    def predicates_with(self, index: int, parts: int) -> tuple[Expression, ...]:
        """What can be tested once the attachment is there as well as `parts`."""
        bit = self.attachment_bit(index)
        predicates = [
            p for p, owners in zip(self._graph.predicates, self._owners) if owners & bit and not owners & ~(parts | bit)
        ]
        for a, b, null_equal in self._graph.pairs:
            owners = self._bit[a] | self._bit[b]
            if owners & bit and not owners & ~(parts | bit):
                predicates.append(self.equal(a, b, null_equal))
        return tuple(predicates)

    def left_keys(self, attachment: Attachment, parts: int, members: Members) -> Numbers | None:
        """The fields that serve as left keys: of each key's class any member will do."""
        if self._parts_of(attachment.residual_numbers) & ~parts:
            return None
        choices = [members.get(self._class_of.get(number, -1), (number,)) for number in attachment.left_keys]
        if any(not parts & self._bit[choice[0]] for choice in choices):
            return None
        all_relations = (1 << self._relations) - 1
        if not choices and not attachment.residual_numbers and parts & all_relations != all_relations:
            return None  # it does the same to every row: it may wait until the end
        return tuple(self._together(choices))

    def _together(self, choices: list[Numbers]) -> list[int]:
        """One field of each choice, of as few relations as possible: the estimate of several keys depends on whether
        they come from one relation."""
        if len(choices) < 2:
            return [choice[0] for choice in choices]
        counts = Counter(bit for choice in choices for bit in {self._bit[number] for number in choice})
        return [max(choice, key=lambda number: counts[self._bit[number]]) for choice in choices]

    def _parts_of(self, numbers: Iterable[int]) -> int:
        parts = 0
        for number in numbers:
            parts |= self._bit[number]
        return parts


def _equality_classes(equalities: list[tuple[int, int]]) -> dict[int, int]:
    """The class of each field number that occurs in an equality, named by one of its members."""
    parent: dict[int, int] = {}

    def root(number: int) -> int:
        parent.setdefault(number, number)
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    for a, b in equalities:
        parent[root(b)] = root(a)
    return {number: root(number) for number in parent}


def _by_class(class_of: Mapping[int, int]) -> dict[int, Numbers]:
    members: dict[int, Numbers] = {}
    for number, class_ in class_of.items():
        members[class_] = (*members.get(class_, ()), number)
    return members
