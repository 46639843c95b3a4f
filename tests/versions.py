"""The suite on other versions of PyTorch and Python: `make test-versions`.

    python -m tests.versions                            # every environment
    python -m tests.versions --only 2.15.0/3.11         # one of them
    python -m tests.versions tests/unit -- -x           # other tests, other arguments of pytest

Each environment is made once, in `.versions/`, and kept. A table is printed, and written beside
them. What could not be run says why, and the exit status is 0 only where every row was run, nothing
failed, and at most one test in fifty was skipped.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_ROOT = Path(__file__).parents[1]
FOLDER = _ROOT / ".versions"
MARKERS = "not gpu and not zoo and not nightly"
MOST_SKIPPED = 0.02


@dataclass(frozen=True)
class Environment:
    """A version of PyTorch, as pip's `==` takes it, and one of Python."""

    torch: str
    python: str

    @property
    def name(self) -> str:
        """What `--only` takes."""
        return f"{self.torch}/{self.python}"

    @property
    def folder(self) -> Path:
        """Where it is made."""
        return FOLDER / f"torch-{self.torch}-python-{self.python}"


ENVIRONMENTS = (
    Environment("2.11.0", "3.12"),
    Environment("2.14.1", "3.11"),
    Environment("2.15.0", "3.11"),
    Environment("2.15.0", "3.14"),
    Environment("2.15.0", "3.15"),
)


@dataclass(frozen=True)
class Outcome:
    """What came of one environment. not_run: why it was not run, or did not end; minutes: of the
    tests alone; reasons: how often each reason for skipping a test was given."""

    environment: Environment
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    minutes: float = 0.0
    not_run: str = ""
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        """Whether it was run, nothing failed, and few tests were skipped."""
        total = self.passed + self.failed + self.skipped
        if self.not_run or self.failed or not total:
            return False
        return self.skipped <= MOST_SKIPPED * total


def interpreter_of(python: str, root: Path | None = None) -> Path | None:
    """An interpreter of this version: of the PATH, or the newest of pyenv's; None where there is
    none. root: where pyenv keeps its own."""
    for name in (f"python{python}", "python3", "python"):
        found = shutil.which(name)
        if found is not None and _version_of(Path(found)) == python:
            return Path(found)
    root = root or Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    installed = sorted((root / "versions").glob(f"{python}*/bin/python"), key=_age)
    return next((path for path in reversed(installed) if _version_of(path) == python), None)


def _age(path: Path) -> tuple[int, ...]:
    name = path.parents[1].name
    return tuple(int(part) if part.isdigit() else -1 for part in name.split("."))


def _version_of(python: Path) -> str:
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    run = subprocess.run([python, "-c", ask], capture_output=True, text=True)
    return run.stdout.strip()


