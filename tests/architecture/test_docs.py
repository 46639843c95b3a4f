"""Generated pages are those that the tables generate now: `make docs` rewrites them."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from braze.capture.graph_breaks import CATALOGUE
from braze.options import Options
from braze.report.catalogue import render_catalogue
from tests.architecture.tree import ROOT, listed, source_files, tree_paths
from tests.conftest import check_golden


def test_the_page_of_graph_breaks_is_current(bless: bool) -> None:
    check_golden(ROOT / "docs" / "graph_breaks.md", render_catalogue(CATALOGUE), bless)


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_break_has_a_message_and_a_hint(code: str) -> None:
    reason = CATALOGUE[code]
    assert "{detail}" in reason.template
    assert len(reason.hint) > 10
    assert re.fullmatch("[a-z]+(-[a-z]+)*", code)


def test_every_break_of_the_catalogue_is_used() -> None:
    layers = ("capture", "runtime", "pipeline")
    texts = [f.text for f in source_files() if f.layer in layers]
    unused = [code for code in CATALOGUE if sum(text.count(f'"{code}"') for text in texts) < 2]
    assert not unused, f"nothing breaks with these: remove them from the table:{listed(unused)}"


def test_every_option_has_a_reader() -> None:
    texts = [f.text for f in source_files() if f.layer != "options"]
    names = sorted(field.name for field in fields(Options))
    unread = [name for name in names if not any(f".{name}" in text for text in texts)]
    assert not unread, f"an option without a meaning is a lie:{listed(unread)}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in (path for path in tree_paths() if path.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
