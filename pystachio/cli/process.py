"""The life of the command's process: a quick start, an end that is quick too, and Ctrl-C."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, NoReturn

from pystachio.cli.failure import ExitCode

GRACE_SECONDS = 0.4
"""From Ctrl-C to the end of the process, whatever its threads are doing."""

_INTERRUPTS = (signal.SIGTERM, signal.SIGINT)
_AGAIN_SECONDS = 0.01
"""Until an interrupt that was not heard is raised again."""


def start_quickly() -> None:
    """Called first by a process of our own: leave out what no command needs, collect no garbage until `started`.

    torch's modules make so many objects that looking for garbage among them is a sixth of the time of its import.
    """
    gc.disable()
    sys.meta_path.insert(0, Absent("pandas"))
    # The shapes that torch's compiler asks for, a quarter of torch's import. Operators run eagerly and never ask.
    sys.modules["torch._meta_registrations"] = ModuleType("torch._meta_registrations")


def started() -> None:
    """All imports are done. What they made stays out of later collections too: modules live until the end."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


@contextmanager
def importing_only_what_is_needed() -> Iterator[None]:
    """In the block, torch and structlog do not find what they import only where it is there: bindings for the texts of
    CUDA's errors, colours for tracebacks. Together that takes as long as DataFusion. Others may import it later.

    Before, the C library is told how to treat memory: threads that libraries start get no heap of their own."""
    from pystachio.runtime.allocator import keep_freed_memory

    keep_freed_memory()
    optional = Absent("cuda", "pynvml", "rich")
    sys.meta_path.insert(0, optional)
    try:
        yield
    finally:
        sys.meta_path.remove(optional)


class Absent(MetaPathFinder):
    """Lets imports of modules that no command needs fail, as if they were not installed.

    pyarrow imports pandas with the first array it makes, if it is there: a third of the start of a short query.
    """

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in self._names:
            raise ModuleNotFoundError(f"left out of this process: {name}", name=name)
        return None


def end_now(code: int) -> NoReturn:
    """End the process after its last words. Taking torch apart first, module by module, would take 0.4 s."""
    for stream in (sys.stdout, sys.stderr):
        # A reader that is gone is no failure, and a full disk was met before: commands flush what they write.
        with suppress(OSError):
            stream.flush()
    os._exit(code)


@contextmanager
def interruptible(within: float = GRACE_SECONDS) -> Iterator[None]:
    """In the block, Ctrl-C and SIGTERM raise KeyboardInterrupt, and end the process at the latest `within` s later.

    Python may lose both. A signal that comes between its last look for one and the call that waits, for a lock or for a
    result, does not end that call, which may then wait for ever; and an exception that is raised in a finalizer or the
    callback of a weak reference (imports have one) is dropped. A thread, which the signal wakes whatever the main one
    does, raises it again until it was heard.
    """
    is_raised = is_over = False
    raising = threading.Lock()
    came, tell = os.pipe()
    os.set_blocking(tell, False)

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal is_raised
        if is_raised:
            return
        is_raised = True
        # Python does that too, once it knows the pipe.
        with suppress(BlockingIOError):
            os.write(tell, bytes([number]))
        raise KeyboardInterrupt

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        nonlocal is_raised
        if unraisable.exc_type is KeyboardInterrupt:
            is_raised = False
        else:
            report(unraisable)

    def watch() -> None:
        while (number := os.read(came, 1)) and number[0] not in _INTERRUPTS:
            pass
        if number:
            deadline = time.monotonic() + within
            while not is_over and (left := deadline - time.monotonic()) > 0:
                time.sleep(min(left, _AGAIN_SECONDS))
                with raising:
                    if not is_raised:
                        signal.pthread_kill(main, signal.SIGINT)
            if not is_over:
                os._exit(ExitCode.INTERRUPTED)
        os.close(came)

    main = threading.get_ident()
    watcher = threading.Thread(target=watch, name="pystachio-interrupt", daemon=True)
    report, woken_before = sys.unraisablehook, None
    before: dict[int, Any] = {}
    try:
        for each in _INTERRUPTS:
            before[each] = signal.signal(each, interrupted)
        sys.unraisablehook = dropped
        woken_before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        watcher.start()
        yield
    finally:
        # One that was not heard by now is too late: what the block was to do is done. The handlers go last: until then
        # they keep further ones from disturbing this.
        with raising:
            is_over, is_raised = not is_raised, True
        if woken_before is not None:
            signal.set_wakeup_fd(woken_before)
        sys.unraisablehook = report
        os.close(tell)
        if watcher.ident is None:
            os.close(came)
        elif is_over:
            watcher.join()
        for number, handler in before.items():
            signal.signal(number, handler)
