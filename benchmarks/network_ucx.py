"""What UCX does without us: messages between two processes by ucxx's core API in a bare loop, from and to tensors.

The other end is a process of its own, `python -m benchmarks.network_ucx`, which speaks lines of JSON.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections import deque
from importlib import import_module
from typing import Any

import torch

from pystachio.io_scheduler.devices.ucx import OPTIONS
from pystachio.io_scheduler.devices.ucx_library import load_ucxx

UCX_OPTIONS = {"TLS": "tcp"}
LANES = 8
"""Messages on their way at once, as many as of ours (`network_peer.FLOOD_LANES`)."""
_DATA, _DONE = 1, 2
_WAIT_MILLISECONDS = 1000


class BareUcx:
    """One end. Everything that waits blocks the thread: nothing is between UCX and its caller."""

    def __init__(self) -> None:
        self._core = load_ucxx()
        self._as_array = import_module("ucxx._lib.arr").Array
        self._context = self._core.UCXContext({**OPTIONS, **UCX_OPTIONS})
        self._worker = self._core.UCXWorker(self._context, enable_delayed_submission=False, enable_python_future=False)
        self._worker.init_blocking_progress_mode()
        self._poll = select.poll()
        self._poll.register(self._worker.epoll_file_descriptor, select.POLLIN)
        self.address = bytes(self._worker.address)

    def connect(self, address: bytes) -> None:
        target = self._core.UCXAddress.create_from_buffer(address)
        self._endpoint = self._core.UCXEndpoint.create_from_worker_address(
            self._worker, target, endpoint_error_handling=True
        )

    def send_all(self, tensor: torch.Tensor, count: int) -> None:
        """So many messages of the tensor's bytes, until the other end says that it has them."""
        self._pass("tag_send", [tensor.numpy().data], count)
        self._pass("tag_recv", [memoryview(bytearray(8))], 1, _DONE)

    def receive_all(self, tensors: list[torch.Tensor], count: int) -> None:
        self._pass("tag_recv", [tensor.numpy().data for tensor in tensors], count)
        self._pass("tag_send", [memoryview(bytearray(8))], 1, _DONE)

    def _pass(self, operation: str, buffers: list[memoryview], count: int, tag: int = _DATA) -> None:
        start, mark = getattr(self._endpoint, operation), self._core.UCXXTag(tag)
        arrays = [self._as_array(buffer) for buffer in buffers]
        under_way: deque[Any] = deque()
        for number in range(count):
            if len(under_way) == LANES:
                self._wait(under_way.popleft())
            under_way.append(start(arrays[number % len(arrays)], mark))
        while under_way:
            self._wait(under_way.popleft())

    def _wait(self, request: Any) -> None:
        while not request.completed:
            while self._worker.progress_once():
                pass
            if not request.completed and self._worker.arm():
                self._poll.poll(_WAIT_MILLISECONDS)
        request.check_error()


class UcxPair:
    """This process's end, with the other one in a process beside it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            (sys.executable, "-m", "benchmarks.network_ucx"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._bare = BareUcx()
        self._bare.connect(bytes.fromhex(self._process.stdout.readline()))
        self._tell(self._bare.address.hex())
        self._process.stdout.readline()

    def rate(self, tensor: torch.Tensor, count: int) -> float:
        """Bytes per second of so many messages."""
        self._tell(json.dumps([tensor.nbytes, count]))
        assert self._process.stdout is not None
        self._process.stdout.readline()
        started = time.perf_counter()
        self._bare.send_all(tensor, count)
        return tensor.nbytes * count / (time.perf_counter() - started)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def serve() -> None:
    bare = BareUcx()
    print(bare.address.hex(), flush=True)
    bare.connect(bytes.fromhex(sys.stdin.readline()))
    print("ready", flush=True)
    known: dict[int, list[torch.Tensor]] = {}
    for line in sys.stdin:
        nbytes, count = json.loads(line)
        if nbytes not in known:
            known[nbytes] = [torch.zeros(nbytes, dtype=torch.uint8) for _ in range(LANES)]
        print("ready", flush=True)
        bare.receive_all(known[nbytes], count)


if __name__ == "__main__":
    serve()
