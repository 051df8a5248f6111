"""A stand-in for a CUDA device that computes on the CPU, for machines without one.

A `DeviceTensor` says that it is on cuda:0 and keeps its numbers in a CPU tensor. Every function of torch that gets one,
or is asked to make one, passes `FakeDevice.call`, which refuses what fails, is wrong or blocks on a real device:

- tensors of the device beside CPU tensors of any dimension, numpy, the address of the data;
- functions without a CUDA kernel for the dtype;
- work outside a job of a stream: on the event loop's thread it would hold up the loop;
- reading what another stream perhaps has not written yet, and giving memory back that another stream perhaps still
  reads;
- writing to pinned memory that a copy perhaps still reads.

It counts the calls that make the host wait for the device. What it cannot show: other rounding, other winners of races,
kernels that are slow, memory that runs out.
"""

from __future__ import annotations

import collections
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map

DEVICE: Final = torch.device("cuda", 0)
MEMORY_BYTES: Final = 4 << 30

# Answered without the device.
_DESCRIPTIONS: Final = frozenset(
    ("__get__", "__len__", "dim", "element_size", "is_contiguous", "is_floating_point", "numel", "size", "stride")
)

# Their result, or its size, comes back to the host, which waits for it.
_WAITS: Final = frozenset(
    (
        *("__bool__", "__float__", "__index__", "__int__", "bincount", "equal", "item", "masked_select", "nonzero"),
        *("repeat_interleave", "tolist", "unique", "unique_consecutive"),
    )
)

_NEVER: Final = {"numpy", "__array__", "data_ptr", "untyped_storage", "storage", "from_numpy", "histc"}

_ONLY_FLOATS: Final = {"__matmul__", "matmul", "mm", "bmm", "addmm", "mv", "dot", "inner", "einsum", "tensordot"}

_HARDLY_ANY_KERNEL: Final = {torch.uint16, torch.uint32, torch.uint64}


class DeviceMisuse(AssertionError):
    """What a real device would not do, or not do right."""


class FakeStream:
    """Its operations are numbered; `seen` is up to which number of other streams it has waited."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.operations = 0
        self.seen: dict[FakeStream, int] = {}

    def wait_event(self, event: FakeEvent) -> None:
        _advance(self.seen, event.reached)


class FakeEvent:
    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.blocking = blocking
        self.reached: dict[FakeStream, int] = {}

    def record(self, stream: FakeStream) -> None:
        self.reached = {**stream.seen, stream: stream.operations}

    def query(self) -> bool:
        """No earlier than anybody has waited for it, or for what came behind it."""
        seen = _installed().host_seen
        return all(seen.get(stream, 0) >= number for stream, number in self.reached.items())

    def synchronize(self) -> None:
        assert self.blocking, "a wait that keeps a core busy"
        _advance(_installed().host_seen, self.reached)


class _Memory:
    """What the tensors on one allocation share."""

    def __init__(self, device: FakeDevice, stream: FakeStream) -> None:
        self._device = device
        self._allocated_for = stream
        self._recorded = {stream}
        self._uses: dict[FakeStream, int] = {}
        self._written = (stream, stream.operations)

    def write(self, stream: FakeStream) -> None:
        self._written = (stream, stream.operations)

    def read(self, stream: FakeStream) -> None:
        writer, number = self._written
        if writer is not stream and max(stream.seen.get(writer, 0), self._device.host_seen.get(writer, 0)) < number:
            self._device.refuse(f"stream {stream.name} reads what stream {writer.name} has perhaps not written yet")
        self._uses[stream] = stream.operations

    def record(self, stream: FakeStream) -> None:
        self._recorded.add(stream)

    def __del__(self) -> None:
        for user, number in self._uses.items():
            if user not in self._recorded and self._device.host_seen.get(user, 0) < number:
                home = self._allocated_for.name
                self._device.misuses.append(f"memory of stream {home} is free while stream {user.name} may read it")


class DeviceTensor(torch.Tensor):
    """A tensor on the stand-in."""

    numbers: torch.Tensor
    memory: _Memory

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, memory: _Memory) -> DeviceTensor:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls, numbers.shape, strides=numbers.stride(), dtype=numbers.dtype, device=DEVICE
        )

    def __init__(self, numbers: torch.Tensor, memory: _Memory) -> None:
        self.numbers = numbers
        self.memory = memory

    @classmethod
    def __torch_function__(
        cls, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _installed().call(function, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: object, args: object = (), kwargs: object = None) -> Any:
        raise AssertionError(f"{function} came past __torch_function__")

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"DeviceTensor({self.numbers!r})"

    def record_stream(self, stream: Any) -> None:
        self.memory.record(stream)


class PinnedMemory:
    """Where it lies, and the copies to the device that read it."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._blocks: list[torch.Tensor] = []
        self._reads: list[tuple[int, int, FakeStream, int]] = []
        self._lock = threading.Lock()
        self.nbytes = 0

    def allocate(self, tensor: torch.Tensor) -> torch.Tensor:
        self._blocks.append(tensor)
        self.nbytes += tensor.nbytes
        return tensor

    def holds(self, tensor: torch.Tensor) -> bool:
        address = tensor.data_ptr()
        return any(block.data_ptr() <= address < block.data_ptr() + block.nbytes for block in self._blocks)

    def read(self, tensor: torch.Tensor, stream: FakeStream) -> None:
        begin = tensor.data_ptr()
        with self._lock:
            self._reads.append((begin, begin + tensor.nbytes, stream, stream.operations))

    def write(self, tensor: torch.Tensor) -> None:
        begin, end, seen = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, self._device.host_seen
        with self._lock:
            self._reads = [read for read in self._reads if seen.get(read[2], 0) < read[3]]
            under_way = any(first < end and begin < last for first, last, _, _ in self._reads)
        if under_way:
            self._device.refuse("writing to pinned memory that a copy perhaps still reads")


