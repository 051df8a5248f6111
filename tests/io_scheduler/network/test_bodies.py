"""Bodies come out as they went in, and parts that do not fit together end it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.errors import DataError
from pystachio.io_scheduler.network.bodies import BODY_BYTES, BodyReader
from pystachio.io_scheduler.network.frames import BodyPart


@given(st.lists(st.binary(max_size=50), max_size=5), st.integers(1, 20))
def test_bodies_come_out_as_they_went_in(bodies: list[bytes], size: int) -> None:
    reader = BodyReader()
    arrived = []
    for body in bodies:
        for start in range(0, max(len(body), 1), size):
            content = body[start : start + size]
            arrived.append(reader.take(BodyPart(len(body) - start - len(content), content)))
    assert [body for body in arrived if body is not None] == bodies


@pytest.mark.parametrize(
    "parts",
    [
        [BodyPart(BODY_BYTES, b"x")],
        [BodyPart((1 << 32) - 1, b"x")],
        [BodyPart(5, b"")],
        [BodyPart(5, b"x"), BodyPart(5, b"x")],
        [BodyPart(5, b"x"), BodyPart(3, b"x")],
        [BodyPart(5, b"x"), BodyPart(0, b"x")],
        [BodyPart(5, b"x"), BodyPart(5, b"")],
    ],
    ids=lambda parts: " ".join(f"{part.left}+{len(part.content)}" for part in parts),
)
def test_parts_that_do_not_fit_are_refused(parts: list[BodyPart]) -> None:
    reader = BodyReader()
    for part in parts[:-1]:
        assert reader.take(part) is None
    with pytest.raises(DataError, match="body"):
        reader.take(parts[-1])


def test_who_may_say_less_is_refused_with_the_first_part() -> None:
    assert BodyReader(10).take(BodyPart(0, bytes(10))) == bytes(10)
    with pytest.raises(DataError, match="too long: 11 of 10"):
        BodyReader(10).take(BodyPart(10, b"x"))
