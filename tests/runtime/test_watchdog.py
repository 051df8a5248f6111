"""A wedged loop is told from a slow one, and from a process that was stopped and continued."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time

import pytest

from pystachio.runtime.watchdog import WEDGED_EXIT_CODE, ProgressCheck, Watchdog

PROGRAM = """
import asyncio, sys, time
from pystachio.runtime.watchdog import Watchdog

async def main():
    with Watchdog(seconds=1.0, check_seconds=0.1):
        print("ready", flush=True)
        {body}
        print("done", flush=True)

asyncio.run(main())
"""


def test_progress_ends_a_stall() -> None:
    check = ProgressCheck(seconds=2.0, check_seconds=0.5)
    seen = [check.is_wedged(progress) for progress in (1, 1, 1, 1, 2, 2, 2, 2, 2)]
    assert seen == [False] * 8 + [True]


def test_two_seconds_are_no_wedge_by_default() -> None:
    check = ProgressCheck(seconds=10.0, check_seconds=0.5)
    assert not any(check.is_wedged(1) for _ in range(20))
    assert check.is_wedged(1)


def test_the_loop_that_turns_is_left_alone() -> None:
    ended = threading.Event()

    async def main() -> None:
        with Watchdog(seconds=0.4, check_seconds=0.02, end=ended.set):
            await asyncio.sleep(0.6)

    asyncio.run(main())
    assert not ended.is_set()


def test_the_loop_that_does_not_turn_is_ended_once() -> None:
    ends: list[str] = []
    ended = threading.Event()

    def end() -> None:
        ends.append(threading.current_thread().name)
        ended.set()

    async def main() -> None:
        with Watchdog(seconds=0.1, check_seconds=0.02, end=end):
            await asyncio.sleep(0)
            assert ended.wait(30.0), "the loop waits here, and turns no more"

    asyncio.run(main())
    assert ends == ["pystachio-watchdog"]


def start(body: str) -> subprocess.Popen[str]:
    program = PROGRAM.format(body=body)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=-1, stderr=-1, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_wedged_process_shows_its_stacks_and_ends() -> None:
    process = start("time.sleep(60)")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == WEDGED_EXIT_CODE
    assert output == ""
    assert "no progress" in errors
    assert "in main" in errors, "where the loop was"


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="the system cannot stop processes")
def test_a_process_that_was_stopped_goes_on() -> None:
    process = start("await asyncio.sleep(0.5)")
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.0)  # real time passes for it: longer than it may be wedged
    process.send_signal(signal.SIGCONT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "done\n"), errors
