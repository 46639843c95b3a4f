"""`make test-versions`: what it reads and prints; and the ranges that pyproject states."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from braze.compat.tested_versions import TESTED_PYTHON, TESTED_TORCH, beyond
from tests import versions
from tests.versions import Environment, Outcome

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HERE = Environment("2.15.0", "3.11")
REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="3" tests="8">
<testcase classname="tests.a" name="test_one"/>
<testcase classname="tests.a" name="test_two"><failure message="no">trace</failure></testcase>
<testcase classname="tests.a" name="test_three"><skipped type="pytest.skip" message="no GPU"/></testcase>
<testcase classname="tests.a" name="test_four"><skipped type="pytest.skip" message="no GPU"/></testcase>
<testcase classname="tests.a" name="test_five"><skipped type="pytest.xfail" message="known"/></testcase>
<testcase classname="" name="tests.b"><error message="collection failure">trace</error></testcase>
<testcase classname="tests.a" name="test_six"><properties><property name="a"/></properties></testcase>
</testsuite></testsuites>"""  # noqa: E501


def test_reports_are_counted() -> None:
    outcome = versions.read_report(HERE, REPORT, 12.4)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (3, 2, 2)
    assert outcome.reasons == Counter({"no GPU": 2})
    assert not outcome.is_good


@pytest.mark.parametrize(
    ("counts", "not_run", "is_good"),
    [
        ((98, 0, 2), "", True),
        ((97, 0, 3), "", False),
        ((99, 1, 0), "", False),
        ((0, 0, 0), "", False),
        ((100, 0, 0), "pytest died", False),
    ],
)
def test_outcomes_are_judged(counts: tuple[int, int, int], not_run: str, is_good: bool) -> None:
    assert Outcome(HERE, *counts, 1.0, not_run).is_good is is_good


def test_tables_say_what_was_not_run() -> None:
    ran = Outcome(HERE, 10, 1, 2, 3.6)
    missing = Outcome(Environment("2.15.0", "3.15"), not_run="no Python 3.15 on the PATH")
    text = versions.table([ran, missing]).splitlines()
    assert text[2] == "| 2.15.0 | 3.11 | 10 | 1 | 2 | 4 |"
    assert text[3] == "| 2.15.0 | 3.15 | not run: no Python 3.15 on the PATH | | | |"


def test_missing_interpreters_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(versions, "FOLDER", tmp_path)
    monkeypatch.setattr(versions, "ENVIRONMENTS", (Environment("2.15.0", "3.99"),))
    assert versions.main([]) == 1
    assert "| 2.15.0 | 3.99 | not run: no Python 3.99" in capsys.readouterr().out
    assert "not run: no Python 3.99" in (tmp_path / "table.md").read_text()


def test_requirements_leave_out_the_torch_that_is_tested() -> None:
    wanted = versions.requirements()
    assert any(text.startswith("pytest") for text in wanted)
    assert not any(re.match(r"torch\b", text) for text in wanted)


def test_pyproject_states_the_tested_ranges() -> None:
    (torch,) = [text for text in PROJECT["dependencies"] if text.startswith("torch>")]
    assert torch == _range("torch", TESTED_TORCH)
    assert PROJECT["requires-python"] == _range("", TESTED_PYTHON)


def test_makefile_and_readme_admit_the_same_pythons() -> None:
    """Where a newcomer begins: `make demo`, README's "Try it", and what is supported."""
    first, last = (".".join(map(str, version)) for version in TESTED_PYTHON)
    names = ("Makefile", "README.md", "docs/support.md", "docs/limits.md")
    makefile, *pages = ((ROOT / name).read_text() for name in names)
    assert (
        f"SUPPORTED = {TESTED_PYTHON[0]} <= sys.version_info[:2] <= {TESTED_PYTHON[1]}" in makefile
    )
    for text in (makefile, *pages):
        assert set(re.findall(r"3\.\d+ to 3\.\d+", text)) == {f"{first} to {last}"}
    (major, oldest), (_, newest) = TESTED_PYTHON
    for minor in range(oldest, newest + 1):
        assert f"python{major}.{minor}" in makefile
        assert f"Programming Language :: Python :: {major}.{minor}" in PROJECT["classifiers"]
    assert f"Programming Language :: Python :: {major}.{newest + 1}" not in PROJECT["classifiers"]


def _range(name: str, tested: tuple[tuple[int, int], tuple[int, int]]) -> str:
    (major, first), (_, last) = tested
    return f"{name}>={major}.{first},<{major}.{last + 1}"


def test_environments_reach_both_ends() -> None:
    torches = {tuple(map(int, e.torch.split(".")[:2])) for e in versions.ENVIRONMENTS}
    assert {TESTED_TORCH[0], TESTED_TORCH[1]} <= torches
    workflow = (ROOT / ".github/workflows/versions.yml").read_text()
    for environment in versions.ENVIRONMENTS:
        assert environment.name in workflow


@pytest.mark.parametrize(("found", "is_newer"), [((2, 15), False), ((2, 16), True), ((3, 0), True)])
def test_newer_versions_are_named(found: tuple[int, int], is_newer: bool) -> None:
    assert bool(beyond("PyTorch", found, TESTED_TORCH)) is is_newer
