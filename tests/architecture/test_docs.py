"""Generated pages are those that the tables generate now: `make docs` rewrites them."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from braze.capture.break_reasons import CATALOGUE
from braze.options import Options
from braze.report.catalogue import render_catalogue
from tests.architecture.tree import ROOT, source_files, tree_paths
from tests.conftest import check_golden

# option -> why no stage reads it.
UNREAD_OPTIONS = {"mode": "the modes differ in CUDA graphs and in tuning; on a CPU all are one"}


def test_the_page_of_graph_breaks_is_current(bless: bool) -> None:
    check_golden(ROOT / "docs" / "graph_breaks.md", render_catalogue(CATALOGUE), bless)


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_break_has_a_message_and_a_hint(code: str) -> None:
    reason = CATALOGUE[code]
    assert "{detail}" in reason.template
    assert len(reason.hint) > 10
    assert re.fullmatch("[a-z]+(-[a-z]+)*", code)


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_break_of_the_catalogue_is_used(code: str) -> None:
    capture = [file for file in source_files() if file.layer in ("capture", "runtime", "pipeline")]
    users = [f for f in capture if f.path.name != "break_reasons.py" and f'"{code}"' in f.text]
    assert users, f"nothing breaks with {code!r}: remove it from the table"


@pytest.mark.parametrize(
    "name", [field.name for field in fields(Options) if field.name not in UNREAD_OPTIONS]
)
def test_every_option_has_a_reader(name: str) -> None:
    readers = [f for f in source_files() if f.layer != "options" and f".{name}" in f.text]
    assert readers, f"no stage reads options.{name}: an option without a meaning is a lie"


def test_links_between_pages_lead_somewhere() -> None:
    for page in (path for path in tree_paths() if path.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
