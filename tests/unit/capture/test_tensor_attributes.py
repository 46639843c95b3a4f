"""Attributes of the program's own on tensors: wherever the tensor comes from and goes to, what a
compiled function reads and leaves behind is eager's, without a graph break."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import braze

P = nn.Parameter(torch.ones(3))


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        y = x * 2
        y.made = "forward"  # type: ignore[attr-defined]
        x.seen = "forward"  # type: ignore[attr-defined]
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * 2


class _Kept(torch.autograd.Function):
    """A function whose backward reads an attribute of what was saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * getattr(ctx.saved_tensors[0], "tag", 5)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("offset", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x


BLOCK = _Block()


def _own(x: Tensor) -> Tensor:
    y = x.new_ones(3)
    return y.requires_grad_()


# Which tensor gets the attribute.
CARRIERS: dict[str, Callable[[Tensor], Tensor]] = {
    "input": lambda x: x,
    "parameter": lambda x: P,
    "parameter of a module": lambda x: BLOCK.weight,
    "buffer": lambda x: BLOCK.offset,  # type: ignore[return-value]
    "computed": lambda x: x * 2,
    "view": lambda x: x.view(3, 1),
    "detached": lambda x: x.detach(),
    "view of a computed one": lambda x: (x * 2)[1:],
    "new": lambda x: torch.ones(3),
    "new leaf": _own,
    "new parameter": lambda x: nn.Parameter(x.detach() * 2),
    "of a function": _Doubled.apply,
}

# What the tensor goes through before the attribute is read.
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda t: t,
    "list": lambda t: [t, t][1],
    "dict": lambda t: {"a": t}["a"],
    "module": lambda t: BLOCK(t),
    "contiguous": lambda t: t.contiguous(),
    "same dtype": lambda t: t.to(t.dtype),
    "written to": lambda t: t.detach().add_(0) if t.requires_grad else t.add_(0),
    "another view": lambda t: t.view_as(t),
    "result of arithmetic": lambda t: t + 0,
    "checkpoint": lambda t: checkpoint(lambda u: u, t, use_reentrant=False),
    "function": lambda t: _Doubled.apply(t),
    "closure": lambda t: (lambda: t)(),
    "disabled autograd": torch.no_grad()(lambda t: t),
    "shallow view in place": lambda t: t.detach().unsqueeze_(0).squeeze_(0),
}


def _attributes(value: Any) -> Any:
    """The attributes of a tensor, those that are tensors by their values and own attributes."""
    return {name: _shown(held) for name, held in vars(value).items()}


