"""Options that take one of a few words."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import typer

Words = TypeVar("Words", bound=StrEnum)


def one_of(words: type[Words]) -> Callable[[str], Words]:
    """A parser for `typer.Option` and `typer.Argument`: what is none of the words is wrong usage, which names them."""

    def parse(text: str) -> Words:
        try:
            return words(text)
        except ValueError:
            raise typer.BadParameter(f"no such {words.__name__.lower()}: {text!r}; one of {', '.join(words)}") from None

    return parse


def metavar(words: type[StrEnum]) -> str:
    """What the help shows for it."""
    return f"<{'|'.join(words)}>"