class FakeDevice:
    """The device and its streams. `waits` counts by function, `waits_at` by function and line of the engine."""

    def __init__(self) -> None:
        self.default = FakeStream("default")
        self.host_seen: dict[FakeStream, int] = {}
        self.launches = 0
        self.waits: collections.Counter[str] = collections.Counter()
        self.waits_at: collections.Counter[str] = collections.Counter()
        self.misuses: list[str] = []
        self.pinned = PinnedMemory(self)
        self._thread = threading.local()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In the place of torch.cuda until the end of the test."""
        import pystachio.embedded
        import pystachio.runtime.devices

        def refuse(*_: object, **__: object) -> None:
            self.refuse("work on the device outside the jobs of its streams")

        monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority=0: FakeStream("side"))
        monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.current())
        monkeypatch.setattr(torch.cuda, "default_stream", lambda device=None: self.default)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (MEMORY_BYTES, MEMORY_BYTES))
        monkeypatch.setattr(pystachio.runtime.devices, "cuda_device_count", lambda: 1)
        monkeypatch.setitem(_INSTALLED, "device", self)

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """torch.cuda.stream: the outermost one of a thread is its job."""
        outer = getattr(self._thread, "stream", None)
        self._thread.stream = stream
        try:
            if outer is None:
                with _Job():
                    yield
            else:
                yield
        finally:
            self._thread.stream = outer

    def current(self) -> FakeStream:
        stream = getattr(self._thread, "stream", None)
        if stream is None:
            self.refuse("work on the device outside the jobs of its streams")
        assert isinstance(stream, FakeStream)
        return stream

    def refuse(self, what: str) -> None:
        """Raises, and remembers it: the engine may turn the exception into one of its own."""
        self.misuses.append(f"{what}, at {_line()}")
        raise DeviceMisuse(what)

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(function, "__name__", str(function))
        if name in _DESCRIPTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        tensors = [value for value in tree_iter((args, kwargs)) if isinstance(value, torch.Tensor)]
        ours = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
        target = _target(name, args, kwargs)
        if name == "cpu" or (ours and target is not None and target.type == "cpu"):
            self._wait(name, ours)
            return function(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))
        if name not in ("to", "copy_", "type_as"):
            self._check(name, tensors, ours)
        if (
            (name in _WAITS and not kwargs.get("output_size"))
            or _is_mask_index(name, args)
            or self._is_waiting_upload(name, args, kwargs)
        ):
            self._wait(name, ours)
        return self._launch(function, ours, args, kwargs)

    def _check(self, name: str, tensors: list[torch.Tensor], ours: list[DeviceTensor]) -> None:
        if name in _NEVER:
            self.refuse(f"{name} of a tensor on the device")
        if any(tensor.dim() for tensor in tensors if not isinstance(tensor, DeviceTensor)):
            self.refuse(f"{name} of tensors on the device and on the host")
        if name in _ONLY_FLOATS and any(not tensor.dtype.is_floating_point for tensor in ours):
            self.refuse(f"{name} has no CUDA kernel for integers")
        if any(tensor.dtype in _HARDLY_ANY_KERNEL for tensor in ours):
            self.refuse(f"{name} of unsigned integers")

    @staticmethod
    def _is_waiting_upload(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """From the host's memory, without `non_blocking`: the host waits for the copy."""
        if name in ("tensor", "as_tensor"):
            return True
        sources = args[1:] if name == "copy_" else args if name == "to" else ()
        from_host = any(
            isinstance(source, torch.Tensor) and not isinstance(source, DeviceTensor) and source.numel()
            for source in sources[:1]
        )
        return from_host and not kwargs.get("non_blocking")

    def _wait(self, name: str, inputs: list[DeviceTensor]) -> None:
        stream = self.current()
        for tensor in inputs:
            tensor.memory.read(stream)
        self.waits[name] += 1
        self.waits_at[f"{name} at {_line()}"] += 1
        _advance(self.host_seen, {**stream.seen, stream: stream.operations})

    def _launch(self, function: Any, inputs: list[DeviceTensor], args: Any, kwargs: dict[str, Any]) -> Any:
        stream = self.current()
        stream.operations += 1
        self.launches += 1
        for tensor in inputs:
            tensor.memory.read(stream)
        for source in tree_iter(args):
            if isinstance(source, torch.Tensor) and not isinstance(source, DeviceTensor) and self.pinned.holds(source):
                self.pinned.read(source, stream)
        result = function(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))
        if getattr(function, "__name__", "") == "__setitem__":
            inputs[0].memory.write(stream)
        return tree_map(lambda value: self._wrapped(value, inputs, stream), result)

    def _wrapped(self, value: Any, inputs: list[DeviceTensor], stream: FakeStream) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        for tensor in inputs:
            if tensor.numbers is value:  # changed in place, or returned as it is
                tensor.memory.write(stream)
                return tensor
        address = value.untyped_storage().data_ptr()
        for tensor in inputs:
            if address and tensor.numbers.untyped_storage().data_ptr() == address:
                return DeviceTensor(value, tensor.memory)
        return DeviceTensor(value, _Memory(self, stream))


