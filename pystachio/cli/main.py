"""`pystachio-node`: the commands, each in a module of its own."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from pystachio.cli import (
    cluster,
    config,
    demo,
    doctor,
    failure,
    init,
    output,
    plans,
    process,
    query,
    ray,
    rewrite,
    serve,
    simulate,
    status,
    submit,
    top,
    warm,
)

app = typer.Typer(
    name="pystachio-node",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: rich would cost a tenth of a second of every start that ends in a usage error.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(query.query)
app.command()(warm.warm)
app.command()(rewrite.rewrite)
app.command()(demo.demo)
app.command()(doctor.doctor)
app.command()(simulate.simulate)
app.command()(plans.ps)
app.command()(top.top)
app.command()(plans.cancel)
app.command("set-priority")(plans.set_priority)
app.command()(init.init)
app.command()(init.token)
app.command()(serve.serve)
app.command()(cluster.cluster)
app.command()(submit.submit)
app.command()(status.status)
app.command()(status.drain)
app.add_typer(ray.app, name="ray")
app.add_typer(config.app, name="config")


def _version(wanted: bool) -> None:
    if wanted:
        from pystachio import __version__

        typer.echo(f"pystachio {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """PystachIO answers SQL over Parquet files in PyTorch tensors.

    Exit codes: 0 done, 1 the query failed, 2 wrong usage, 3 a node could not be reached, 130 interrupted.
    """


def main() -> NoReturn:
    """The console script."""
    process.start_quickly()
    output.replace_closed_streams()
    try:
        with failure.reported():
            app()
    except typer.Exit as end:
        process.end_now(end.exit_code)
    except SystemExit as end:
        process.end_now(end.code if isinstance(end.code, int) else 0)
    process.end_now(0)


if __name__ == "__main__":
    main()
