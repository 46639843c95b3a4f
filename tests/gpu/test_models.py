"""The eight models, small, on a device: one graph each, values and gradients as in eager."""

from __future__ import annotations

import pytest
import torch
from benchmarks.models import EIGHT, MODELS, Size, build, tensors_in

import braze
from braze.report.explain import summarise
from braze.trace import Journal
from tests.gpu.checks import MODES, NEEDS_DEVICE
from tests.models.zoo import judge

pytestmark = NEEDS_DEVICE


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EIGHT)
def test_inference(journal: Journal, name: str, mode: str | None) -> None:
    case = build(MODELS[name], device="cuda", size=Size.TINY)
    compiled = braze.compile(case.model, mode=mode)
    with torch.no_grad():
        for seed in range(4):
            args, kwargs = case.arguments(seed)
            right = tensors_in(case.model(*args, **kwargs))
            found = tensors_in(compiled(*args, **kwargs))
            torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-4)
    report = summarise("", journal, None)
    assert (report.graph_count, report.break_count, report.fallbacks) == (1, 0, ())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EIGHT)
def test_gradients(journal: Journal, name: str, mode: str | None) -> None:
    case = build(MODELS[name], device="cuda", size=Size.TINY)
    model = case.model  # in eval mode: training draws random numbers, and norms amplify errors
    compiled = braze.compile(model, mode=mode)
    args, kwargs = case.arguments(0)
    for _ in range(4):
        gradients = []
        for call in (model, compiled):
            model.zero_grad()
            case.loss(call(*args, **kwargs)).backward()
            gradients.append([p.grad for p in model.parameters() if p.grad is not None])
        for right, found in zip(*gradients, strict=True):
            torch.testing.assert_close(found, right, rtol=5e-3, atol=1e-4)
    assert not summarise("", journal, None).fallbacks


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["cvt", "deberta-v2", "mobilevit", "swinv2", "t5"])
def test_the_zoo(name: str, mode: str | None) -> None:
    """Recorded from the second call on; cvt's forward is a program in parts, whose arena went
    before its last kernel."""
    found = judge(name, "cuda", mode, calls=4, gradients=True)
    assert found.accuracy.right and not found.fallbacks, found
    assert (found.graphs, found.breaks) == (1, 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["bert", "gpt2", "plbart", "t5"])
def test_the_zoo_trains(name: str, mode: str | None) -> None:
    """With dropout, inside of attention too."""
    found = judge(name, "cuda", mode, calls=6, trains=True)
    assert found.accuracy.right and not found.fallbacks, found
    assert (found.graphs, found.breaks) == (1, 0)


def test_replays_are_checked() -> None:
    mode = "reduce-overhead"
    found = judge("mobilevit", "cuda", mode, calls=4, gradients=True, verify_replays=True)
    assert found.accuracy.right and not found.fallbacks, found
