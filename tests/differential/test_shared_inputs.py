"""Arguments that have elements in common, one of which is written to: what a program may do with
them and ask of them, each beside eager. Memory, versions, identity and aliasing are compared."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.errors import GraphBreakError

Pair = tuple[torch.Tensor, torch.Tensor]

LIES: dict[str, Callable[[torch.Tensor], Pair]] = {
    "a row": lambda z: (z, z[1]),
    "a row first": lambda z: (z[1], z),
    "flat": lambda z: (z, z.view(-1)),
    "rows": lambda z: (z[:3], z[1:]),
    "transposed": lambda z: (z, z.t()),
    "equal": lambda z: (z[:], z[:]),
    "apart by autograd": lambda z: (z, z.detach()),
}
IN_THE_GRAPH: dict[str, Callable[..., Any]] = {
    "results": lambda a, b: (a.mul_(2), a, b, b.view(-1), a is b),
    "through data": lambda a, b: (a.data.mul_(2), b + 1),
    "detached": lambda a, b: (a.detach().mul_(2), b + 1),
    "layouts": lambda a, b: (a.mul_(2), b.contiguous(), b.is_contiguous(), a.stride(), b.stride()),
    "offsets": lambda a, b: (a.mul_(2), a.storage_offset(), b.storage_offset()),
    "copies": lambda a, b: (a.copy_(b.clone().sum() + 1), b.copy_(a.sum().expand_as(b))),
    "as_strided": lambda a, b: (a.mul_(2), b.as_strided((2,), (1,)), b.as_strided((2,), (1,), 1)),
    "other dtype": lambda a, b: (a.mul_(2), b.view(torch.int32) + 1),
    "gradients": lambda a, b: (a.mul_(2), a.grad, b.grad, a.is_leaf),
    "identity": lambda a, b: (a.mul_(2), len({a, b}), id(a) == id(b)),
    "fill": lambda a, b: (b.fill_(3), a + 1),
    "random": lambda a, b: (a.uniform_(), b * 2),
    "cumsum": lambda a, b: (a.cumsum_(0), b + 1),
    "scatter": lambda a, b: (a.view(-1).scatter_(0, torch.tensor([0, 1]), 5.0), b + 1),
    "a list": lambda a, b: (torch._foreach_mul_([a], 2.0), b + 1),
}
# Programs that ask for no identity, nor raise for a layout.
SERVED = {n: f for n, f in IN_THE_GRAPH.items() if n not in ("identity", "results")}
BREAKING: dict[str, Callable[..., Any]] = {
    "_is_view": lambda a, b: (a.mul_(2), a._is_view(), b._is_view()),
    "_base": lambda a, b: (a.mul_(2), a._base is None, b._base is None, b._base is a),
    "_version": lambda a, b: (a.mul_(2), a._version, b._version),
    "addresses": lambda a, b: (a.mul_(2), a.data_ptr() == b.data_ptr()),
    "same place": lambda a, b: (a.mul_(2), a.is_set_to(b)),
    "requires_grad_": lambda a, b: (a.mul_(2), b.requires_grad_().requires_grad),
    "other data": lambda a, b: (a.mul_(2), setattr(b, "data", torch.ones(2)), b),
    "other storage": lambda a, b: (a.mul_(2), b.set_(torch.ones(3)), b),
    "resized": lambda a, b: (a.mul_(2), b.resize_(2)),
    "deep copies": lambda a, b: (a.mul_(2), copy.deepcopy(b)),
    "other sizes": lambda a, b: (a.mul_(2), b.t_(), b.shape),
    "both statistics": lambda a, b: torch.nn.functional.batch_norm(
        torch.arange(12.0).view(3, 4), a.view(-1)[:4], b.reshape(-1)[:4], training=True
    ),
    "in turn": lambda a, b: torch.add(b.reshape(-1)[1:4], 1.0, out=a.view(-1)[:3]),
    "a list of both": lambda a, b: torch._foreach_mul_([a, b], 2.0),
}


def seen(value: Any, given: tuple[torch.Tensor, ...]) -> Any:
    """What is compared of a result."""
    if isinstance(value, (tuple, list)):
        return [seen(each, given) for each in value]
    if not isinstance(value, torch.Tensor):
        return value
    address = value.untyped_storage().data_ptr()
    shared = [address == each.untyped_storage().data_ptr() for each in given]
    layout = (value.dtype, tuple(value.shape), value.stride(), value.storage_offset())
    same = [value is each for each in given]
    return (value.tolist(), layout, same, shared, value.requires_grad, value._is_view())


def outcome(call: Callable[..., Any], lies: Callable[[torch.Tensor], Pair]) -> Any:
    torch.manual_seed(0)
    z = torch.arange(16.0).view(4, 4)
    a, b = lies(z)
    try:
        result = call(a, b)
    except (RuntimeError, TypeError) as error:
        return type(error), str(error)
    given = (a, b, z)
    return seen([result, given], given), [each._version for each in given]


@pytest.mark.parametrize("backend", ["braze", "eager"])
@pytest.mark.parametrize(
    "program", [*IN_THE_GRAPH.values(), *BREAKING.values()], ids=[*IN_THE_GRAPH, *BREAKING]
)
def test_programs_do_as_eager_does(program: Callable[..., Any], backend: str) -> None:
    backend = "aot_eager" if backend == "braze" and program in BREAKING.values() else backend
    braze.reset()
    compiled = braze.compile(program, backend=backend, recompile_limit=20)
    for _ in range(2):
        for lies in LIES.values():
            assert outcome(compiled, lies) == outcome(program, lies)


@pytest.mark.parametrize("program", SERVED.values(), ids=SERVED)
def test_one_graph_a_layout(program: Callable[..., Any]) -> None:
    braze.reset()
    compiled = braze.compile(program, backend="aot_eager", recompile_limit=20)
    together = [lies for name, lies in LIES.items() if name != "apart by autograd"]
    for _ in range(2):
        for lies in together:
            outcome(compiled, lies)
    (row,) = braze.status().rows
    assert (row.times_broken, row.entries) == (0, len(together))


def test_the_tensors_are_let_go() -> None:
    compiled = braze.compile(lambda a, b: (a.mul_(2), b + 1)[1], fullgraph=True)
    z = torch.zeros(2, 2)
    gone = weakref.ref(z)
    compiled(z, z[0])
    del z
    gc.collect()
    assert gone() is None


def test_an_export_refuses_them() -> None:
    """A graph's inputs are the function's."""

    def write(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return b + 1

    z = torch.zeros(2, 2)
    with pytest.raises(GraphBreakError, match="through another input"):
        braze.export(write)(z, z[0])
