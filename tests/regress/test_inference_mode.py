"""Programs that make views were left to eager under `torch.inference_mode()`, without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from tests.recorded import recorded

VIEWS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.t(),
    lambda x: x.t() + 1,
    lambda x: x.unsqueeze(-1) + 1,
    lambda x: x[0] + 1,
    lambda x: x.view(-1) * 2,
    lambda x: (x * 2).view(-1) + 1,
    lambda x: x.expand(3, 2, 5) + 1,
    lambda x: x.chunk(2)[0],
    lambda x: x.split(1)[1] * 2,
    lambda x: x.detach() * 2,
    lambda x: x.data,
    lambda x: (x.t(), x * 2, (x * 2).t()),
    lambda x: x.add_(1).view(-1),
    lambda x: x[0].mul_(2),
    lambda x: (x + 1).view(-1)[:2].mul_(3),
    lambda x: x.view(-1)[1:].as_strided((2,), (1,)),
    lambda x: torch.nn.functional.linear(x.view(2, 5), x),
]


def _normal() -> torch.Tensor:
    return torch.ones(2, 5)


def _view() -> torch.Tensor:
    return torch.ones(10)[:].view(2, 5)


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(2, 5)


def _outcome(
    program: Callable[[torch.Tensor], Any], make: Callable[[], torch.Tensor], mode: Any
) -> Any:
    x = make()
    try:
        with mode():
            leaves = torch.utils._pytree.tree_leaves((program(x), x))
    except RuntimeError as error:
        return type(error)
    return [
        (leaf.tolist(), leaf.is_inference(), leaf.requires_grad, leaf.stride()) for leaf in leaves
    ]


@pytest.mark.parametrize("make", [_normal, _view, _inference])
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_programs_of_views(make: Callable[[], torch.Tensor], mode: Any) -> None:
    """A graph for each, and results are inference tensors where eager's are."""
    for program in VIEWS:
        wanted = _outcome(program, make, mode)
        with recorded() as journal:
            compiled = braze.compile(program)
            for _ in range(3):
                assert _outcome(compiled, make, mode) == wanted
        outcomes = [record.outcome for record in journal.records()]
        assert wanted is RuntimeError or outcomes == ["graph"]


@pytest.mark.parametrize("name", ["GPT2", "Bert", "ViT"])
def test_models_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 37,
    }
    try:
        config = getattr(transformers, f"{name}Config")(
            **sizes,
            **({"image_size": 32, "patch_size": 8} if name == "ViT" else {"vocab_size": 64}),
        )
        model = getattr(transformers, f"{name}Model")(config).eval()
    except ModuleNotFoundError as missing:
        pytest.skip(str(missing))
    x = torch.randn(1, 3, 32, 32) if name == "ViT" else torch.randint(0, 64, (2, 10))
    with torch.inference_mode(), recorded() as journal:
        wanted, compiled = model(x)[0], braze.compile(model)
        for _ in range(2):
            got = compiled(x)[0]
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
    assert got.is_inference() and wanted.is_inference()
    (record,) = journal.records()
    assert record.outcome == "graph" and record.graph_break is None
    assert record.counters["kernels"] > 0
