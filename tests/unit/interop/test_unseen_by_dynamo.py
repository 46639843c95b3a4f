"""PyTorch's compiler, where it watches a thread's frames, is given none of Braze's own."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import braze
from tests.recorded import recorded

_FRAMES: Any = torch._C._dynamo.eval_frame
_SOURCE = Path(braze.__file__).parent


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 3 * ctx.saved_tensors[0] ** 2


def _train(backend: str) -> None:
    model = _net()
    compiled = braze.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(3, 4, requires_grad=True)
    for _ in range(2):
        compiled(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.autograd.grad(compiled(x).sum(), x, create_graph=True)[0].sum().backward()


def _train_in_place(backend: str) -> None:
    model = braze.compile_in_place(_net(), backend=backend)
    model(torch.rand(3, 4)).sum().backward()


def _differentiate_results_apart(backend: str) -> None:
    compiled = braze.compile(lambda x: (x * 2, x.sin(), x + 1), backend=backend)
    x = torch.rand(3, requires_grad=True)
    first, second, third = compiled(x)
    (first.sum() + second.sum()).backward(retain_graph=True)
    torch.autograd.grad(third.sum(), x)


def _apply_a_function(backend: str) -> None:
    compiled = braze.compile(lambda x: _Cube.apply(x) * 2, backend=backend)
    compiled(torch.rand(3, requires_grad=True)).sum().backward()


def _break_and_branch(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        print(end="")
        return x.sin() if x.sum() > 0 else x

    braze.compile(program, backend=backend)(torch.ones(3, requires_grad=True)).sum().backward()


_PROGRAMS = (
    *(_train, _train_in_place, _differentiate_results_apart, _apply_a_function),
    _break_and_branch,
)


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("program", _PROGRAMS, ids=lambda program: program.__name__)
def test_no_frame_of_braze_is_shown(program: Any, backend: str) -> None:
    braze.compile(lambda x: x.sin())(torch.ones(2))  # modules are imported, tools are found
    shown: list[str] = []
    left = torch._dynamo.types.ConvertFrameReturn

    def watch(frame: Any, *rest: Any) -> Any:
        code = frame.f_code
        if code.co_filename.startswith((str(_SOURCE), "<braze", "<fresh")):
            shown.append(code.co_qualname)
        return left()

    with recorded() as journal:
        before = _FRAMES.set_eval_frame(watch)
        try:
            program(backend)
            gc.collect()
            eval(compile("(lambda: 1)()", "<fresh>", "eval"))
        finally:
            _FRAMES.set_eval_frame(before)
    assert shown == ["<module>", "<lambda>"]  # those of `<fresh>`: it did watch
    assert any(record.outcome == "graph" for record in journal.records())


_TYPED = "AutogradFunction"


def test_every_autograd_function_is_unseen() -> None:
    missing = [
        f"{path.relative_to(_SOURCE)}: {node.name}"
        for path in _SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and not {"torch.autograd.Function", _TYPED}.isdisjoint(map(ast.unparse, node.bases))
        and node.name != _TYPED  # there for its types alone
        and "unseen_by_other_compilers" not in map(ast.unparse, node.decorator_list)
    ]
    assert not missing


def _scaled_steps(compiles: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        return loss.detach()

    run = torch.compile(step, backend="braze") if compiles else step
    return [run(torch.ones(2, 4)) for _ in range(3)]


def check_training_step_with_a_scaler() -> None:
    """The backward is compiled by Braze, and the steps are eager's."""
    wanted = _scaled_steps(False)
    with recorded() as journal:
        got = _scaled_steps(True)
    records = journal.records()
    assert any(record.outcome == "backward" for record in records), [
        (record.function, record.outcome, record.ops, record.fallbacks) for record in records
    ]
    assert not [record.fallbacks for record in records if record.fallbacks]
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=1e-3)


def test_training_step_with_a_scaler() -> None:
    """Breaks at the scaler, and its backward is compiled while PyTorch watches. In a process of its
    own: what PyTorch's compiler keeps of other tests' frames decides what it looks at."""
    text = f"import {__name__} as here; here.check_training_step_with_a_scaler()"
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
