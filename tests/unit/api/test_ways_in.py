"""Every way into Braze, for every kind of callable: a graph of Braze's own, or a reason; and what
eager gives."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import braze
from braze.errors import BrazeError
from tests.recorded import recorded
from tests.unit.api.ways_in import (
    FUNCTIONS,
    MODULES,
    TORCH_OPTIONS,
    TORCH_WAYS,
    TORCH_WAYS_OF_MODULES,
    WAYS,
    WAYS_OF_MODULES,
    X,
)

# Kinds of which no graph holds all: the code of the break, or the class of the error.
BROKEN = {
    "scripted block": "unseen-callable",
    "block traced by jit": "unseen-callable",
    "disabled block": "disabled",
}
NOT_COMPILED = {
    "coroutine function": "unsupported-function",
    "generator function": "unsupported-function",
}
# TorchScript runs a function otherwise once it has been profiled, with an autograd of its own.
MAY_BE_REFUSED = {"scripted function": "unsupported-tensor"}
TORCHSCRIPT = ("scripted", "traced by jit")
# Compiled by Braze already, whatever PyTorch's capture sees of them.
COMPILED = (
    *("compiled block", "block compiled in place", "compiled module"),
    *("copied", "pickled", "saved"),
)
# PyTorch 2.13 writes past the end of a frame where its capture is given a coroutine function.
UNSAFE = ("coroutine function",)


class Outcome(NamedTuple):
    results: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    keys: list[str]
    error: BaseException | None


def _called(target: Any) -> Outcome:
    """What two calls give, and the gradients of the second one's results."""
    x = X.clone().requires_grad_(True)
    try:
        _finished(target(x.detach()))
        results = torch.utils._pytree.tree_leaves(_finished(target(x)))
    except Exception as error:
        return Outcome([], [], [], error)
    needing = [result.sum() for result in results if result.requires_grad]
    if needing:
        sum(needing).backward()  # type: ignore[union-attr]
    is_module = isinstance(target, nn.Module)
    leaves = [x, *(target.parameters() if is_module else ())]
    keys = [key.removeprefix("_orig_mod.") for key in target.state_dict()] if is_module else []
    return Outcome(results, [leaf.grad for leaf in leaves], keys, None)


def _finished(result: Any) -> Any:
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    return list(result) if inspect.isgenerator(result) else result


def _assert_same(got: Outcome, wanted: Outcome) -> None:
    assert type(got.error) is type(wanted.error), (got.error, wanted.error)
    assert got.keys == wanted.keys
    torch.testing.assert_close(got.results, wanted.results)
    assert [g is None for g in got.gradients] == [g is None for g in wanted.gradients]
    for ours, eagers in zip(got.gradients, wanted.gradients, strict=True):
        if ours is not None:
            torch.testing.assert_close(ours, eagers)


def _count(records: tuple[Any, ...], outcome: str) -> int:
    """How many records of an outcome have kernels."""
    return sum(r.outcome == outcome and r.counters.get("kernels", 0) > 0 for r in records)


def _codes(records: tuple[Any, ...]) -> set[str]:
    return {record.graph_break.code for record in records if record.graph_break is not None}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def _pairs(kinds: dict[str, Any], ways: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(kind, kinds[kind], way, ways[way], id=f"{kind}-{way}")
        for kind in kinds
        for way in ways
    ]


OURS = _pairs(FUNCTIONS, WAYS) + _pairs(MODULES, WAYS_OF_MODULES)
THROUGH_TORCH = _pairs(FUNCTIONS, TORCH_WAYS) + _pairs(MODULES, TORCH_WAYS_OF_MODULES)


@pytest.mark.parametrize(("kind", "make", "way", "compile"), OURS)
def test_compiles_or_says_why(
    kind: str, make: Callable[[], Any], way: str, compile: Callable[[Any], Any]
) -> None:
    wanted = _called(make())
    with recorded() as journal:
        if kind in TORCHSCRIPT:
            with pytest.raises(braze.exc.UserError, match="TorchScript"):
                compile(make())
            return
        got = _called(compile(make()))
    records = journal.records()
    expected = {**BROKEN, **NOT_COMPILED, **MAY_BE_REFUSED}.get(kind)
    if way == "fullgraph" and isinstance(got.error, BrazeError):
        assert expected is not None and f"[{expected}]" in str(got.error)
        return
    _assert_same(got, wanted)
    if wanted.error is not None:
        assert any(type(wanted.error).__name__ in record.raised for record in records)
        return
    codes = _codes(records)
    assert codes <= {expected}
    if kind in NOT_COMPILED or (codes and kind in MAY_BE_REFUSED):
        assert codes == {expected}
        return
    assert (kind in BROKEN) == bool(codes)
    # One for the call without gradients, one for that with them.
    assert kind in BROKEN or _count(records, "graph") == 2
    assert _count(records, "backward") >= 1


@pytest.mark.parametrize(("kind", "make", "way", "compile"), THROUGH_TORCH)
def test_compiles_what_torch_gives(
    kind: str, make: Callable[[], Any], way: str, compile: Callable[..., Any]
) -> None:
    """As many graphs as PyTorch's capture hands over, and each has kernels."""
    if kind in UNSAFE:
        pytest.skip("PyTorch's capture writes past a coroutine's frame")
    if kind == "scripted":
        with pytest.raises(RuntimeError, match=r"ScriptModules|torch.jit.script"):
            compile(make())
        return
    _check_through_torch(kind, make, compile)


@pytest.mark.parametrize("options", TORCH_OPTIONS.values(), ids=TORCH_OPTIONS)
@pytest.mark.parametrize("way", TORCH_WAYS_OF_MODULES)
@pytest.mark.parametrize("kind", ["module", "hooks", "bare module of torch's"])
def test_arguments_of_torch_compile(kind: str, way: str, options: dict[str, Any]) -> None:
    _check_through_torch(kind, MODULES[kind], TORCH_WAYS_OF_MODULES[way], **options)


def _check_through_torch(
    kind: str, make: Callable[[], Any], compile: Callable[..., Any], **options: Any
) -> None:
    given: list[Any] = []

    def keep(graph: Any, inputs: Any, **_: Any) -> Any:
        given.append(graph)
        return graph.forward

    wanted = _called(compile(make(), keep, **options))
    torch._dynamo.reset()
    with recorded() as journal, warnings.catch_warnings():
        warnings.simplefilter("error", braze.exc.BrazeWarning)
        got = _called(compile(make(), **options))
    _assert_same(got, wanted)
    graphs, codes = _count(journal.records(), "graph"), _codes(journal.records())
    if codes:
        assert kind in ("gradient", "vectorised") and codes == {"unseen-python"}
        return
    assert graphs == (2 if kind in COMPILED else len(given))
    assert not given or _count(journal.records(), "backward") >= 1
