"""The intermediate programs of the examples in `docs/programs`, as the compiler logs them."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import re

import braze
from braze.trace import ARTEFACTS
from tests.architecture.tree import ROOT

FOLDER = ROOT / "docs" / "programs"
_MARK = re.compile(r"<!-- (program|source): ([\w ]+) -->\n.*?<!-- end -->", re.S)


class _Lines(logging.Handler):
    """Keeps what one logger says."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@functools.cache
def logged_programs(name: str) -> dict[str, list[str]]:
    """Run a program; the texts of each log by its name, in order, and "printed"."""
    handlers = {artefact: _Lines() for artefact in ARTEFACTS}
    printed = io.StringIO()
    text = (FOLDER / f"{name}.py").read_text()
    with contextlib.ExitStack() as stack:
        for artefact, handler in handlers.items():
            logger = logging.getLogger(f"braze.{artefact}")
            stack.callback(logger.setLevel, logger.level)
            stack.callback(logger.removeHandler, handler)
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
        stack.enter_context(contextlib.redirect_stdout(printed))
        exec(compile(text, f"{name}.py", "exec"), {"__name__": "__main__"})
    braze.reset()
    found = {artefact: handler.texts for artefact, handler in handlers.items()}
    return {**found, "printed": [printed.getvalue()]}


def with_programs(page: str) -> str:
    """The page with all programs that its marks name, as the compiler prints them now."""
    return _MARK.sub(_filled, page)


def _filled(mark: re.Match[str]) -> str:
    kind, words = mark[1], mark[2].split()
    if kind == "source":
        text, language = (FOLDER / f"{words[0]}.py").read_text(), "python"
    else:
        text, language = _program(*words)
    lines = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    return f"<!-- {kind}: {mark[2]} -->\n```{language}\n{lines}\n```\n<!-- end -->"


def _program(name: str, artefact: str, number: str = "0") -> tuple[str, str]:
    """The text of an intermediate program, and its language."""
    logged = logged_programs(name)
    if artefact == "kernels":
        # A unit's kernels stand between its prelude and the entries that the linker adds.
        units = logged["output_code"][0].split("// --- kernels ---\n")[1:]
        kernels = "".join(unit.split("// What stands before", 1)[0] for unit in units)
        assert "for (" in kernels, "no kernel was found in the generated source"
        return kernels, "cpp"
    if artefact == "launch":
        (program,) = (text for text in logged["output_code"] if text.startswith("def call"))
        return program, "python"
    # Shorter comments: the one function, and the engine of autograd by what it is.
    text = re.sub(r" in (?:step|loss_of) -> ", " ", logged[artefact][int(number)])
    return text.replace("braze.compat.torch.autograd_engine.run_engine", "backward"), "text"
