"""Says what is being measured: a bar on a terminal, a line a measurement elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text


class ProgressBar:
    """The watcher of a run; a context manager that ends the bar. With `verbose`, what a failed
    process printed is shown as well."""

    def __init__(self, console: Console, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._text = ""
        self._started = time.monotonic()
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, total: int) -> None:
        self._bar.update(self._task, total=total)

    def phase(self, text: str) -> None:
        self._text = text
        self._bar.update(self._task, description=text)

    def advance(self, weight: int) -> None:
        self._bar.advance(self._task, weight)
        if not self._console.is_terminal:
            seconds = time.monotonic() - self._started
            self._console.print(f"{seconds:6.0f} s  {self._text}", highlight=False, markup=False)

    def failed(self, what: str, log: str) -> None:
        last = ([line for line in log.splitlines() if line.strip()] or [""])[-1]
        self._console.print(Text("failed: ", "bold red").append(f"{what}: {last}", "not bold"))
        if self._verbose:
            self._console.print(log, highlight=False, markup=False)
