"""`pystachio-node config`: the settings and where each came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pystachio.cli.failure import reported

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show the settings.")


@app.callback()
def root() -> None:
    """Show the settings."""


@app.command()
def show(
    file: Annotated[Path | None, typer.Option("--config", help="Read this TOML file.")] = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value came from.")] = False,
) -> None:
    """Print the settings as a TOML file."""
    from pystachio.config import SECTIONS, load

    with reported():
        loaded = load(file)
        for section, names in SECTIONS.items():
            typer.echo(f"[{section}]")
            for name in names:
                line = f"{name} = {_toml(getattr(loaded.settings, name))}"
                typer.echo(f"{line:<40}  # {loaded.origins[name]}" if origin else line)
            typer.echo()


def _toml(value: object) -> str:
    """JSON writes booleans, numbers and strings as TOML does; a table stands on its line."""
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(dict(each)) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(each)}' for key, each in value.items())}}}"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
