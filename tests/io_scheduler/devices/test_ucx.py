"""Arrays over UCX's TCP transport between two processes."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("ucxx") is None, reason="ucxx is not installed")

COMMON = """
import asyncio, os, sys, time, numpy
from pystachio.errors import NodeLost
from pystachio.io_scheduler.devices.ucx import UcxWorker

def ended(operation, buffer, tag):
    future = asyncio.get_running_loop().create_future()
    operation(buffer, tag, lambda error: future.set_result(error))
    return future

async def meet():
    worker = UcxWorker({"TLS": "tcp"})
    print(worker.address.hex(), flush=True)
    lost = asyncio.Event()
    return worker, worker.connect(bytes.fromhex(sys.stdin.readline()), lost.set), lost
"""

SERVER = (
    COMMON
    + """
async def main():
    worker, connection, lost = await meet()
    array = numpy.empty(1 << 20, dtype=numpy.int64)
    for _ in range(3):
        assert await ended(connection.receive, array, 1) is None
        assert await ended(connection.send, array + 1, 2) is None
    # What the client dies over, and what nobody sends.
    ends = [ended(connection.receive, array, tag) for tag in (3, 4)]
    sent, not_sent = await asyncio.gather(*ends)
    assert sent is None if sys.argv[1] == "closed" else isinstance(sent, NodeLost), sent
    assert isinstance(not_sent, NodeLost)
    await lost.wait()
    assert not connection.is_alive
    assert isinstance(await ended(connection.send, array, 5), NodeLost)
    # UCX has let go of every buffer, also of those of posted receives.
    async with asyncio.timeout(5):
        while worker.requests:
            await asyncio.sleep(0.01)
    worker.close()
    print("lost", flush=True)

asyncio.run(main())
"""
)

CLIENT = (
    COMMON
    + """
async def main(ending):
    worker, connection, lost = await meet()
    array = numpy.arange(1 << 20)
    answer = numpy.empty_like(array)
    for _ in range(3):
        assert await ended(connection.send, array, 1) is None
        assert await ended(connection.receive, answer, 2) is None
        assert numpy.array_equal(answer, array + 1)
    ended(connection.send, array, 3)
    if ending == "killed":
        os._exit(0)
    # A receive that nobody answers does not spin, and ends with the connection.
    busy = time.process_time()
    waiting = ended(connection.receive, answer, 10)
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    assert time.process_time() - busy < 0.1
    connection.close()
    connection.close()
    assert isinstance(await waiting, NodeLost)
    worker.close()

asyncio.run(main(sys.argv[1]))
"""
)


def _start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_arrays_pass_between_processes(ending: str) -> None:
    with _start(SERVER, ending) as server, _start(CLIENT, ending) as client:
        try:
            for one, other in ((server, client), (client, server)):
                assert one.stdout is not None
                assert other.stdin is not None
                # The first line of the standard output is the address and nothing of UCX's own log.
                address = one.stdout.readline()
                assert bytes.fromhex(address), address + one.stdout.read()
                other.stdin.write(address)
                other.stdin.flush()
            _, problems = client.communicate(timeout=30)
            assert client.returncode == 0, problems
            output, problems = server.communicate(timeout=30)
            assert output.split() == ["lost"], problems
            assert server.returncode == 0, problems
        finally:
            server.kill()
            client.kill()


def test_the_report_names_version_and_transports() -> None:
    script = "from pystachio.io_scheduler.devices.ucx_library import ucx_report; print(ucx_report())"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "'tcp'" in finished.stdout
    assert "problem=None" in finished.stdout
