"""Each how-to is executed: its edits on a copy of the source, and its programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.docs.how_to import Copy, Step, steps_of

PAGES = sorted((ROOT / "docs" / "how_to").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_how_to_does_what_it_says(page: Path, tmp_path: Path) -> None:
    steps = steps_of(page.read_text())
    assert page.read_text().count("```python\n") == sum(s.what != "Prints" for s in steps)
    assert sum(step.what == "Run" for step in steps) >= 1
    copy = Copy(tmp_path)
    for step in steps:
        copy.do(step)


def test_a_wrong_page_is_noticed(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.do(Step("Run", "", "import braze; print(braze.__file__)\n"))
    copy.do(Step("Prints", "", f"{tmp_path}/src/braze/__init__.py\n"))  # the copy, not the source
    for wrong in (
        Step("Prints", "", "something else\n"),
        Step("Run", "", "1 / 0\n"),
        Step("In", "`src/braze/frozen.py`", "no such line\n"),
        Step("Insert into", "`src/braze/frozen.py`, behind `no such line`", "pass\n"),
        Step("New file", "`src/braze/frozen.py`", "pass\n"),
    ):
        with pytest.raises(AssertionError):
            copy.do(wrong)
