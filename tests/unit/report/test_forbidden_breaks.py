"""What a break under `fullgraph=True` shows: as in PyTorch's guide to such errors, and no more."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.capture.graph_breaks import CATALOGUE
from braze.errors import GraphBreakError
from tests.architecture.tree import ROOT

SOURCE = str(ROOT / "src")


def _halves(y: torch.Tensor) -> torch.Tensor:
    z = y.sin()
    if z.sum() > 0:
        return z
    return -z


def _outer(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    y = torch.cos(x) * scale
    return _halves(y)


def _error(function: Callable[..., Any], *args: Any, **settings: Any) -> GraphBreakError:
    with pytest.raises(GraphBreakError) as caught:
        braze.compile(function, fullgraph=True, **settings)(*args)
    return caught.value


def _place(function: Callable[..., Any], below: int) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno + below}"


def test_message_is_that_of_the_guide() -> None:
    error = _error(_outer, torch.ones(10))
    inner, outer = _halves.__code__.co_firstlineno, _outer.__code__.co_firstlineno
    text = f'''{__file__}:{inner + 2}: graph break under fullgraph=True [data-dependent-branch]: \
Data-dependent branching
  Explanation: {error.reason}
  Hint: use torch.where or torch.cond, or branch on shapes or Python numbers
  Hint: This break is fundamental: no graph can hold it, so the program has to change
  More: docs/graph_breaks.md#data-dependent-branch

User code:
  File "{__file__}", line {outer + 2}, in _outer
    return _halves(y)
  File "{__file__}", line {inner + 2}, in _halves
    if z.sum() > 0:

Captured up to here:
class GraphModule(torch.nn.Module):
    def forward(self, l_x_: "f32[10][1]cpu"):
        # File: {_place(_outer, 1)} in _outer, code: y = torch.cos(x) * scale
        cos: "f32[10][1]cpu" = torch.cos(l_x_)
        mul: "f32[10][1]cpu" = cos * 2.0
        # File: {_place(_halves, 1)} in _halves, code: z = y.sin()
        sin: "f32[10][1]cpu" = mul.sin()
        # File: {_place(_halves, 2)} in _halves, code: if z.sum() > 0:
        sum_1: "f32[][]cpu" = sin.sum()
        gt: "b8[][]cpu" = sum_1 > 0
        return (mul, sin, gt)

BRAZE_VERBOSE=1 shows Braze's own frames, too.'''
    # What is alive at the break is returned, in an order that is the compiler's.
    shown = str(error)
    returned = shown[shown.index("        return (") :].partition("\n")[0]
    assert shown.replace(returned, "        return (mul, sin, gt)") == text


def _frames_of_braze(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.name for frame in frames if frame.filename.startswith(SOURCE)]


def test_traceback_has_no_frame_of_braze() -> None:
    assert _frames_of_braze(_error(_outer, torch.ones(3))) == []
    module = torch.nn.Linear(3, 3)
    module.forward = _outer  # type: ignore[method-assign,assignment]
    assert _frames_of_braze(_error(module, torch.ones(3))) == []


def test_verbose_errors_show_all_frames() -> None:
    error = _error(_outer, torch.ones(3), options={"verbose": True})
    assert len(_frames_of_braze(error)) > 3
    assert "BRAZE_VERBOSE" not in str(error)


def test_the_environment_makes_errors_verbose(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import braze, torch\n"
        "@braze.compile(fullgraph=True)\n"
        "def f(x):\n"
        "    print(x)\n"
        "    return x\n"
        "f(torch.ones(3))\n"
    )
    environment = {"PYTHONPATH": SOURCE, "BRAZE_VERBOSE": "1", "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert "Input or output" in run.stderr and "pipeline.py" in run.stderr
    assert "line 4, in f\n    print(x)\n" in run.stderr


def test_a_break_before_any_operator_has_no_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        print("begun")
        return x * 2

    error = _error(f, torch.ones(3))
    assert error.graph == "" and "Captured" not in str(error)


def test_symbolic_sizes_are_shown_by_name() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        braze.graph_break()
        return y

    error = _error(f, torch.ones(5, 3), dynamic=True)
    assert '"f32[s0, s1][s1, 1]cpu"' in error.graph and "Hint: The program asks" in str(error)


def test_a_graph_that_no_python_code_says_is_shown_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(x.reshape(-1, 2))
        print(z.dtype)
        return z

    error = _error(f, torch.ones(4, 4), dynamic=True)
    assert "aten.view_as_complex.default" in error.graph and error.code == "input-output"
    braze.set_logs("graph_code")
    braze.compile(f, dynamic=True)(torch.ones(4, 4))
    braze.set_logs()
    # For the log the torch-level calls are kept, which say it.
    assert "= torch.view_as_complex(reshape)" in capsys.readouterr().err


def test_explain_gives_the_user_stack() -> None:
    (note,) = braze.explain(_outer)(torch.ones(3)).break_reasons
    names = [(frame.name, frame.line) for frame in note.user_stack]
    assert names == [("_outer", "return _halves(y)"), ("_halves", "if z.sum() > 0:")]


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_break_has_a_title(code: str) -> None:
    kind = CATALOGUE[code]
    assert kind.title[:1].isupper() and "{" not in kind.title and len(kind.title) < 45
    assert sum(other.title == kind.title for other in CATALOGUE.values()) == 1
