"""`pystachio-node init` and `token`: what a cluster begins with, and what lets its clients in."""

from __future__ import annotations

import json
import os
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pystachio.cli.choice import metavar, one_of
from pystachio.cli.failure import reported, wrong_usage
from pystachio.cli.output import say
from pystachio.errors import InvalidRequest, shown

SECRET_NAME = "secret"
CONFIG_NAME = "pystachio.toml"
_PORT = 7100


class Role(StrEnum):
    """`io_scheduler.network.tokens.TokenRole`."""

    CLIENT = "client"
    OBSERVER = "observer"


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the secret and the configuration file.")],
) -> None:
    """Begin a cluster: make its secret, which only you can read, and a configuration file for its nodes."""
    from pystachio.io_scheduler.network.tokens import create

    with reported():
        folder = folder.expanduser().absolute()
        secret, config = folder / SECRET_NAME, folder / CONFIG_NAME
        if config.exists():
            raise InvalidRequest(
                f"there is a configuration file already: {config}", hint="use it, or choose another folder"
            )
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            create(secret)
            with config.open("x", encoding="utf-8") as file:
                file.write(commented_configuration(secret))
        except OSError as error:
            raise InvalidRequest(f"the cluster's files cannot be written: {folder}: {error.strerror}") from None
        typer.echo(f"made {secret} and {config}")
        say(
            f"next: read {config.name}, then on the first machine\n"
            f"  pystachio-node serve --config {config} --data DIR\n"
            "on each further machine, with a copy of both files (the secret: mode 0600),\n"
            f"  pystachio-node serve --config {config} --data DIR --join HOST:{_PORT}\n"
            "and for those who ask\n"
            f"  pystachio-node token --config {config} --id NAME"
        )


def commented_configuration(secret: Path) -> str:
    """Every setting of a cluster with its meaning; those that have to be chosen are in force."""
    from pystachio.config import ClusterSettings

    chosen = {"listen": f"127.0.0.1:{_PORT}", "secret_file": str(secret)}
    lines = ["# A node of a PystachIO cluster: pystachio-node serve --config THIS_FILE", "", "[cluster]"]
    for name, field in ClusterSettings.model_fields.items():
        lines.append(f"# {field.description}")
        if name in chosen:
            lines.append(f"{name} = {json.dumps(chosen[name], ensure_ascii=False)}")
        else:
            default = field.default
            value = "" if default is None else json.dumps(default)
            lines.append(f"# {name} = {value}".rstrip())
        lines.append("")
    return "\n".join(lines)


def token(
    role: Annotated[
        Role, typer.Option(parser=one_of(Role), metavar=metavar(Role), help="observer may look, client may do all.")
    ] = Role.CLIENT,
    expires: Annotated[str, typer.Option(help="How long it opens doors: 12h, 7d, or never.")] = "7d",
    id: Annotated[str, typer.Option("--id", metavar="NAME", help="Whose it is, for logs.")] = "client",
    secret_file: Annotated[Path | None, typer.Option(help="The cluster's secret.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file that names the secret.")] = None,
) -> None:
    """Print a token for a client of the cluster. Treat it as a password; it cannot be taken back before it expires."""
    from pystachio.config import load
    from pystachio.io_scheduler.network.tokens import TokenRole, issue, read

    with reported():
        expires_at = _expiry(expires)
        path = secret_file if secret_file is not None else load(config).cluster.secret_file
        if path is None:
            raise typer.BadParameter("name the secret with --secret-file, or a configuration file with --config")
        secret = read(path)
        try:
            made = issue(secret, TokenRole(role.value), id, expires_at=expires_at)
        except InvalidRequest as error:
            raise wrong_usage(error) from None
        typer.echo(str(made))
        if os.isatty(1):
            say("a client gives it as PYSTACHIO_TOKEN, with --token-file, or as connect(token=...)")


def _expiry(text: str) -> int | None:
    """Unix time."""
    from pystachio.config import parse_duration
    from pystachio.io_scheduler.network.tokens import LATEST_EXPIRY

    if text == "never":
        return None
    try:
        seconds = parse_duration(text)
    except ValueError:
        raise typer.BadParameter(
            f"not a duration: {shown(text)}; write for example 30m, 12h, 7d or a number of seconds, or never",
            param_hint="--expires",
        ) from None
    if not isinstance(seconds, int | float) or seconds < 1:
        raise typer.BadParameter("a token lives for at least a second", param_hint="--expires")
    if (expires_at := int(time.time() + seconds)) > LATEST_EXPIRY:
        raise typer.BadParameter(
            "a token cannot live for so long; never is for one without an end", param_hint="--expires"
        )
    return expires_at
