"""`x.data = y` in a frame: what eager leaves, in values, sizes, versions, aliases and gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

Program = Callable[..., Any]


def given(x: Any, y: Any) -> Any:
    x.data = y
    return x


def emptied(x: Any, y: Any) -> Any:
    x.data = y
    y.data = torch.zeros([0])
    return x


def computed(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.data = y * 2 + x
        return x + 1


def chained(x: Any, y: Any) -> Any:
    old = x.data
    x.data = y
    y.data = old
    return x


def twice(x: Any, y: Any) -> Any:
    x.data = y
    x.data = x.data
    x.data = y.data
    return y


def written(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.data = y
        x.add_(1)
        y.mul_(3)
        x.mul_(2)
        return x * 2, y.sum()


def written_computed(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.data = y.reshape(-1)[:3] * 2
        x.add_(1)
        return x.sum()


def written_piece(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.data = y.view(-1)[1:3]
        x.add_(1)
        return x.sum()


def read_before(x: Any, y: Any) -> Any:
    with torch.no_grad():
        before = x * 2
        x.data = y
        return before + x.sum()


def swapped(x: Any, y: Any) -> Any:
    x.data, y.data = y.data, x.data
    return x is y


def made(x: Any, y: Any) -> Any:
    z = torch.empty(0)
    z.data = y
    z.add_(1)
    return z, x.detach() + 1


def into_gradient(x: Any, y: Any) -> Any:
    x.data = y
    x.grad = torch.ones_like(y.detach())
    return x.shape, x.requires_grad, x.is_leaf


# In one graph, whatever needs gradients, or whatever does not.
WHOLE = [given, emptied, computed, chained, twice, written, written_computed, read_before]
WHOLE += [written_piece, swapped, into_gradient]


def view_after(x: Any, y: Any) -> Any:
    x.data = y
    return x.view(-1)


def view_before(x: Any, y: Any) -> Any:
    z = x.view(-1)
    x.data = y
    return z, x


def saved_before(x: Any, y: Any) -> Any:
    z = (x * y).sum()
    x.data = y.detach() * 2
    return z


def tracked_after(x: Any, y: Any) -> Any:
    x.data = y
    return (x * x * y).sum()


def written_first(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.add_(1)
        x.data = y
        return x * 2


def other_dtype(x: Any, y: Any) -> Any:
    x.data = y.double()
    return x


def itself(x: Any, y: Any) -> Any:
    x.data = x
    return x + y


def conditional(x: Any, y: Any) -> Any:
    x.data = y
    if y.sum() > 0:
        x.data = torch.ones(2)
    return x


# Compiled in pieces, or not at all: as eager does it in any case.
BROKEN = [view_after, view_before, saved_before, tracked_after, written_first, other_dtype]
BROKEN += [made, itself, conditional]


def parameter(*size: int) -> Any:
    return torch.nn.Parameter(torch.arange(1.0, 1 + torch.Size(size).numel()).view(size))


def plain(*size: int) -> Any:
    return parameter(*size).detach().clone()


def leaf(*size: int) -> Any:
    return plain(*size).requires_grad_()


KINDS: dict[str, tuple[Any, Any]] = {
    "plain": (plain, plain),
    "leaves": (leaf, leaf),
    "parameter": (parameter, plain),
    "to a plain one": (plain, leaf),
    "view": (lambda *size: plain(2, *size)[1], plain),
    "of a view": (plain, lambda *size: plain(2, *size)[1]),
    "history": (lambda *size: leaf(*size) * 2, plain),
}


def state(tensor: Any) -> Any:
    gradient = None if tensor.grad is None else tensor.grad.tolist()
    layout = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
    flags = (type(tensor), tensor.requires_grad, tensor.is_leaf, tensor._is_view())
    return tensor.tolist(), layout, flags, tensor._version, gradient


def shared(tensors: list[Any]) -> list[bool]:
    starts = [t.untyped_storage().data_ptr() for t in tensors]
    return [bool(a) and a == b for a, b in itertools.combinations(starts, 2)]


def observed(program: Program, kinds: tuple[Any, Any]) -> Any:
    """All that a call leaves: its results, its arguments, what they share, and what a backward and
    writes do afterwards."""
    x, y = (make(3) for make in kinds)
    held = x.detach()
    try:
        result = program(x, y)
    except Exception as error:
        return type(error), str(error)[:60], state(x), state(y)
    results = list(result if type(result) is tuple else (result,))
    tensors = [x, y, held, *[r for r in results if isinstance(r, torch.Tensor)]]
    found = [[state(t) for t in tensors], shared(tensors), [r is x for r in results]]
    found.append([r for r in results if not isinstance(r, torch.Tensor)])
    try:
        for tensor in tensors[3:]:
            if tensor.requires_grad:
                tensor.sum().backward(retain_graph=True)
    except RuntimeError as error:
        found.append(str(error)[:60])
    with torch.no_grad():
        for tensor in tensors:
            tensor.add_(1)
    return found, [state(t) for t in tensors]


COMPILED = [(kind, backend) for kind in KINDS for backend in ("eager", "aot_eager")]
COMPILED += [("plain", "braze"), ("parameter", "braze")]


@pytest.mark.parametrize(("kind", "backend"), COMPILED)
@pytest.mark.parametrize("program", WHOLE + BROKEN, ids=lambda p: p.__name__)
def test_assigned_data_is_as_eager_leaves_it(program: Program, kind: str, backend: str) -> None:
    compiled = braze.compile(program, backend=backend)
    for _ in range(3):
        assert str(observed(compiled, KINDS[kind])) == str(observed(program, KINDS[kind]))


@pytest.mark.parametrize("kind", ["plain", "leaves", "parameter"])
@pytest.mark.parametrize("program", WHOLE, ids=lambda p: p.__name__)
def test_assigned_data_is_in_one_graph(program: Program, kind: str, journal: Any) -> None:
    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        assert str(observed(compiled, KINDS[kind])) == str(observed(program, KINDS[kind]))
    assert len(journal.records()) == 1


@pytest.mark.parametrize("program", BROKEN[:6], ids=lambda p: p.__name__)
def test_assignments_that_autograd_sees_break_once(program: Program, journal: Any) -> None:
    compiled = braze.compile(program, backend="aot_eager")
    compiled(leaf(3), leaf(3))
    assert len([r for r in journal.records() if r.graph_break]) == 1


def test_a_changed_size_is_another_program(journal: Any) -> None:
    compiled = braze.compile(given, backend="aot_eager")
    for x, y in ((plain(3), plain(4)), (plain(3), plain(2, 2)), (plain(0), plain(4))):
        compiled(x, y)
        assert x.shape == y.shape and x.data_ptr() == y.data_ptr()
    x = y = plain(4)
    assert compiled(x, y) is x and x.shape == (4,)
