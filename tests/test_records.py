"""Records are values: equal where their fields are, or themselves only."""

from __future__ import annotations

from dataclasses import field, replace

import pytest

from pystachio.records import record


@record
class Point:
    x: int
    y: int = 0


@record(eq=False)
class Box:
    items: list[int] = field(default_factory=list)


def test_equal_fields_make_equal_records() -> None:
    assert Point(1) == Point(1, 0) != Point(1, 2)
    assert len({Point(1), Point(1, 0), Point(2)}) == 2
    assert replace(Point(1), y=5) == Point(1, 5)
    assert repr(Point(1)) == "Point(x=1, y=0)"
    match Point(3, 4):
        case Point(x, y):
            assert (x, y) == (3, 4)


def test_records_without_equality_are_themselves_only() -> None:
    one, other = Box([1]), Box([1])
    assert one != other
    assert len({one, other, one}) == 2
    assert Box().items is not Box().items


def test_records_have_their_fields_only() -> None:
    with pytest.raises(AttributeError):
        Point(1).z = 2  # type: ignore[attr-defined]
