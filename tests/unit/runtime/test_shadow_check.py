"""The option `check`: a share of calls is compared with eager, and a wrong graph is found out."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze import pipeline
from braze.errors import BrazeWarning, InvalidOption
from braze.runtime.dispatch.shadow_check import Difference, ShadowCheck, copies_of, error_of
from tests.architecture.tree import ROOT

X = torch.linspace(-2, 2, 12).reshape(4, 3)


@pytest.fixture
def _plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Kernels whose first result is wrong by a hundredth, and where their calls are counted."""
    monkeypatch.chdir(tmp_path)
    right, calls = pipeline.compile_graph, [0]

    def compile_wrongly(*arguments: Any) -> Callable[..., Any]:
        run = right(*arguments)

        def run_wrongly(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            calls[0] += 1
            results = list(run(inputs))
            return [results[0] + 0.01, *results[1:]]

        return run_wrongly

    monkeypatch.setattr(pipeline, "compile_graph", compile_wrongly)
    return calls


def _f(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2).softmax(-1)


def test_a_difference_is_warned_of_and_eager_runs_from_there(
    _plant: list[int], tmp_path: Path
) -> None:
    compiled = braze.compile(_f, options={"check": 1.0})
    place = f"{__file__}:{_f.__code__.co_firstlineno}"
    said = rf"{re.escape(place)}: result 0 of a graph of _f differs from eager's by .* eagerly"
    with pytest.warns(BrazeWarning, match=said) as caught:
        torch.testing.assert_close(compiled(X), _f(X))
    assert len(caught) == 1 and _plant == [1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(X + 1), _f(X + 1))
    assert _plant == [1]
    assert any("differs from eager's" in text for text in braze.trace.JOURNAL.fallbacks())
    (script,) = (tmp_path / "braze_repros").glob("differs_*.py")
    assert str(script) in str(caught[0].message)


def test_the_script_stands_alone(_plant: list[int], tmp_path: Path) -> None:
    """It says the same where the fault is, and nothing where it is not."""
    with pytest.warns(BrazeWarning, match="differs"):
        braze.compile(_f, options={"check": 1.0})(X)
    (script,) = (tmp_path / "braze_repros").glob("differs_*.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.fullmatch(r"0: \S+e-\d+ of the largest value\n1: 0\.00e\+00 .*\n", done.stdout)
    with pytest.raises(SystemExit) as ended:
        exec(compile(script.read_text(), str(script), "exec"), {"__name__": "__main__"})
    assert ended.value.code is True


def test_one_call_in_so_many_is_checked() -> None:
    ran: list[str] = []

    def run(inputs: Sequence[Any]) -> list[Any]:
        ran.append("kernels")
        return [inputs[0] + 1]

    def eager(inputs: Sequence[Any]) -> list[Any]:
        ran.append("eager")
        return [inputs[0] + 1]

    checked = ShadowCheck(run, eager, 3, (), lambda difference: None)
    for _ in range(4):
        checked([X])
    once = ["eager", "kernels", "kernels"]
    assert ran == [*once, "kernels", "kernels", *once]


def test_writes_and_random_numbers_are_those_of_one_call() -> None:
    def f(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.add_(1)
        return torch.nn.functional.dropout(x, 0.5) + state.sum()

    compiled = braze.compile(f, options={"check": 1.0}, fullgraph=True)
    mine, theirs = torch.zeros(3), torch.zeros(3)
    for _ in range(3):
        torch.manual_seed(3)
        expected = f(X, theirs)
        after = torch.get_rng_state()
        torch.manual_seed(3)
        torch.testing.assert_close(compiled(X, mine), expected)
        assert torch.equal(mine, theirs) and torch.equal(torch.get_rng_state(), after)
    assert not braze.status()[f.__qualname__].eager_kernels


def test_training_is_checked_forward_and_backward(_plant: list[int]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    compiled = braze.compile(model, options={"check": 0.5})
    with pytest.warns(BrazeWarning) as caught:
        compiled(X).square().sum().backward()
    assert len(caught) == 2 and "(backward)" in str(caught[1].message)
    mine = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(X).square().sum().backward()
    torch.testing.assert_close(mine, [p.grad for p in model.parameters()])


def test_right_kernels_are_not_suspected() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.GELU(), torch.nn.BatchNorm1d(8))
    compiled = braze.compile(model, options={"check": 1.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (4, 4, 6):
            compiled(torch.randn(rows, 3)).sum().backward()
        compiled.bfloat16()
        compiled(torch.randn(4, 3, dtype=torch.bfloat16))


def test_copies_share_memory_where_inputs_do() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    column, expanded, other = base[:, 1], base[:1].expand(5, 4), torch.zeros(2)
    copies = copies_of([base, column, expanded, other, 7])
    assert [c.stride() for c in copies[:4]] == [(4, 1), (4,), (0, 1), (1,)]
    copies[0].zero_()
    assert not copies[1].any() and not copies[2].any() and base.any() and copies[4] == 7


@pytest.mark.parametrize(
    ("mine", "theirs", "is_wrong"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], False),
        ([1.0, float("inf")], [1.0, float("inf")], False),
        ([1.0, 2.0], [1.0, float("nan")], True),
        ([1.0, float("inf")], [1.0, float("-inf")], True),
        ([1.0, 1.00001], [1.0, 1.0], False),
        ([1.0, 1.001], [1.0, 1.0], True),
        ([1, 2], [1, 3], True),
        ([True, False], [True, False], False),
    ],
)
def test_what_counts_as_a_difference(mine: Any, theirs: Any, is_wrong: bool) -> None:
    found: list[Difference] = []
    values = torch.tensor(mine), torch.tensor(theirs)
    check = ShadowCheck(lambda _: [values[0]], lambda _: [values[1]], 1, (), found.append)
    (result,) = check([])
    assert bool(found) is is_wrong and result is values[int(is_wrong)]


def test_a_converted_value_has_the_roundings_of_its_type() -> None:
    """`float(x.sum())` is a float64 that holds a float32."""
    one = torch.tensor([1.0], dtype=torch.float32)
    above = torch.nextafter(one, 2 * one)
    assert not error_of(above.double(), one.double(), 0.0)
    assert error_of(above.double() + 1e-12, one.double(), 0.0)
    assert error_of(one.double() * 1.001, one.double(), 0.0)
    assert not error_of(above.to(torch.complex128), one.to(torch.complex128), 0.0)


def test_what_holds_memory_as_it_was_is_not_judged() -> None:
    """The workspace that an LSTM's forward keeps for its backward."""
    lstm = torch.nn.LSTM(4, 4)
    x = torch.randn(3, 2, 4)
    assert braze.bisect(lstm, scripts=False)(x).suspect is None
    compiled = braze.compile(lstm, options={"check": 1.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error", BrazeWarning)
        torch.testing.assert_close(compiled(x)[0], lstm(x)[0])


def test_off_it_wraps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "ShadowCheck", None)
    assert torch.equal(braze.compile(_f)(X), braze.compile(_f)(X))
    with pytest.raises(InvalidOption, match="at most 1"):
        braze.compile(_f, options={"check": 2.0})
