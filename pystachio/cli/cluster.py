"""`pystachio-node cluster`: several nodes on this machine, to try out what a cluster does."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from pystachio.cli.failure import ExitCode, reported
from pystachio.cli.output import say
from pystachio.cli.serve import settings_to_serve
from pystachio.errors import InternalError, PystachioError
from pystachio.server.ready_line import parse_ready

_STOP_SECONDS = 10.0
_START_SECONDS = 60.0
_SMALLEST_MEMORY = 64 << 20


def cluster(
    nodes: Annotated[int, typer.Option(help="How many.", min=1, max=64)] = 3,
    data: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Folder whose tables clients have; may be repeated.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Bytes for each node's plans. [default: a share of all]")] = None,
    threads: Annotated[int | None, typer.Option(help="Worker threads of each. [default: a share of all]")] = None,
) -> None:
    """Start a cluster of several processes on this machine, until Ctrl-C.

    It has a secret of its own, listens to this machine only, and takes free ports.
    """
    wishes: SimpleQueue[int | None] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # One that is ignored (nohup) stays so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: wishes.put(None))
    memory = str(_share_of_memory(nodes)) if memory is None else memory
    threads = _share(nodes) if threads is None else threads
    with reported(), TemporaryDirectory(prefix="pystachio-cluster-") as folder, ExitStack() as stack:
        members = LocalMembers(Path(folder), data or [], memory, threads)
        settings_to_serve(members.config, memory=memory, threads=threads)
        stack.callback(members.stop)
        for _ in range(nodes):
            address = members.start()
            typer.echo(f"{members.names[-1]} serves at {address}")
        typer.echo(_how_to_connect(members.addresses[0], members.token_file))
        sys.stdout.flush()
        members.watch(wishes)
        if not _until_the_end(members, wishes):
            raise typer.Exit(ExitCode.FAILED)


def _until_the_end(members: LocalMembers, wishes: SimpleQueue[int | None]) -> bool:
    """False when every node has ended by itself."""
    left = len(members.names)
    while (ended := wishes.get()) is not None:
        left -= 1
        say(f"{members.names[ended]} has ended with code {members.exit_code(ended)}")
        if not left:
            return False
    with suppress(OSError):  # the terminal may be gone
        say("stopping the nodes")
    return True


class LocalMembers:
    """Processes that were started here; nobody else's are touched."""

    def __init__(self, folder: Path, data: Sequence[Path], memory: str, threads: int) -> None:
        """Writes the secret and a token for its owner into `folder`."""
        from pystachio.io_scheduler.network.tokens import TokenRole, create, issue

        self.names: list[str] = []
        self.addresses: list[str] = []
        self.token_file = folder / "token"
        self.config = folder / "pystachio.toml"
        secret = create(folder / "secret")
        self.config.write_text(f'[cluster]\nsecret_file = "{folder / "secret"}"\n', encoding="utf-8")
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(f"{issue(secret, TokenRole.CLIENT, 'local')}\n", encoding="ascii")
        self._options = [f"--memory={memory}", f"--threads={threads}", *(f"--data={path.absolute()}" for path in data)]
        self._processes: list[subprocess.Popen[str]] = []

    def start(self) -> str:
        """One more node; returns its address when it serves. A node that cannot start has said why: raises `typer.Exit`
        with its exit code, InternalError for one that ended otherwise."""
        name = f"node{len(self.names)}"
        joined = [f"--join={self.addresses[0]}"] if self.addresses else []
        command = [sys.executable, "-m", "pystachio.cli.main", "serve", "--while-stdin-is-open", "--log=warning"]
        options = [f"--config={self.config}", f"--name={name}", "--listen=127.0.0.1:0", *joined, *self._options]
        process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is ours alone: it would end all of them at once, without their last words
        )
        self._processes.append(process)
        self.names.append(name)
        giving_up = threading.Timer(_START_SECONDS, process.kill)
        giving_up.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
        finally:
            giving_up.cancel()
        ready = parse_ready(line)
        if ready is None:
            if (code := _code_of_refusal(process)) is not None:
                raise typer.Exit(code)
            raise InternalError(f"a node did not start: {name}", hint="its log above says why")
        self.addresses.append(str(ready.address))
        return self.addresses[-1]

    def watch(self, wishes: SimpleQueue[int | None]) -> None:
        """Tell of each process that ends, by its number."""
        for number in range(len(self._processes)):
            threading.Thread(target=self._report_end, args=(number, wishes), daemon=True).start()

    def exit_code(self, number: int) -> int | None:
        return self._processes[number].poll()

    def stop(self) -> None:
        """End all that still run: politely, then not."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in self._processes:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

    def _report_end(self, number: int, wishes: SimpleQueue[int | None]) -> None:
        self._processes[number].wait()
        wishes.put(number)


def _code_of_refusal(process: subprocess.Popen[str]) -> int | None:
    """Its exit code if it has refused to start; None if it was ended, or still runs."""
    try:
        code = process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return code if code in (ExitCode.FAILED, ExitCode.USAGE) else None


def _share(nodes: int) -> int:
    from pystachio import machine

    return max(1, machine.usable_cores() // nodes)


def _share_of_memory(nodes: int) -> int:
    from pystachio.config import load

    try:
        return max(_SMALLEST_MEMORY, load().settings.memory // nodes)
    except PystachioError:
        return _SMALLEST_MEMORY * 8


def _how_to_connect(address: str, token_file: Path) -> str:
    return (
        f'ask it:     pystachio-node submit --node {address} --token-file {token_file} "select 1 as one"\n'
        f"watch it:   pystachio-node top --node {address} --token-file {token_file}\n"
        f'in Python:  pystachio.connect("pystachio://{address}", token=open("{token_file}").read())\n'
        "Ctrl-C stops it"
    )
