"""Log lines: JSON off a terminal, with the plan's id."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from pystachio.runtime.logging import LOGGER, bind_plan, configure_logging, get_logger


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    logger = logging.getLogger(LOGGER)
    logger.handlers = []
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_is_json_and_names_the_plan_of_its_task() -> None:
    written = io.StringIO()
    configure_logging(stream=written)

    async def plan(plan_id: str) -> None:
        bind_plan(plan_id)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(log())

    async def log() -> None:
        get_logger().info("read", bytes=7)

    async def main() -> None:
        await asyncio.gather(asyncio.create_task(plan("a")), asyncio.create_task(plan("b")))
        get_logger().debug("too fine")
        get_logger().warning("of nobody")

    asyncio.run(main())
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [(line["event"], line["level"], line.get("plan_id")) for line in lines] == [
        ("read", "info", "a"),
        ("read", "info", "b"),
        ("of nobody", "warning", None),
    ]
    assert lines[0]["bytes"] == 7


def test_an_exception_is_part_of_the_line() -> None:
    written = io.StringIO()
    configure_logging(stream=written)
    get_logger().error("crashed", exc_info=ValueError("why"))
    (line,) = (json.loads(line) for line in written.getvalue().splitlines())
    assert line["exception"][0]["exc_value"] == "why"


def test_a_terminal_gets_text() -> None:
    written = Terminal()
    configure_logging(stream=written)
    get_logger().info("hello", exc_info=ValueError("why"))
    assert "hello" in written.getvalue()
    assert not written.getvalue().startswith("{")


def test_an_embedding_program_gets_records_with_the_values(caplog: pytest.LogCaptureFixture) -> None:
    get_logger().warning("a plan left something behind", left_bytes=7)
    (record,) = caplog.records
    assert (record.name, record.getMessage(), record.__dict__["left_bytes"]) == (
        LOGGER,
        "a plan left something behind",
        7,
    )


def test_nothing_is_written_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    get_logger().debug("detail")
    get_logger().error("failure")
    assert capsys.readouterr().out == ""
