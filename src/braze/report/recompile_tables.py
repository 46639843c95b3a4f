"""How a profile of recompiles is printed: a table of functions, and below it what changed.

function   compiles   recompiles   seconds
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from braze.report.tables import table

if TYPE_CHECKING:
    from braze.report.recompile_profile import RecompiledFunction, RecompileProfile


def sections(profile: RecompileProfile) -> Iterable[RenderableType]:
    """What is printed, one item a part."""
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
