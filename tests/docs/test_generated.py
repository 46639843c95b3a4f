"""Pages, pictures and tables that are generated are those that the source gives now."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.architecture.tree import ROOT
from tests.conftest import check_golden
from tests.docs.compiled_programs import logged_programs, with_programs
from tests.docs.drawing import draw
from tests.docs.pictures import PICTURES

STAGES = sorted((ROOT / "docs" / "how_it_works").glob("*.md"))
# The pages show what one version of PyTorch records: others decompose some calls differently.
SHOWN_VERSION = "2.13"

shown_version = pytest.mark.skipif(
    not torch.__version__.startswith(SHOWN_VERSION),
    reason="the pages show another PyTorch's graphs",
)


@shown_version
@pytest.mark.parametrize("page", STAGES, ids=lambda page: page.stem)
def test_a_page_shows_current_programs(page: Path, bless: bool) -> None:
    check_golden(page, with_programs(page.read_text()), bless)


@shown_version
def test_the_training_step_is_one_graph_of_two_kernels() -> None:
    logged = logged_programs("step")
    assert [len(logged[name]) for name in ("graph", "loops", "schedule")] == [1, 1, 1]
    assert logged["graph_breaks"] == logged["eager_calls"] == []
    assert logged["schedule"][0].count("\nkernel ") == 2
    assert logged["printed"][0].startswith("tensor(64.")


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_current(name: str, bless: bool) -> None:
    check_golden(ROOT / "docs" / "pictures" / f"{name}.svg", draw(PICTURES[name]), bless)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_fits_its_boxes(name: str) -> None:
    for box in PICTURES[name].boxes:
        assert len(box.title) <= 21, box.title
        assert all(len(line) <= 26 for line in box.text), box.text


def test_every_picture_is_on_a_page() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    assert not [name for name in PICTURES if f"pictures/{name}.svg" not in pages]
