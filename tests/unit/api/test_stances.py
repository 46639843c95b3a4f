"""`braze.set_stance`: what compiled functions do for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.errors import CompileForbidden, UserError
from braze.runtime.dispatch.stance import STANCES
from braze.trace import Journal

X = torch.tensor([0.5, -1.0, 2.0])


def where(x: torch.Tensor, n: int = 1) -> torch.Tensor:
    """x + n, and 10 more where it runs eagerly."""
    return x + n if braze.is_compiling() else x + n + 10


def broken(x: torch.Tensor) -> torch.Tensor:
    y = where(x)
    braze.graph_break()
    return where(y)


class Layer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return where(x)


# What is compiled, and how many calls of `where` a call makes.
TARGETS: dict[str, tuple[Callable[[], Any], int]] = {
    "function": (lambda: where, 1),
    "break": (lambda: broken, 2),
    "module": (Layer, 1),
}


@pytest.mark.parametrize("name", TARGETS)
def test_each_stance_serves_compiled_calls(name: str) -> None:
    make, calls = TARGETS[name]
    compiled = braze.compile(make(), backend="eager")
    captured, eager = X + calls, X + 11 * calls
    expected = {"force_eager": eager}
    for _ in range(24):  # until the way in C++ is taken
        torch.testing.assert_close(compiled(X), captured)
    for stance in STANCES:
        with braze.set_stance(stance):
            torch.testing.assert_close(compiled(X), expected.get(stance, captured), msg=stance)
        torch.testing.assert_close(compiled(X), captured, msg=stance)


@pytest.mark.parametrize("name", TARGETS)
def test_each_stance_meets_new_inputs(name: str) -> None:
    make, calls = TARGETS[name]
    for stance in STANCES:
        braze.reset()  # or there are entries for new inputs, of the stance before
        compiled = braze.compile(make(), backend="eager", dynamic=False)
        compiled(X)
        others = X.double()
        with braze.set_stance(stance):
            if stance == "fail_on_recompile":
                with pytest.raises(CompileForbidden, match=stance):
                    compiled(others)
                continue
            compiles = stance == "default" or stance.endswith("then_compile")
            added = calls if compiles else 11 * calls
            torch.testing.assert_close(compiled(others), others + added, msg=stance)
        torch.testing.assert_close(compiled(others), others + calls, msg=stance)


def test_stance_reaches_callables_made_later() -> None:
    with braze.set_stance("force_eager"):
        compiled = braze.compile(where, backend="eager")
        torch.testing.assert_close(compiled(X), X + 11)
    torch.testing.assert_close(compiled(X), X + 1)


def test_stance_is_set_at_once_and_nested() -> None:
    compiled = braze.compile(where, backend="eager")
    try:
        braze.set_stance("force_eager")
        torch.testing.assert_close(compiled(X), X + 11)
        with braze.set_stance("default"):
            torch.testing.assert_close(compiled(X), X + 1)
        torch.testing.assert_close(compiled(X), X + 11)
    finally:
        braze.set_stance("default")
    torch.testing.assert_close(compiled(X), X + 1)


def test_decorated_function_sets_its_stance_per_call() -> None:
    compiled = braze.compile(where, backend="eager")

    @braze.set_stance("force_eager")
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return compiled(x)

    torch.testing.assert_close(compiled(X), X + 1)
    torch.testing.assert_close(decorated(X), X + 11)
    outer = braze.compile(lambda x: decorated(x) + where(x), backend="eager")
    torch.testing.assert_close(outer(X), (X + 11) + (X + 1))
    torch.testing.assert_close(compiled(X), X + 1)


def test_stance_set_inside_breaks_the_graph() -> None:
    inner = braze.compile(where, backend="eager")

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.sin()
        with braze.set_stance("force_eager"):
            y = y + inner(x)
        return y, inner(x)

    first, second = braze.compile(program, backend="eager")(X)
    torch.testing.assert_close(first, X.sin() + X + 11)
    torch.testing.assert_close(second, X + 1)
    torch.testing.assert_close(inner(X), X + 1)
    with pytest.raises(braze.exc.GraphBreakError):
        braze.compile(program, backend="eager", fullgraph=True)(X)


def test_forced_backend_compiles_beside_the_own() -> None:
    counts = {"own": 0, "forced": 0}

    def counting(name: str) -> Any:
        def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
            counts[name] += 1
            return module.forward

        return backend

    compiled, forced = braze.compile(broken, backend=counting("own")), counting("forced")
    for turn in range(3):
        torch.testing.assert_close(compiled(X), X + 2)
        with braze.set_stance(force_backend=forced):
            torch.testing.assert_close(compiled(X), X + 2)
        assert counts == {"own": 2, "forced": 2}, turn
    assert braze.status()["broken"].graphs == 4


def test_status_counts_calls_that_a_stance_left() -> None:
    compiled = braze.compile(where, backend="eager")
    compiled(X)
    with braze.set_stance("force_eager"):
        compiled(X)
        assert braze.status()["where"].entries == 1
    (why,) = braze.status()["where"].left_to_eager
    assert why.code == "stance"


def test_run_only_follows_the_stance() -> None:
    compiled = braze.compile(where, backend="eager")
    compiled(X)
    only = braze.run(compiled)
    with braze.set_stance("force_eager"):
        torch.testing.assert_close(only(X), X + 11)
    torch.testing.assert_close(only(X), X + 1)


def test_reset_inside_a_stance_forgets() -> None:
    compiled = braze.compile(where, backend="eager")
    compiled(X)
    with braze.set_stance("force_eager"):
        braze.reset()
    with braze.set_stance("eager_on_recompile"):
        torch.testing.assert_close(compiled(X), X + 11)


def test_stance_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UserError, match="force_eager"):
        braze.set_stance("forced_eager")
    with pytest.raises(RuntimeError, match="force_backend"):
        braze.set_stance("force_eager", force_backend="eager")
    torch.testing.assert_close(braze.compile(where, backend="eager")(X), X + 1)


@pytest.mark.parametrize("name", TARGETS)
def test_first_call_before_a_compile(name: str, journal: Journal) -> None:
    make, calls = TARGETS[name]
    compiled = braze.compile(make(), backend="eager")
    with braze.set_stance("eager_then_compile"):
        assert torch.equal(compiled(X), X + 11 * calls) and not journal.records()
        more = torch.ones(5)
        torch.testing.assert_close(compiled(more), more + calls)
        made = len(journal.records())
        torch.testing.assert_close(compiled(torch.ones(7)), torch.ones(7) + calls)
    # The size was seen to change before anything was compiled, but for the rest behind a break.
    assert len(journal.records()) == made + (name == "break")


def test_first_call_by_aot_eager(journal: Journal) -> None:
    compiled = braze.compile(where)
    with braze.set_stance("aot_eager_then_compile"):
        for _ in range(3):
            torch.testing.assert_close(compiled(X), X + 1)
    assert [record.counters.get("kernels", 0) for record in journal.records()] == [0, 1]


@pytest.mark.parametrize("stance", STANCES)
def test_torch_s_stance_is_heeded(stance: str, journal: Journal) -> None:
    """By what `braze.compile` made as by what `torch.compile` did."""

    def calls(compile: Callable[..., Any]) -> list[Any]:
        compiled, results = compile(told), []
        with torch.compiler.set_stance(stance):
            for x in (X, X, torch.ones(5), torch.ones(7), X.double()):
                try:
                    results.append(compiled(x).tolist())
                except RuntimeError:
                    results.append("raises")
        results.append(compiled(X).tolist())
        return results

    def told(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.compiler.is_compiling() else x + 11

    expected = calls(lambda function: torch.compile(function, backend="eager"))
    torch.compiler.reset()
    assert calls(braze.compile) == expected
    torch.compiler.reset()
    assert not journal.records()


def test_unknown_stance_of_torch() -> None:
    with pytest.raises(UserError, match="force_eager"):
        torch.compiler.set_stance("bogus")
