"""What pages show is true: programs run, tables and indices are current, links have targets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import braze
from tests.architecture.tree import ROOT
from tests.conftest import check_golden
from tests.docs.tables import API, DOCS, RETURNED, SHOWN_BY, TABLES, heading_of, with_tables

PAGES = sorted(DOCS.rglob("*.md"))
TABLED = [page for page in PAGES if "<!-- table: " in page.read_text()]


@pytest.mark.parametrize("page", TABLED, ids=lambda page: str(page.relative_to(DOCS)))
def test_tables_are_current(page: Path, bless: bool) -> None:
    check_golden(page, with_tables(page.read_text()), bless)


def test_every_table_is_on_a_page() -> None:
    text = "".join(page.read_text() for page in TABLED)
    assert not [name for name in TABLES if f"<!-- table: {name} -->" not in text]


def test_the_reference_has_every_public_name() -> None:
    shown = {name for names in API.values() for name in names}
    assert shown | {*SHOWN_BY} == {*braze.__all__}
    text = (DOCS / "reference.md").read_text()
    missing = [name for name in braze.exc.__all__ if not re.search(rf"\b{name}\b", text)]
    assert not missing, missing
    assert all(f"::: {name}\n" in text for name in RETURNED)


def test_every_public_name_has_a_docstring() -> None:
    values = {name: getattr(braze, name) for name in braze.__all__}
    values |= {name: getattr(braze.exc, name) for name in braze.exc.__all__}
    values["config"] = type(braze.config)
    assert not [name for name, value in values.items() if not (value.__doc__ or "").strip()]


def test_every_decision_has_a_date_and_a_subject() -> None:
    decisions = [path for path in (DOCS / "decisions").glob("*.md") if path.name != "index.md"]
    assert len(decisions) > 90
    for path in decisions:
        title, _, _ = heading_of(path)
        assert path.stem == re.sub("[^a-z0-9]+", "-", title.lower()).strip("-"), path.name


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site and code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"[ \-]+", "-", heading) for heading in plain}


def test_anchors_of_links_exist() -> None:
    wrong = []
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for path, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text()):
            target = page.parent / path if path else page
            if target.suffix == ".md" and anchor not in _anchors(target):
                wrong.append(f"{page.name}: {path}#{anchor}")
    assert not wrong, wrong


def test_every_page_is_in_the_navigation() -> None:
    listed = {*re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text())}
    names = {str(page.relative_to(DOCS)) for page in PAGES if page.parent.name != "decisions"}
    assert names == listed - {"decisions/index.md"}


def test_first_steps_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "first_steps.md").read_text(), re.S)
    assert len(blocks) >= 6
    program = tmp_path / "first_steps.py"
    program.write_text("\n\n".join(blocks))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "error", str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "data-dependent-branch" in ran.stdout


def test_the_list_for_language_models_has_links_that_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text())
    assert len(links) > 20
    assert not [link for link in links if not (ROOT / link).exists()]
    guides = {f"docs/how_to/{page.name}" for page in (DOCS / "how_to").glob("*.md")}
    assert guides <= {*links}


def test_templates_and_workflows_are_valid() -> None:
    yaml = pytest.importorskip("yaml")
    files = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    assert len(files) >= 10
    targets = {*re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)}
    for file in files:
        content = yaml.safe_load(file.read_text())
        assert isinstance(content, dict), file
        used = {*re.findall(r"run: make ([\w-]+)", file.read_text())}
        assert used <= targets, f"{file}: {used - targets}"
        if file.parent.name == "workflows":
            # YAML reads the key `on` as a truth.
            assert {"name", "jobs"} <= {*content} and (True in content or "on" in content), file
