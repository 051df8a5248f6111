"""Ray on this machine for a while: a head of its own, in token mode, with everything it writes in one folder."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_SECONDS = 60
END_SECONDS = 20
_ADDRESS = re.compile(r"ray start --address='([^']+)'")


@dataclass(frozen=True)
class LocalRay:
    address: str
    environment: Mapping[str, str]

    def node_command(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """`pystachio-node ray`, as a person would run it on one of the hosts."""
        return subprocess.run(
            [sys.executable, "-m", "pystachio.cli.main", "ray", *arguments, "--address", self.address],
            env={**self.environment, **changes},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def reports(self, *arguments: str) -> list[dict[str, Any]]:
        done = self.node_command(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def local_ray(cpus: int, environment: Mapping[str, str], *, gpus: int = 0) -> Iterator[LocalRay]:
    # Its sockets' paths have to be short, which pytest's folders are not.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    environment = {
        **os.environ,
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        **environment,
    }
    options = ["--port=0", f"--num-cpus={cpus}", f"--num-gpus={gpus}", "--object-store-memory=80000000"]
    quiet = ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder / 'r'}"]
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *options, *quiet],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield LocalRay(_address_of(head), environment)
    finally:
        head.send_signal(signal.SIGTERM)
        try:
            head.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)
            head.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def _address_of(head: subprocess.Popen[str]) -> str:
    assert head.stdout is not None
    giving_up = threading.Timer(START_SECONDS, head.kill)
    giving_up.start()
    said: list[str] = []
    try:
        for line in head.stdout:
            said.append(line)
            if (match := _ADDRESS.search(line)) is not None:
                return match[1]
    finally:
        giving_up.cancel()
    raise AssertionError(f"Ray did not start: {''.join(said)}")
