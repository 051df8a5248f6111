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
    from pystachio.config import CLUSTER_PREFIX, CLUSTER_SECTION, SECTIONS, ClusterSettings, load

    with reported():
        loaded = load(file)
        for section, names in SECTIONS.items():
            settings = [(name, getattr(loaded.settings, name), loaded.origins[name]) for name in names]
            _print(section, settings, origin)
        keys = ClusterSettings.model_fields
        _print(
            CLUSTER_SECTION,
            [(key, getattr(loaded.cluster, key), loaded.origins[f"{CLUSTER_PREFIX}{key}"]) for key in keys],
            origin,
        )


def _print(section: str, settings: list[tuple[str, object, str]], origin: bool) -> None:
    """A setting that has no value is a comment: TOML has no word for nothing."""
    typer.echo(f"[{section}]")
    for name, value, came_from in settings:
        line = f"# {name} =" if value is None else f"{name} = {_toml(value)}"
        typer.echo(f"{line:<40}  # {came_from}" if origin else line)
    typer.echo()


def _toml(value: object) -> str:
    """JSON writes booleans, numbers and strings as TOML does; a table stands on its line."""
    from pydantic import BaseModel

    if isinstance(value, tuple):
        return f"[{', '.join(_toml(dict(each) if isinstance(each, BaseModel) else each) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(each)}' for key, each in value.items())}}}"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
