from __future__ import annotations

import datetime as dt
from contextlib import suppress
from decimal import Decimal
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pystachio.errors import InvalidRequest
from pystachio.remote import messages
from pystachio.remote.parameters import DateValue, DecimalValue, DurationValue, parameters_of, values_of
from tests.remote.request_samples import KINDS, sample

VALUES = [
    None,
    True,
    -(2**63),
    2**63 - 1,
    1.5,
    "straße",
    b"\x00\xff",
    Decimal("-12.50"),
    dt.date(2024, 2, 29),
    dt.time(1, 2, 3, 4),
    dt.datetime(2024, 2, 29, 1, 2, 3, 4),
    dt.datetime(2024, 2, 29, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    dt.timedelta(days=-3, seconds=5, microseconds=7),
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_request_survives_the_way(kind: type[Any]) -> None:
    request = sample(kind, 7)
    assert messages.decode_request(messages.encode(request)) == request


@pytest.mark.parametrize("kind", [*get_args(messages.Request), *get_args(messages.Answer)])
def test_every_message_has_a_number_and_is_strict(kind: type[Any]) -> None:
    assert kind.__struct_fields__[0] == "number"
    assert kind.__struct_config__.forbid_unknown_fields
    assert kind.__struct_config__.frozen


@pytest.mark.parametrize("kind", KINDS)
def test_more_or_other_fields_are_refused(kind: type[Any]) -> None:
    fields = msgspec.msgpack.decode(messages.encode(sample(kind)))
    for change in ({"more": 1}, {"number": 0}, {"number": "1"}, {"number": 2**60}, {"type": "no such request"}):
        with pytest.raises(InvalidRequest, match="not a request"):
            messages.decode_request(msgspec.msgpack.encode(fields | change))


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_bytes_without_sense_are_refused(body: bytes) -> None:
    for decode in (messages.decode_request, messages.decode_answer):
        with pytest.raises(InvalidRequest):
            decode(body)


@given(st.sampled_from(KINDS), st.integers(0, 200), st.integers(1, 255))
@settings(max_examples=300)
def test_a_changed_byte_is_refused_or_another_request(kind: type[Any], place: int, change: int) -> None:
    body = bytearray(messages.encode(sample(kind)))
    body[place % len(body)] ^= change
    with suppress(InvalidRequest):
        assert isinstance(messages.decode_request(bytes(body)), KINDS)


def test_texts_that_are_no_unicode_are_refused_by_who_says_them() -> None:
    with pytest.raises(InvalidRequest):
        messages.encode(messages.Explain(1, "select '\ud800'"))


def test_parameters_keep_their_types() -> None:
    request = messages.Submit(1, "select 1", parameters=values_of(VALUES))
    arrived = messages.decode_request(messages.encode(request))
    assert isinstance(arrived, messages.Submit)
    values = parameters_of(arrived.parameters)
    assert list(values) == VALUES
    assert list(map(type, values)) == list(map(type, VALUES))


@pytest.mark.parametrize("value", [2**63, object(), [1], {"a": 1}, 1j])
def test_values_without_a_type_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest):
        values_of([value])


@pytest.mark.parametrize("parameters", ["abc", b"abc", 5, None])
def test_parameters_are_a_list(parameters: Any) -> None:
    with pytest.raises(InvalidRequest, match="list or a tuple"):
        values_of(parameters)


@pytest.mark.parametrize("value", [DecimalValue("1x"), DateValue("yesterday"), DurationValue(10**12, 0, 0)])
def test_texts_that_are_no_values_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        parameters_of([value])
