"""Executes a how-to page: its edits, on a copy of the source, and its programs, in order.

A line before each block of code says what is done with it:

    **Run**                             a program; **Run** with `NAME=value`: in that environment
    **Prints**                          what the program before prints, `...` for anything
    **New file** `FILE`                 a file is made
    **Append to** `FILE`                the block is appended
    **Insert into** `FILE`, behind `L`  the block is put behind a line that is there once; or before
    **Remove from** `FILE`              the block is taken out, which is there once
    **In** `FILE`                       the block is there, once
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.tree import ROOT

_STEP = re.compile(
    r"^\*\*(Run|Prints|New file|Append to|Insert into|Remove from|In)\*\*([^\n]*)\n\n"
    r"```\w*\n(.*?)```",
    re.M | re.S,
)
_PRINTS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Step:
    """One block of a page. what: of the list above; where: the rest of that line."""

    what: str
    where: str
    text: str


def steps_of(page: str) -> list[Step]:
    """The blocks of a page that do something, in order."""
    return [Step(what, where.strip(), text) for what, where, text in _STEP.findall(page)]


class Copy:
    """A copy of the source in a folder, which a page edits and runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed = ""
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info"))

    def do(self, step: Step) -> None:
        """Carry out one step; raises AssertionError where the page is not true."""
        match step.what:
            case "Run":
                self._run(step)
            case "Prints":
                checker = doctest.OutputChecker()
                assert checker.check_output(step.text, self.printed, _PRINTS), self.printed
            case "New file":
                path = self._path(step)
                assert not path.exists(), f"{path} is there already"
                path.write_text(step.text)
            case _:
                self._edit(step)

    def _path(self, step: Step) -> Path:
        """The file that a step names."""
        return self.folder / step.where.split("`")[1]

    def _edit(self, step: Step) -> None:
        path = self._path(step)
        text = path.read_text()
        if step.what == "Append to":
            path.write_text(f"{text}\n\n{step.text}")
        elif step.what == "Insert into":
            path.write_text(_with_lines(text, step))
        else:
            assert text.count(step.text) == 1, f"{path.name} does not hold, once:\n{step.text}"
            if step.what == "Remove from":
                path.write_text(text.replace(step.text, ""))

    def _run(self, step: Step) -> None:
        program = self.folder / "program.py"
        program.write_text(step.text)
        more = dict(item.split("=", 1) for item in re.findall(r"`(\w+=.*?)`", step.where))
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src"), **more}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the copy is imported several times
        command = [sys.executable, str(program)]
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=self.folder
        )
        assert ran.returncode == 0, ran.stderr
        self.printed = ran.stdout


def _with_lines(text: str, step: Step) -> str:
    """The text with a block beside the one line that the step names."""
    found = re.fullmatch(r"`[^`]+`, (behind|before) `(.+)`", step.where)
    assert found is not None, step.where
    lines = text.splitlines(keepends=True)
    places = [number for number, line in enumerate(lines) if line.strip() == found[2]]
    assert len(places) == 1, f"{len(places)} lines are {found[2]!r}"
    lines.insert(places[0] + (found[1] == "behind"), step.text)
    return "".join(lines)
