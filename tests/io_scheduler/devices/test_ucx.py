"""Tensors over UCX's TCP transport between two processes."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("ucxx") is None, reason="ucxx is not installed")

SERVER = """
import asyncio, torch
from pystachio.errors import NodeLost
from pystachio.io_scheduler.devices.ucx import UcxWorker

async def main():
    worker = UcxWorker({"TLS": "tcp"})
    accepted = asyncio.Queue()
    print(worker.listen(accepted.put_nowait), flush=True)
    connection = await accepted.get()
    tensor = torch.empty(1 << 20, dtype=torch.int64)
    for _ in range(3):
        await connection.receive(tensor.numpy(), 1)
        await connection.send((tensor + 1).numpy(), 2)
    try:
        await connection.receive(tensor.numpy(), 3)
    except NodeLost:
        print("lost", flush=True)
    assert not connection.is_alive
    worker.close()

asyncio.run(main())
"""

CLIENT = """
import asyncio, os, sys, time, torch
from pystachio.errors import NodeLost
from pystachio.io_scheduler.devices.ucx import UcxWorker

async def main(port, ending):
    worker = UcxWorker({"TLS": "tcp"})
    connection = worker.connect("127.0.0.1", port)
    tensor = torch.arange(1 << 20)
    answer = torch.empty_like(tensor)
    for _ in range(3):
        await connection.send(tensor.numpy(), 1)
        await connection.receive(answer.numpy(), 2)
        assert torch.equal(answer, tensor + 1)
    if ending == "killed":
        os._exit(0)
    # A receive that nobody answers: its task leaves, its buffer stays until the connection is closed.
    busy = time.process_time()
    try:
        async with asyncio.timeout(0.3):
            await connection.receive(answer.numpy(), 9)
        raise AssertionError("nobody sent this")
    except TimeoutError:
        pass
    assert time.process_time() - busy < 0.1, "waiting does not spin"
    waiting = asyncio.create_task(connection.receive(answer.numpy(), 10))
    await asyncio.sleep(0)
    connection.close()
    connection.close()
    try:
        await waiting
        raise AssertionError("nobody sent this")
    except NodeLost:
        pass
    worker.close()

asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_tensors_pass_between_processes(ending: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            # The first line of the standard output is the port and nothing of UCX's own log.
            port = server.stdout.readline().strip()
            assert port.isdigit(), port + server.stdout.read()
            client = subprocess.run(
                [sys.executable, "-c", CLIENT, port, ending], capture_output=True, text=True, timeout=60, check=False
            )
            assert client.returncode == 0, client.stderr
            output, problems = server.communicate(timeout=30)
            assert output.split() == ["lost"], problems
            assert server.returncode == 0, problems
        finally:
            server.kill()


def test_the_report_names_version_and_transports() -> None:
    script = "from pystachio.io_scheduler.devices.ucx_library import ucx_report; print(ucx_report())"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "'tcp'" in finished.stdout
    assert "problem=None" in finished.stdout