class _Job(TorchFunctionMode):
    """Sees the functions that have no tensor of the device among their arguments."""

    def __torch_function__(
        self, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name == "pin_memory":
            # torch itself keeps such memory until the copies out of it are over.
            return args[0].clone()
        if kwargs.get("pin_memory"):
            return _installed().pinned.allocate(function(*args, **{**kwargs, "pin_memory": False}))
        if name == "copy_" and not isinstance(args[0], DeviceTensor) and _installed().pinned.holds(args[0]):
            _installed().pinned.write(args[0])
        target = _target(name, args, kwargs)
        if (target is not None and target.type == "cuda") or any(
            isinstance(value, DeviceTensor) for value in tree_iter((args, kwargs))
        ):
            return _installed().call(function, args, kwargs)
        return function(*args, **kwargs)


def _target(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """The device that the call names."""
    if "device" in kwargs:
        return None if kwargs["device"] is None else torch.device(kwargs["device"])
    if name == "to":
        for value in args[1:]:
            if isinstance(value, torch.device | str):
                return torch.device(value)
            if isinstance(value, torch.Tensor):
                return value.device
    return None


def _is_mask_index(name: str, args: tuple[Any, ...]) -> bool:
    if name not in ("__getitem__", "__setitem__"):
        return False
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in tree_iter(args[1]))


def _numbers(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        return value.numbers
    return torch.device("cpu") if value == DEVICE and isinstance(value, torch.device | str) else value


def _advance(seen: dict[FakeStream, int], reached: dict[FakeStream, int]) -> None:
    for stream, number in tuple(reached.items()):
        seen[stream] = max(seen.get(stream, 0), number)


def _line() -> str:
    """The innermost line of the engine."""
    for frame in reversed(traceback.extract_stack()):
        if "/pystachio/" in frame.filename:
            return f"{frame.filename.rsplit('/pystachio/', 1)[1]}:{frame.lineno}"
    return "a test"


_INSTALLED: dict[str, FakeDevice] = {}


def _installed() -> FakeDevice:
    return _INSTALLED["device"]
