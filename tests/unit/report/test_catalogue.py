"""The page of graph breaks."""

from __future__ import annotations

from dataclasses import dataclass

from braze.report.catalogue import render_catalogue


@dataclass(frozen=True)
class Reason:
    template: str
    hint: str
    example: str = ""
    title: str = "A title"
    prospect: str = "never"


def test_one_section_for_each_code() -> None:
    page = render_catalogue(
        {
            "a-branch": Reason("a branch: {detail}", "use where"),
            "a-print": Reason("it prints {detail}", "do not"),
        }
    )
    assert page.startswith("# Graph breaks\n")
    assert "- [`a-branch`](#a-branch)\n- [`a-print`](#a-print)\n" in page
    section = "## a-branch\n\n**A title.** Never.\n\n**Message**: A branch: ...\n\n"
    assert f"{section}**What to do**: Use where.\n" in page
    assert page.endswith("\n") and not page.endswith("\n\n")


def test_an_example_stands_between_message_and_fix() -> None:
    page = render_catalogue({"a-print": Reason("it prints {detail}", "do not", "print(1)")})
    message, fix = "**Message**: It prints ...\n", "**What to do**: Do not.\n"
    assert f"{message}\n```python\nprint(1)\n```\n\n{fix}" in page
