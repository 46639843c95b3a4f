"""What is alive at a graph break goes on behind it, whatever it is and in whatever mode.

A value that a graph cannot give to what follows leaves the whole call to eager for good: views of
parameters did, in inference alone, which nothing here had asked."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import braze
from tests.recorded import recorded
from tests.shares import due_today


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Record:
    first: Any
    second: Any


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(4, 4))
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.register_buffer("buffer", torch.randn(4, 4))
        self.linear = nn.Linear(4, 4)


Make = Callable[[Model, Tensor], Any]
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "t": lambda t: t.t(),
    "row": lambda t: t[0],
    "slice": lambda t: t[1:, ::2],
    "view": lambda t: t.view(2, 8),
    "view of a view": lambda t: t.view(2, 8)[1].view(2, 4),
    "chunk": lambda t: t.chunk(2)[1],
    "unbind": lambda t: t.unbind()[2],
    "diagonal": lambda t: t.diagonal(),
    "expand": lambda t: t[:1].expand(4, 4),
    "unsqueeze": lambda t: t.unsqueeze(0),
    "narrow": lambda t: t.narrow(0, 1, 2),
    "unfold": lambda t: t.unfold(0, 2, 1),
    "as_strided": lambda t: t.as_strided((2, 2), (1, 4), 1),
    "movedim": lambda t: t.movedim(0, 1),
    "flatten": lambda t: t.flatten(),
    "T": lambda t: t.T,
    "swapaxes": lambda t: t.swapaxes(0, 1),
}
OF: dict[str, Make] = {
    "parameter": lambda m, x: m.w,
    "data": lambda m, x: m.w.data,
    "detached": lambda m, x: m.w.detach(),
    "buffer": lambda m, x: m.buffer,
    "input": lambda m, x: x,
    "computed": lambda m, x: m.linear(x),
    "of a parameter": lambda m, x: m.w * 3,
}
OTHERS: dict[str, Make] = {
    "frozen": lambda m, x: m.frozen[1:],
    "in place": lambda m, x: (x * 1).t().mul_(2),
    "list": lambda m, x: [x, x.t(), *m.w.split(2)],
    "tuple": lambda m, x: (x + 1, m.w[1]),
    "dict": lambda m, x: {"a": m.w.t(), "b": x + 1},
    "named tuple": lambda m, x: Pair(m.w[0], x.t()),
    "dataclass": lambda m, x: Record(m.w.t(), x * 2),
    "bool": lambda m, x: x > 0,
    "integers": lambda m, x: x.argmax(1),
    "no dimension": lambda m, x: m.w[0, 0],
    "half": lambda m, x: m.w.half(),
    "complex": lambda m, x: torch.view_as_complex(x.view(4, 2, 2)),
    "real": lambda m, x: torch.view_as_real(torch.complex(x, x)),
    "dtype": lambda m, x: x.view(torch.int32),
    "empty": lambda m, x: x[:0],
    "module": lambda m, x: m.linear,
    "partial": lambda m, x: functools.partial(m.linear, x * 2),
    "closure": lambda m, x: lambda y=x * 2: y + m.w,
    "leaf": lambda m, x: (x * 2).detach().requires_grad_(),
    "zip": lambda m, x: zip(m.w, x),
    "iterator": lambda m, x: iter(m.w.unbind()),
    "generator": lambda m, x: (row * 2 for row in m.w),
    "sorted": lambda m, x: m.w.sort(),
}


def _of(view: Callable[[Tensor], Tensor], base: Make) -> Make:
    return lambda model, x: view(base(model, x))


MADE: dict[str, Make] = {
    **{f"{v} of {b}": _of(VIEWS[v], OF[b]) for v in VIEWS for b in OF},
    **OTHERS,
}
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "gradients": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
# Whose views of what requires grad say that they do not, in inference mode.
_COMPOSITE = ("movedim", "flatten", "T", "swapaxes")


def _tensors(value: Any) -> list[Tensor]:
    """What a value gives when it is used."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Record):
        return [*_tensors(value.first), *_tensors(value.second)]
    if isinstance(value, dict):
        return [found for item in value.values() for found in _tensors(item)]
    if isinstance(value, nn.Linear):
        return [value(torch.ones(4))]
    if callable(value):
        return _tensors(value())
    return [found for item in value for found in _tensors(item)]


def _facts(tensor: Tensor, with_gradients: bool) -> tuple[Any, ...]:
    history = (tensor.requires_grad, tensor.grad_fn is None, tensor.is_leaf)
    return (*history[: 3 * with_gradients], tensor.dtype, tensor.shape, tensor.stride())


@pytest.mark.parametrize("name", due_today([*MADE], 6))
def test_what_is_alive_goes_on(name: str) -> None:
    model, x = Model(), torch.randn(4, 4)

    def program(x: Tensor, stop: Callable[[], None]) -> list[Tensor]:
        made = MADE[name](model, x)
        stop()
        return _tensors(made)

    for mode, enter in MODES.items():
        with recorded() as journal, enter():
            compiled = braze.compile(program, backend="aot_eager")
            asks = mode != "inference" or name.partition(" ")[0] not in _COMPOSITE
            for _ in range(2):
                found, right = compiled(x, braze.graph_break), program(x, lambda: None)
                assert len(found) == len(right)
                for mine, theirs in zip(found, right):
                    torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)
                    assert _facts(mine, asks) == _facts(theirs, asks), mode
        assert journal.records() and not journal.left_to_eager(), (mode, journal.left_to_eager())
