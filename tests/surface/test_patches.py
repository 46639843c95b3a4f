"""A part of the sweep over what a program replaces; `python -m tests.surface.patches` asks all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from tests.surface.patches import patches, replaced

ROOT = Path(__file__).parents[2]
PART = os.environ.get("BRAZE_SURFACE_PART", "5/60")


@pytest.mark.parametrize("chosen", [("--part", PART), ("--each-way",)], ids=["part", "each-way"])
def test_replacements_are_seen(chosen: tuple[str, ...]) -> None:
    """In a process of its own. What torch imports meanwhile keeps what it finds, and a class that
    had a `__getitem__` for a while is a sequence to C code ever after."""
    command = [sys.executable, "-m", "tests.surface.patches", *chosen]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    asked, graphs, differences = map(int, re.findall(r"\d+", ended.stdout.splitlines()[-1]))
    assert not differences, ended.stdout
    assert asked > 100
    assert graphs > 50


def test_the_text_of_a_graph_calls_the_original() -> None:
    """A program's own method calls the one that it replaced, which the graph has by its name."""

    def f(x: torch.Tensor) -> Any:
        return x.acos(), torch.relu(x)

    x = torch.linspace(-1, 1, 3)
    with replaced(torch.Tensor, "acos"), replaced(torch, "relu"):
        (word, first), (_, second) = braze.compile(f, backend="eager", fullgraph=True)(x)
    assert word == "replaced"
    torch.testing.assert_close((first, second), f(x))


def test_replacements_are_many() -> None:
    assert len(list(patches())) > 700
