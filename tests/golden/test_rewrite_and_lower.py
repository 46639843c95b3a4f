"""Golden files of graph passes and of lowering: a graph, `---`, what it becomes.

`pytest --bless` rewrites the second part; look at the diff before it is committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from braze.ir.graphs.print_graph import parse_graph, print_graph
from braze.ir.kernels.print_loops import print_loops
from braze.ir.kernels.verify_loops import verify_loops
from braze.lower import lower
from braze.options import Options
from braze.rewrite.passes import PASSES

HERE = Path(__file__).parent
SEPARATOR = "---\n"


def _check(path: Path, program: str, actual: str, bless: bool) -> None:
    expected = path.read_text().partition(SEPARATOR)[2]
    if bless:
        path.write_text(f"{program}{SEPARATOR}{actual}")
    else:
        assert actual == expected, f"{path.name} differs: run pytest --bless and look at the diff"


@pytest.mark.parametrize("path", sorted((HERE / "lower").glob("*.txt")), ids=lambda p: p.stem)
def test_lower(path: Path, bless: bool) -> None:
    program = path.read_text().partition(SEPARATOR)[0]
    loops = lower(parse_graph(program), Options())
    verify_loops(loops)
    _check(path, program, print_loops(loops), bless)


@pytest.mark.parametrize("graph_pass", PASSES, ids=lambda graph_pass: graph_pass.name)
def test_pass(graph_pass, bless: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    # What fuses to a convolution depends on the machine's vectors.
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    path = HERE / "rewrite" / f"{graph_pass.name}.txt"
    program = path.read_text().partition(SEPARATOR)[0]
    _check(path, program, print_graph(graph_pass.run(parse_graph(program), Options())), bless)
