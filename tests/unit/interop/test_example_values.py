"""What a backend's graph says of its values is what they are when it runs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx

import braze
from braze.interop.example_values import ExampleValue

PROGRAMS: dict[str, Callable[..., Any]] = {
    "products": lambda x, w: (x @ w).relu().sum(0),
    "parts": lambda x, w: [part * 2 for part in (x @ w).split(2, 1)],
    "several": lambda x, w: (*x.topk(2, -1), x.max(1).indices, *torch.var_mean(x @ w, 1)),
    "sizes": lambda x, w: x.view(x.shape[0] * 2, 2) + (x.shape[0] * 3 - 1),
    "layouts": lambda x, w: (x.t() + 1, x.t().contiguous().view(-1), x[:, ::2]),
    "dtypes": lambda x, w: (x.double() > 0, x.argmax(1), torch.fft.rfft(x)),
    "made": lambda x, w: torch.zeros(x.shape[0], 2, dtype=torch.int32) + w.new_ones(2).int(),
    "in place": lambda x, w: x.clone().add_(w[: x.shape[0]]).mul_(2),
    "attention": lambda x, w: torch.nn.functional.scaled_dot_product_attention(x, w, w),
}


class _Compared(fx.Interpreter):
    """Runs a graph and keeps what it says beside what it does."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.pairs: list[tuple[Any, Any]] = []

    def run_node(self, n: fx.Node) -> Any:
        made = super().run_node(n)
        if type(made) is int:
            assert n.meta["example_value"] == made
        elif isinstance(made, (tuple, list)) and n.op != "output":
            self.pairs += zip(n.meta["example_value"], made, strict=True)
        elif isinstance(made, torch.Tensor):
            self.pairs.append((n.meta["example_value"], made))
            if n.op == "placeholder":
                assert n.meta["example_value"].requires_grad == made.requires_grad
        return made


def _facts(tensor: torch.Tensor) -> Any:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.layout


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_facts_are_those_of_the_values(name: str, trains: bool) -> None:
    """At the sizes of the call that compiled it, those that are symbols in the second graph too."""
    compared = 0

    def backend(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        module = copy.deepcopy(module)

        def run(*inputs: Any) -> Any:
            nonlocal compared
            interpreter = _Compared(module)
            results = interpreter.run(*inputs)
            for example, made in interpreter.pairs:
                assert type(example) is ExampleValue
                assert _facts(example) == _facts(made)
            compared += len(interpreter.pairs)
            return results

        return run

    compiled = braze.compile(PROGRAMS[name], backend=backend)
    w = torch.randn(4, 4)
    for rows in (3, 2):
        compiled(torch.randn(rows, 4, requires_grad=trains), w)
    assert compared >= 6


def test_operators_give_further_ones() -> None:
    seen: list[ExampleValue] = []

    def backend(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        seen.extend(n.meta["val"] for n in module.graph.nodes if n.op == "placeholder")
        return module.forward

    braze.compile(lambda x: x + 1, backend=backend)(torch.randn(3, 4).t())
    (value,) = seen
    assert _facts(value) == ((4, 3), (1, 4), torch.float32, torch.device("cpu"), torch.strided)
    further = (value.sum(0) > 1, value.reshape(-1), torch.zeros_like(value, dtype=torch.half))
    assert [type(one) for one in further] == [ExampleValue] * 3
    assert [one.dtype for one in further] == [torch.bool, torch.float32, torch.half]
    assert [tuple(one.shape) for one in further] == [(3,), (12,), (4, 3)]
    assert all(one.device.type == "cpu" for one in further)
    assert torch.zeros_like(value, device="meta").device.type == "meta"
    assert _facts(pickle.loads(pickle.dumps(value))) == _facts(value)
    with pytest.raises(RuntimeError, match="meta"):
        value.sum().item()
