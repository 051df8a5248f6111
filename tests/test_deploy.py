"""The examples in deploy/ are what they claim to be: of the right form, with commands and settings that exist."""

from __future__ import annotations

import configparser
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from pystachio.cli.main import app
from pystachio.config import load, require_serviceable

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
EXAMPLES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
PAGES = [*EXAMPLES, ROOT / "docs" / "deploy.md"]
_COMMAND = re.compile(r"\bpystachio-node((?: +(?:--[a-z-]+|[^-\s`#;|&>)][^\s`;|&>)]*))+)")


def command_lines(text: str) -> list[list[str]]:
    """What follows the program's name, in programs, comments and prose alike; a line may go on after a backslash."""
    joined = re.sub(r"\\\n[#\s]*", " ", text)
    return [match[1].split() for match in _COMMAND.finditer(joined)]


def check(words: list[str]) -> None:
    """The command exists, and it has these options."""
    command: Any = typer.main.get_command(app)
    words = list(words)
    while hasattr(command, "commands"):
        assert words, f"{command.name} is a group of commands"
        name = words.pop(0)
        assert name in command.commands, f"no such command: {name}"
        command = command.commands[name]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in options, f"{command.name} has no option {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lines = command_lines(text)
    assert lines
    for words in lines:
        check(words)


def test_a_command_that_does_not_exist_is_found_out() -> None:
    (words,) = command_lines("run `pystachio-node ray up --nowhere 3`")
    with pytest.raises(AssertionError, match="--nowhere"):
        check(words)
    with pytest.raises(AssertionError, match="no such command"):
        check(["ray", "sideways"])


@pytest.mark.parametrize("script", [path for path in EXAMPLES if path.suffix == ".sbatch"], ids=lambda path: path.name)
def test_scripts_are_of_bash(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "RAY_AUTH_MODE=token" in script.read_text()


def test_the_unit_lets_plans_finish_and_restarts_what_died() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / "pystachio-node.service")
    service = unit["Service"]
    _, _, arguments = service["ExecStart"].partition("pystachio-node ")
    check(arguments.split())
    assert int(service["TimeoutStopSec"]) > load(environment={}).cluster.drain_seconds
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="no YAML parser is installed; Ray brings one")
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text(encoding="utf-8"))}


def test_the_ray_cluster_asks_for_a_token_and_hides_the_secret(objects: dict[str, Any]) -> None:
    cluster = objects["RayCluster"]["spec"]
    assert cluster["authOptions"] == {"mode": "token"}
    (workers,) = cluster["workerGroupSpecs"]
    pod = workers["template"]["spec"]
    mounted = {volume["name"] for volume in pod["volumes"]}
    for container in (*pod["containers"], *pod["initContainers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= mounted
        assert "env" not in container, "the secret is a file"
    assert [copy["command"][:3] for copy in pod["initContainers"]] == [["install", "-m", "0600"]]
    assert pod["terminationGracePeriodSeconds"] > load(environment={}).cluster.drain_seconds


def test_the_settings_of_the_pods_are_settings(objects: dict[str, Any], tmp_path: Path) -> None:
    text = objects["ConfigMap"]["data"]["pystachio.toml"]
    (tmp_path / "pystachio.toml").write_text(text)
    # As its supervisor completes it.
    loaded = load(tmp_path / "pystachio.toml", environment={"PYSTACHIO_CLUSTER_ADVERTISE": "10.0.0.1:0"})
    require_serviceable(loaded.cluster)
    (workers,) = objects["RayCluster"]["spec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert loaded.cluster.endpoint.port in [port["containerPort"] for port in container["ports"]]
    paths = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert str(tomllib.loads(text)["cluster"]["secret_file"]).rpartition("/")[0] in paths
