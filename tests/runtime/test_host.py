"""A node on its own thread, as a synchronous program uses it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest

from pystachio.errors import Cancelled, InvalidRequest, PystachioError
from pystachio.runtime.executor import PlanScope, TaskSpec
from pystachio.runtime.host import NodeHost
from pystachio.runtime.plan import PlanHandle
from tests.runtime.nodes import NoTransfers, make_node


@pytest.fixture
def host() -> Iterator[NodeHost]:
    host = NodeHost(make_node)
    host.start()
    yield host
    host.stop()


def waiting_plan(scope: PlanScope) -> Sequence[TaskSpec]:
    async def wait() -> None:
        await asyncio.Event().wait()

    return [TaskSpec("wait", wait)]


async def submit(host: NodeHost) -> PlanHandle:
    return await host.node.submit(waiting_plan, plan_id="p")


async def ended(handle: PlanHandle) -> PystachioError | None:
    return await handle.wait_ended()


def test_coroutines_run_on_the_nodes_thread_and_on_uvloop(host: NodeHost) -> None:
    async def where() -> tuple[str, str]:
        return threading.current_thread().name, type(asyncio.get_running_loop()).__module__

    assert host.call(where()).result(10) == ("pystachio-node", "uvloop")


def test_a_plan_is_cancelled_from_the_callers_thread(host: NodeHost) -> None:
    handle = host.call(submit(host)).result(10)
    handle.cancel()
    assert isinstance(host.call(ended(handle)).result(10), Cancelled)


def test_stop_ends_the_plans_and_the_thread_and_later_calls_are_refused(host: NodeHost) -> None:
    async def current_thread() -> threading.Thread:
        return threading.current_thread()

    thread = host.call(current_thread()).result(10)
    handle = host.call(submit(host)).result(10)
    host.stop()
    host.stop()
    assert handle.done()
    handle.cancel()
    assert not thread.is_alive()
    with pytest.raises(InvalidRequest, match="not running"):
        host.call(submit(host))


def test_calls_that_wait_while_the_node_stops_are_cancelled_not_lost(host: NodeHost) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    waiting = host.call(wait())
    host.stop()
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(10)


def test_the_last_session_may_be_dropped_on_the_nodes_own_thread(host: NodeHost) -> None:
    async def stop() -> None:
        host.stop()

    waiting = host.call(stop())
    host.stop()
    assert waiting.done()


def test_what_stops_the_node_from_starting_is_raised() -> None:
    class Broken(NoTransfers):
        async def start(self) -> None:
            raise InvalidRequest("no such device")

    host = NodeHost(lambda: make_node(Broken()))
    with pytest.raises(InvalidRequest, match="no such device"):
        host.start()
    host.stop()


def test_a_forked_child_is_told_so(host: NodeHost) -> None:
    async def nothing() -> None: ...

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            host.stop()
            host.call(nothing())
        except InvalidRequest as error:
            os.write(write, error.message.encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as told:
        assert "after a fork" in told.read()
    host.call(nothing()).result(10)


SCRIPT = """
import asyncio, sys
from pystachio.runtime.host import NodeHost
from tests.runtime.nodes import make_node
from tests.runtime.test_host import submit, ended
host = NodeHost(make_node)
host.start()
host.call(submit(host)).result(10)
print("left running")
"""


def test_a_program_that_just_ends_ends_cleanly() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left running\n", "")
