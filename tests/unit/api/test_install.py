"""`braze.install`: libraries that call `torch.compile` themselves get Braze."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.exc import GraphBreakError, InvalidOption
from braze.trace import Journal

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def plain(x: Any) -> Any:
    return torch.relu(x) * 2 + x.sin()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.GELU())


def _decorated() -> Any:
    @torch.compile
    def function(x: Any) -> Any:
        return plain(x)

    return function


def _decorated_with_arguments() -> Any:
    @torch.compile(fullgraph=True, dynamic=True)
    def function(x: Any) -> Any:
        return plain(x)

    return function


def _in_place() -> Any:
    made = model()
    made.compile(fullgraph=True, mode="default")
    return made


WAYS: dict[str, Callable[[], Any]] = {
    "function": lambda: torch.compile(plain),
    "by name": lambda: torch.compile(plain, backend="inductor"),
    "options": lambda: torch.compile(plain, options={"max_autotune": True}),
    "named": lambda: torch.compile(plain, isolate_recompiles=True),
    "decorator": _decorated,
    "decorator with arguments": _decorated_with_arguments,
    "method": lambda: torch.compile(model().forward),
    "module": lambda: torch.compile(model()),
    "module in place": _in_place,
}


@pytest.mark.parametrize("way", WAYS)
def test_what_calls_torch_compile_gets_braze(way: str, journal: Journal) -> None:
    before = torch.compile
    with braze.install():
        compiled = WAYS[way]()
    assert torch.compile is before
    wanted = plain if way in list(WAYS)[:6] else model()
    for _ in range(2):  # the second call after the block
        torch.testing.assert_close(compiled(X), wanted(X))
    (record,) = [r for r in journal.records() if r.outcome == "graph"]
    assert record.counters["kernels"] >= 1
    if isinstance(compiled, nn.Module):
        assert list(compiled.state_dict()) == list(wanted.state_dict())


def test_other_backends_are_torch_s(journal: Journal) -> None:
    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        given.append(graph)
        return graph.forward

    given: list[Any] = []
    with braze.install():
        compiled = torch.compile(plain, backend=backend)
        torch.testing.assert_close(compiled(X), plain(X))
    torch._dynamo.reset()
    assert len(given) == 1 and not journal.records()


def test_errors_are_brazes() -> None:
    with braze.install():
        with pytest.raises(InvalidOption, match="reduce-overhead"):
            torch.compile(plain, mode="reduce")
        with pytest.raises(GraphBreakError):
            torch.compile(lambda x: (braze.graph_break(), x)[1], fullgraph=True)(X)


def test_installed_for_good_and_within(journal: Journal) -> None:
    before = torch.compile
    installed = braze.install()
    try:
        with braze.install():
            torch.compile(plain)(X)
        assert torch.compile is not before
        torch.compile(lambda x: plain(x) + 1)(X)
    finally:
        installed.uninstall()
        installed.uninstall()
    assert torch.compile is before and len(journal.records()) == 2
    with installed:
        torch.compile(lambda x: plain(x) + 2)(X)
    assert torch.compile is before and len(journal.records()) == 3


def test_stances_and_reset_are_of_both(journal: Journal) -> None:
    runs = []

    def counting(x: Any) -> Any:
        if not torch.compiler.is_compiling():
            runs.append("eagerly")
        return plain(x)

    theirs = torch.compiler.set_stance, torch.compiler.reset
    with braze.install():
        compiled = torch.compile(counting)
        compiled(X)
        with torch.compiler.set_stance("force_eager"):
            torch.testing.assert_close(compiled(X), plain(X))
        assert runs == ["eagerly"]

        @torch.compiler.set_stance("fail_on_recompile")
        def strictly(x: Any) -> Any:
            return compiled(x)

        compiled(X)
        strictly(X)
        assert len(journal.records()) == 1 and runs == ["eagerly"]
        torch.compiler.reset()
        assert not journal.records()
        with pytest.raises(braze.exc.CompileForbidden):
            strictly(X)
        compiled(X)
        assert len(journal.records()) == 1
    assert (torch.compiler.set_stance, torch.compiler.reset) == theirs


def test_undone_in_place() -> None:
    made = model()
    with braze.install():
        made.compile()
        made.compile(disable=True)
    torch.testing.assert_close(made(X), model()(X))
    assert not [row for row in braze.status() if row.name == "Sequential" and row.calls]
