"""How a profile of recompiles is printed: a table of functions, and below it what changed.

function   compiles   recompiles   seconds
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.text import Text

from braze.report.tables import print_text, table

if TYPE_CHECKING:
    from braze.report.recompile_profile import RecompiledFunction, RecompileProfile


def show(profile: RecompileProfile) -> None:
    """Print to the terminal, in colour where it has colours."""
    Console().print(profile)


def as_group(profile: RecompileProfile) -> RenderableType:
    """What `rich` prints."""
    return Group(*_sections(profile))


def as_text(profile: RecompileProfile) -> str:
    """The same without colours."""
    return print_text(_sections(profile))


def _sections(profile: RecompileProfile) -> Iterable[RenderableType]:
    functions = profile.functions
    spent = sum(row.seconds for row in functions)
    yield Text(
        f"Recompiles: {profile.recompiles} of {profile.compiles} compiles, "
        f"{spent:.2f} of {profile.seconds:.2f} s",
        style="bold",
    )
    if not functions:
        return
    made = table("", "function", "compiles", "recompiles", "seconds")
    for column in made.columns[1:]:
        column.justify = "right"
    for row in functions:
        counts = (str(row.compiles), str(row.recompiles), f"{row.seconds:.2f}")
        made.add_row(row.function, *counts)
    yield made
    for row in functions:
        yield Text(f"{row.function}, {row.origin}", style="bold")
        yield from _lines(row)


def _lines(row: RecompiledFunction) -> Iterable[Text]:
    for cause in row.causes:
        place = f"  # {cause.place}" if cause.place else ""
        subject = f"{cause.subject}: " if cause.subject not in cause.last else ""
        yield Text(f"  {cause.count} x {cause.seconds:.2f} s  {subject}{cause.last}{place}")
        yield Text(f"    {cause.fix}")
    for limit in row.limits:
        yield Text(f"  {limit}", style="yellow")
