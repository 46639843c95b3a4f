"""Executes a how-to page: its edits, on a copy of the source, and its programs, in order.

A comment of HTML stands before each block of code that does something:

    run                          a program; `run: NAME=value` sets a variable of the environment
    prints                       what the program before prints, `...` for anything
    new: FILE                    a file is made
    append: FILE                 the block is appended
    insert: FILE after: LINE     the block is put behind a line, which is there once; or `before:`
    remove: FILE                 the block is taken out, which is there once
    quote: FILE                  the block is there
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

_STEP = re.compile(r"<!-- ([a-z]+)(?:: (.*?))? -->\n```\w*\n(.*?)```", re.S)
_PRINTS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Step:
    """One block of a page. what: of the list above; where: behind the colon."""

    what: str
    where: str
    text: str


def steps_of(page: str) -> list[Step]:
    """The blocks of a page that do something, in order."""
    return [Step(*found) for found in _STEP.findall(page)]


class Copy:
    """A copy of the source in a folder, which a page edits and runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed = ""
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info"))

    def do(self, step: Step) -> None:
        """Carry out one step; raises AssertionError where the page is not true."""
        match step.what:
            case "run":
                self._run(step)
            case "prints":
                checker = doctest.OutputChecker()
                assert checker.check_output(step.text, self.printed, _PRINTS), self.printed
            case "new":
                path = self.folder / step.where
                assert not path.exists(), f"{step.where} is there already"
                path.write_text(step.text)
            case _:
                self._edit(step)

    def _edit(self, step: Step) -> None:
        name, _, line = re.sub(r" (after|before): ", r"\0\1\0", step.where).partition("\0")
        path = self.folder / name
        text = path.read_text()
        if step.what == "append":
            path.write_text(f"{text}\n\n{step.text}")
            return
        if step.what == "insert":
            side, _, line = line.partition("\0")
            assert text.count(f"{line}\n") == 1, f"{name} has not one line {line!r}"
            new = f"{line}\n{step.text}" if side == "after" else f"{step.text}{line}\n"
            path.write_text(text.replace(f"{line}\n", new))
            return
        assert text.count(step.text) == 1, f"{name} does not hold, once:\n{step.text}"
        if step.what == "remove":
            path.write_text(text.replace(step.text, ""))
        else:
            assert step.what == "quote", f"an unknown step: {step.what}"

    def _run(self, step: Step) -> None:
        program = self.folder / "program.py"
        program.write_text(step.text)
        more = dict(item.split("=", 1) for item in step.where.split())
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src"), **more}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the copy is imported several times
        command = [sys.executable, str(program)]
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=self.folder
        )
        assert ran.returncode == 0, ran.stderr
        self.printed = ran.stdout