def _shown(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist(), sorted(vars(value))
    return [_shown(item) for item in value] if type(value) in (list, tuple) else value


def _clean() -> None:
    for tensor in (P, BLOCK.weight, BLOCK.offset):
        vars(tensor).clear()


def _both(program: Any, calls: int = 2, **options: Any) -> tuple[Any, Any, Any]:
    """What eager and a compiled function gave and left behind, and the latter's status."""
    found: list[Any] = []
    compiled = braze.compile(program, **options)
    for function in (program, compiled):
        _clean()
        seen: list[Any] = []
        for number in range(calls):
            x = torch.linspace(-1, 1, 3).add(number).requires_grad_(number != 1)
            results = function(x)
            seen.append([_shown(r) for r in results])
            seen.append([_attributes(t) for t in (x, P, BLOCK.weight, BLOCK.offset)])
            seen.append([_attributes(r) for r in results if isinstance(r, Tensor)])
        found.append(seen)
    return found[0], found[1], braze.status()[-1]


# A leaf made in the frame that gradients of a result would flow to breaks for that.
OF_ATTRIBUTES = ("unsupported-attribute", "unsupported-tensor")


@pytest.mark.parametrize(
    ("way", "backend"), [*((way, "braze") for way in WAYS), ("function", "eager")]
)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_attributes_stay_with_their_tensor(carrier: str, way: str, backend: str) -> None:
    make, go = CARRIERS[carrier], WAYS[way]

    def program(x: Tensor) -> Any:
        t = make(x)
        t.tag = "mine"  # type: ignore[attr-defined]
        u = go(t)
        return getattr(u, "tag", None), hasattr(u, "seen"), u, t, x * 3

    eager, ours, status = _both(program, backend=backend)
    assert ours == eager
    assert not status.calls_left
    if backend == "braze":
        assert not [note for note in status.breaks if note.code in OF_ATTRIBUTES]


def _number(x: Tensor, t: Tensor) -> Any:
    t.tag = x.shape[0] * 2  # type: ignore[attr-defined]
    return t.tag + 1  # type: ignore[attr-defined]


def _of_the_graph(x: Tensor, t: Tensor) -> Any:
    t.tag = x.exp()  # type: ignore[attr-defined]
    return t.tag + 1  # type: ignore[attr-defined]


def _tree(x: Tensor, t: Tensor) -> Any:
    t.tag = [x.exp(), (x, 3)]  # type: ignore[attr-defined]
    t.tag[0].depth = 2  # type: ignore[attr-defined]
    return t.tag[0].depth  # type: ignore[attr-defined]


def _overwritten(x: Tensor, t: Tensor) -> Any:
    t.first = 1  # type: ignore[attr-defined]
    t.tag = 2  # type: ignore[attr-defined]
    t.first = 3  # type: ignore[attr-defined]
    return t.first + t.tag  # type: ignore[attr-defined]


def _deleted(x: Tensor, t: Tensor) -> Any:
    t.first = 1  # type: ignore[attr-defined]
    t.tag = 2  # type: ignore[attr-defined]
    del t.first  # type: ignore[attr-defined]
    return hasattr(t, "first"), getattr(t, "first", 7)


def _missing(x: Tensor, t: Tensor) -> Any:
    try:
        del t.nothing  # type: ignore[attr-defined]
    except AttributeError as error:
        return str(error)


def _by_functions(x: Tensor, t: Tensor) -> Any:
    setattr(t, "a", 1)  # noqa: B010
    object.__setattr__(t, "b", 2)
    torch.Tensor.__setattr__(t, "c", 3)
    delattr(t, "a")
    object.__delattr__(t, "c")
    return [getattr(t, name, None) for name in "abc"]


def _flagged_once(x: Tensor, t: Tensor) -> Any:
    if not hasattr(t, "flag"):
        t.flag = True  # type: ignore[attr-defined]
        return "new"
    return "old"


def _counted(x: Tensor, t: Tensor) -> Any:
    t.count = getattr(t, "count", 0) + 1  # type: ignore[attr-defined]
    return t.count  # type: ignore[attr-defined]


def _hides_a_class_name(x: Tensor, t: Tensor) -> Any:
    t.place = 3  # type: ignore[attr-defined]
    return t.place  # type: ignore[attr-defined]


def _copied(x: Tensor, t: Tensor) -> Any:
    leaf = t.detach()
    leaf.tag = 4  # type: ignore[attr-defined]
    return getattr(copy.deepcopy(leaf), "tag", None)


USES = [_number, _of_the_graph, _tree, _overwritten, _deleted, _missing, _by_functions]
USES += [_flagged_once, _counted, _hides_a_class_name, _copied]
BREAK = (_hides_a_class_name, _copied)


@pytest.mark.parametrize(("breaks", "dynamic"), [(False, None), (True, None), (False, True)])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_uses_of_attributes(carrier: str, use: Any, breaks: bool, dynamic: bool | None) -> None:
    make = CARRIERS[carrier]

    def program(x: Tensor) -> Any:
        t = make(x)
        found = use(x, t)
        if breaks:
            braze.graph_break()
        return found, dict(vars(t)).keys() if breaks else None, t, x * 3

    eager, ours, status = _both(program, dynamic=dynamic)
    assert ours == eager
    assert not status.calls_left
    if not breaks and use not in BREAK:
        assert not [note for note in status.breaks if note.code in OF_ATTRIBUTES]


def test_a_tensor_that_holds_itself() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y.me = [y]  # type: ignore[attr-defined]
        return y

    y = braze.compile(program, fullgraph=True)(torch.ones(3))
    assert y.me[0] is y  # type: ignore[attr-defined]


def test_what_inputs_have_is_guarded() -> None:
    def program(x: Tensor, p: Tensor) -> Tensor:
        if hasattr(p, "no_decay"):
            return x * p.no_decay
        return x * getattr(p, "scale", 2) + len(vars(p))

    compiled = braze.compile(program, fullgraph=True)
    x, p = torch.ones(3), nn.Parameter(torch.ones(3))
    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: setattr(p, "scale", 3),
        lambda: setattr(p, "other", 3),
        lambda: setattr(p, "no_decay", 5),
        lambda: setattr(p, "no_decay", 6.5),
        lambda: delattr(p, "no_decay"),
        lambda: vars(p).clear(),
    ]
    for change in changes:
        change()
        for _ in range(2):
            torch.testing.assert_close(compiled(x, p), program(x, p))


def test_entries_of_the_dict() -> None:
    def program(x: Tensor, p: Tensor) -> Any:
        vars(p)["a"] = x.sum()
        p.b = 2  # type: ignore[attr-defined]
        p.__dict__.pop("old", None)
        return sorted(vars(p)), p.a + p.b  # type: ignore[attr-defined]

    found = []
    for function in (program, braze.compile(program, fullgraph=True)):
        p = nn.Parameter(torch.ones(3))
        p.old = 1  # type: ignore[attr-defined]
        names, total = function(torch.ones(3), p)
        found.append((names, float(total), list(vars(p)), float(p.a)))  # type: ignore[attr-defined]
    assert found[0] == found[1]


def test_one_graph_serves_all_calls() -> None:
    def program(x: Tensor) -> Tensor:
        y = x @ x
        y.loss_scale = 2.0  # type: ignore[attr-defined]
        P.visited = True  # type: ignore[attr-defined]
        return y * y.loss_scale  # type: ignore[attr-defined,no-any-return]

    compiled = braze.compile(program, fullgraph=True)
    for _ in range(4):
        compiled(torch.ones(3, 3))
    status = braze.status()[-1]
    assert (status.graphs, status.entries, status.recompiles) == (1, 1, 0)


@pytest.mark.parametrize("compiles", [False, True])
def test_a_saved_tensor_has_its_attributes(compiles: bool) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        y.tag = 3  # type: ignore[attr-defined]
        _Kept.apply(y).sum().backward()
        return y

    x = torch.ones(3, requires_grad=True)
    (braze.compile(program) if compiles else program)(x)
    torch.testing.assert_close(x.grad, torch.full((3,), 3.0))


@torch.library.custom_op("braze_tests::scaled_by_tag", mutates_args=())
def scaled_by_tag(x: Tensor) -> Tensor:
    """An operator whose code reads an attribute of its argument."""
    return x * getattr(x, "tag", 5)


@scaled_by_tag.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("carrier", ["input", "parameter", "computed", "new"])
def test_operators_see_attributes(carrier: str) -> None:
    def program(x: Tensor) -> Any:
        with torch.no_grad():
            t = CARRIERS[carrier](x)
            t.tag = 3  # type: ignore[attr-defined]
            return (scaled_by_tag(t),)

    eager, ours, _ = _both(program)
    assert ours == eager