def requirements() -> list[str]:
    """What the suite needs, as `pyproject.toml` says, but for PyTorch."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["demo"], *extras["test"]]
    return [text for text in wanted if not text.startswith("torch>")]


def make(environment: Environment, say: Callable[[str], None]) -> str:
    """Make an environment, or find it made. Why it cannot be; empty where it is there."""
    stamp = environment.folder / "made"
    if stamp.exists():
        return ""
    python = interpreter_of(environment.python)
    if python is None:
        return f"no Python {environment.python} on the PATH or in pyenv"
    say(f"making {environment.folder} with {python}")
    steps = (
        [str(python), "-m", "venv", "--clear", str(environment.folder)],
        # Triton comes with CUDA builds of PyTorch, which asks for the release that it needs.
        [*_pip(environment), f"torch=={environment.torch}"],
        [*_pip(environment), f"torch=={environment.torch}", *requirements()],
        # For its entry point: `torch.compile(backend="braze")`. The range of Pythons that it states
        # may be narrower than what is tried here.
        [
            *(*_pip(environment), "--no-deps", "--ignore-requires-python"),
            *("--editable", str(_ROOT)),
        ],
    )
    for step in steps:
        run = subprocess.run(step, capture_output=True, text=True)
        if run.returncode:
            lines = [line for line in run.stderr.splitlines() if line.strip()]
            return f"{' '.join(step[1:5])} ...: {lines[-1] if lines else run.returncode}"
    stamp.touch()
    return ""


def _pip(environment: Environment) -> list[str]:
    python = environment.folder / "bin" / "python"
    return [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]


def run_suite(
    environment: Environment, tests: Sequence[str], jobs: str, more: Sequence[str]
) -> Outcome:
    """Run tests in an environment that is made."""
    report = environment.folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [
        *(str(environment.folder / "bin" / "python"), "-m", "pytest", *tests),
        *("-n", jobs, "--dist", "loadgroup", "-m", MARKERS, "-p", "no:cacheprovider"),
        *(f"--junit-xml={report}", "-o", "junit_family=xunit2", *more),
    ]
    # The sources of this checkout, whatever the environment has installed.
    own = {"PYTHONPATH": str(_ROOT / "src"), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    with (environment.folder / "output.txt").open("w") as output:
        run = subprocess.run(
            command, cwd=_ROOT, env=os.environ | own, stdout=output, stderr=subprocess.STDOUT
        )
    minutes = (time.monotonic() - began) / 60
    if not report.exists():
        last = (environment.folder / "output.txt").read_text().strip().splitlines()[-1:]
        return Outcome(environment, not_run=f"pytest ended with {run.returncode}: {''.join(last)}")
    return read_report(environment, report.read_text(), minutes)


def read_report(environment: Environment, text: str, minutes: float) -> Outcome:
    """The outcome that a JUnit report of pytest's tells. Errors in fixtures and of files that
    cannot be collected are failures; expected failures count as passed."""
    found: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for case in ElementTree.fromstring(text).iter("testcase"):
        skips = [skip for skip in case.findall("skipped") if skip.get("type") != "pytest.xfail"]
        if case.find("failure") is not None or case.find("error") is not None:
            found["failed"] += 1
        elif skips:
            found["skipped"] += 1
            reasons[skips[0].get("message", "")] += 1
        else:
            found["passed"] += 1
    counts = (found["passed"], found["failed"], found["skipped"])
    return Outcome(environment, *counts, minutes, "", reasons)


def table(outcomes: Iterable[Outcome]) -> str:
    """The rows as a table of Markdown."""
    lines = [
        "| PyTorch | Python | passed | failed | skipped | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        versions = f"| {outcome.environment.torch} | {outcome.environment.python} |"
        if outcome.not_run:
            lines.append(f"{versions} not run: {outcome.not_run} | | | |")
        else:
            counts = f" {outcome.passed} | {outcome.failed} | {outcome.skipped} |"
            lines.append(f"{versions}{counts} {outcome.minutes:.0f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("tests", nargs="*", default=["tests"], help="files and folders")
    parser.add_argument("--only", action="append", choices=[e.name for e in ENVIRONMENTS])
    parser.add_argument("--jobs", default="auto", help="processes at once")
    given = list(sys.argv[1:] if arguments is None else arguments)
    split = given.index("--") if "--" in given else len(given)
    asked, more = parser.parse_args(given[:split]), given[split + 1 :]
    outcomes = []
    for environment in ENVIRONMENTS:
        if asked.only and environment.name not in asked.only:
            continue
        why = make(environment, print)
        outcome = (
            Outcome(environment, not_run=why)
            if why
            else run_suite(environment, asked.tests, asked.jobs, more)
        )
        outcomes.append(outcome)
        print(table([outcome]).splitlines()[-1], flush=True)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "table.md").write_text(table(outcomes) + "\n")
    print(table(outcomes))
    for outcome in outcomes:
        for reason, count in outcome.reasons.most_common(10):
            print(f"{outcome.environment.name}: skipped {count}: {reason}")
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
