"""The page of a day's results: one section for each benchmark, the latest run of it."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.figures import machine, markdown
from benchmarks.report import Report

FOLDER = Path(__file__).parent / "results"
_SECTION = "\n## "


def record(name: str, found: Report, command: str) -> None:
    """Put what was found into today's page, in place of an earlier run of the same benchmark; a chart beside it."""
    now = datetime.now(UTC)
    FOLDER.mkdir(exist_ok=True)
    page = FOLDER / f"{now:%Y-%m-%d}.md"
    head, *sections = page.read_text().split(_SECTION) if page.exists() else (f"# {now:%Y-%m-%d}\n",)
    kept = {section.split("\n", 1)[0]: section for section in sections}
    kept[name] = f"{name}\n\n{now:%H:%M} UTC, {_commit()}, {machine()}  \n`{command}`\n\n{_body(page, name, found)}"
    page.write_text(_SECTION.join((head, *kept.values())))
    sys.stdout.write(f"written to {page}\n")


def _body(page: Path, name: str, found: Report) -> str:
    parts = [markdown(found.figures), found.table, "".join(f"- {note}\n" for note in found.notes)]
    if found.chart is not None:
        picture = page.with_name(f"{page.stem}-{name}.png")
        found.chart(picture)
        parts.insert(0, f"![{name}]({picture.name})\n")
    return "\n".join(part for part in parts if part)


def _commit() -> str:
    """What was measured."""
    answer = subprocess.run(
        ("git", "describe", "--always", "--dirty"), capture_output=True, text=True, cwd=FOLDER.parent, check=False
    )
    return answer.stdout.strip() or "outside of a repository"
