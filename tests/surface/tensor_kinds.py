"""Tensors that differ in one thing each: what a question may depend on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Make = Callable[[], Any]


class Plain(torch.Tensor):
    """A subclass that inherits everything."""


def _floats() -> Tensor:
    return torch.arange(6.0).reshape(2, 3) + 1


def _complex() -> Tensor:
    return torch.complex(_floats(), _floats() + 1)


def _leaf() -> Tensor:
    return _floats().requires_grad_()


def _with(make: Make, change: Callable[[Any], object]) -> Make:
    def made() -> Any:
        tensor = make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            change(tensor)
        return tensor

    return made


def _in_inference_mode() -> Tensor:
    with torch.inference_mode():
        return _floats()


def _larger_storage() -> Tensor:
    return torch.arange(12.0).add_(1)[:6].view(2, 3)


def _view_without_gradients() -> Tensor:
    leaf = torch.ones(1, 2, 3, requires_grad=True)
    with torch.no_grad():
        return leaf[0]


def _written(tensor: Tensor) -> None:
    tensor.mul_(1)


def _set_gradient(tensor: Tensor) -> None:
    tensor.grad = torch.ones_like(tensor)


def _mark(tensor: Any) -> None:
    tensor.mark = 1


# What the brief of a tensor is made of: dtype, layout in memory, class, autograd's role, flags.
KINDS: dict[str, Make] = {
    "plain": _floats,
    "transposed": lambda: torch.arange(6.0).reshape(3, 2).t(),
    "expanded": lambda: torch.arange(3.0).expand(2, 3),
    "view": lambda: torch.arange(24.0).reshape(4, 6)[1:3, ::2],
    "leaf": _leaf,
    "non-leaf": lambda: _leaf() * 2,
    "inference": _in_inference_mode,
    "conjugate": lambda: _complex().conj(),
    "negative": lambda: _complex().conj().imag,
    "empty": lambda: torch.empty(0, 3),
    "0-d": lambda: torch.tensor(1.5),
    "half": lambda: _floats().half(),
    "integer": lambda: _floats().long(),
    "bool": lambda: _floats() > 2,
    "complex": _complex,
    "parameter": lambda: torch.nn.Parameter(_floats()),
    "subclass": lambda: _floats().as_subclass(Plain),
}

# Tensors like "plain", "leaf" or "non-leaf", of which one thing is otherwise.
CHANGES: dict[str, Make] = {
    "zeros without memory": lambda: torch._efficientzerotensor((2, 3)),
    "sparse": lambda: _floats().to_sparse(),
    "meta": lambda: _floats().to("meta"),
    "buffer": lambda: torch.nn.Buffer(_floats()),
    "frozen parameter": lambda: torch.nn.Parameter(_floats(), requires_grad=False),
    "in shared memory": lambda: _floats().share_memory_(),
    "memory of numpy's": lambda: torch.from_numpy(_floats().numpy()),
    "larger storage": _larger_storage,
    "offset": lambda: torch.arange(7.0)[1:].view(2, 3),
    "written to": _with(_floats, _written),
    "has an attribute": _with(_floats, _mark),
    "leaf with a hook": _with(_leaf, lambda t: t.register_hook(lambda g: None)),
    "leaf with a late hook": _with(
        _leaf, lambda t: t.register_post_accumulate_grad_hook(lambda p: None)
    ),
    "leaf with a gradient": _with(_leaf, _set_gradient),
    "leaf that was seen": _with(_leaf, lambda t: t.exp()),
    "non-leaf with a hook": _with(lambda: _leaf() * 2, lambda t: t.register_hook(lambda g: None)),
    "non-leaf that keeps its gradient": _with(lambda: _leaf() * 2, Tensor.retain_grad),
    "second result": lambda: torch.ones(2, 2, 3, requires_grad=True).unbind()[1],
    "view of a leaf": lambda: torch.ones(1, 2, 3, requires_grad=True)[0],
    "view of a leaf, without gradients": _view_without_gradients,
    "detached": lambda: _leaf().detach(),
    "quantized": lambda: torch.quantize_per_tensor(_floats(), 0.1, 0, torch.qint8),
}
EVERY: dict[str, Make] = {**KINDS, **CHANGES}
# For what is made of the input: a change of the input that is no change of the result is in none.
FEW = (
    *("plain", "leaf", "non-leaf", "inference", "transposed", "expanded", "view", "parameter"),
    *("conjugate", "negative", "integer", "0-d", "offset", "second result", "view of a leaf"),
    *("subclass", "non-leaf that keeps its gradient", "in shared memory", "written to"),
)
