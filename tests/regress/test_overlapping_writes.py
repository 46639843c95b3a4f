"""Writes to views whose elements share memory: eager's kernels write them in turn, so such a write
is left to eager. Programs are made of every view and every write, in chains."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

import braze

_VIEWS = (
    *("{}.unfold(0, 2, 1)", "{}.unfold(-1, 2, 1)", "{}.unfold(0, 2, 2)", "{}.t()"),
    *("{}.as_strided((3, 3), (1, 1))", "{}.as_strided((2, 2), (2, 3))", "{}[0]", "{}[1:]"),
    *("{}.expand(2, *{}.shape)", "{}.unsqueeze(0)", "{}.diagonal()", "{}[..., ::2]"),
    *("{}.view(-1)", "{}.select(-1, 1)", "{}.as_strided((3, 2), (2, 3))"),
)
_WRITES = (
    *("{}.add_(1)", "{}.copy_({} * 2)", "{}.fill_(5)", "{}.zero_()", "{}[0] = 7", "{}.sigmoid_()"),
    *("{}[..., 0] += 1", "{}.masked_fill_({} > 2, 9)", "torch.add({}.clone(), 1, out={})"),
    *("{}.index_fill_(0, torch.tensor([0]), 3.0)", "{}.addcmul_({}, {})", "{}.cumsum_(0)"),
    *("{}.index_add_(0, torch.tensor([0]), torch.ones_like({}[:1]))", "{}.t_().mul_(2)"),
)


def _program(seed: int) -> Any:
    rng = random.Random(seed)
    lines = ["y = x.clone()" if rng.random() < 0.7 else "y = x", "v0 = y"]
    count = rng.choice((1, 2, 2, 3))
    for number in range(count):
        lines.append(f"v{number + 1} = " + rng.choice(_VIEWS).replace("{}", f"v{number}"))
    lines.append(rng.choice(_WRITES).replace("{}", f"v{count}"))
    lines.append(f"return y, v{count} * 1, v{rng.randint(0, count)}")
    space: dict[str, Any] = {"torch": torch}
    exec("def program(x):\n" + "".join(f"    {line}\n" for line in lines), space)
    return space["program"]


def _outcome(program: Any) -> Any:
    x = torch.arange(12.0).reshape(3, 4)
    try:
        found = program(x)
    except Exception as error:
        return type(error).__name__, str(error)[:60]
    return [(one.tolist(), one.stride()) for one in (*found, x)]


@pytest.mark.parametrize(
    ("backend", "dynamic", "every"),
    [("aot_eager", False, 1), ("aot_eager", True, 2), ("braze", False, 3)],
)
def test_chains_of_views_are_written_as_in_eager(backend: str, dynamic: bool, every: int) -> None:
    wrote = 0
    for seed in range(0, 240, every):
        program = _program(seed)
        expected = _outcome(program)
        compiled = braze.compile(program, backend=backend, dynamic=dynamic)
        assert [_outcome(compiled), _outcome(compiled)] == [expected, expected], seed
        wrote += type(expected) is list
    assert wrote >= 80 // every


@pytest.mark.parametrize("write", ["fill_(7)", "zero_()", "fill_(torch.tensor(2.0))"])
@pytest.mark.parametrize(
    "part",
    [
        *("unfold(0, 4, 2)[1]", "unfold(0, 4, 2).narrow(0, 1, 1)", "unfold(0, 3, 1).diagonal()"),
        *("as_strided((3, 4), (2, 1))[1]", "as_strided((3, 4), (2, 1))[:, ::2]"),
        *("unfold(0, 4, 2)[1].as_strided((2, 2), (1, 1))", "unfold(0, 4, 4)[1]"),
    ],
)
def test_a_part_of_windows_that_overlap_is_filled(part: str, write: str) -> None:
    """The other windows' elements are not written back over it."""
    space: dict[str, Any] = {"torch": torch}
    exec(f"def program(x):\n    y = x * 2\n    y.{part}.{write}\n    return y, y + 1", space)
    x = torch.arange(9.0)
    for one, other in zip(braze.compile(space["program"])(x), space["program"](x), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("write", ["add_(1)", "fill_(2)", "zero_()"])
def test_only_the_order_of_writes_breaks(write: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def program(x):\n    x.unfold(0, 2, 1).{write}\n    return x + 1", space)
    program = braze.compile(space["program"], backend="aot_eager")
    expected = torch.arange(5.0)
    assert torch.equal(program(torch.arange(5.0)), space["program"](expected))
    breaks = braze.explain(space["program"])(torch.arange(5.0)).break_count
    assert breaks == (write == "add_(1)")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_windows_that_do_not_overlap_stay_in_the_graph(step: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.unfold(0, 2, step).add_(1)
        return x * 2

    for dynamic, size in itertools.product((False, True), (6, 8)):
        x, y = torch.arange(float(size)), torch.arange(float(size))
        compiled = braze.compile(program, dynamic=dynamic, fullgraph=step > 1, backend="aot_eager")
        assert torch.equal(compiled(x), program(y)) and torch.equal(x, y)
