"""`torch.autograd.Function` of programs: one graph, eager's gradients and state."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import braze
from braze.trace import Journal
from braze.tracing.fake_tensor import TracedTensor
from tests.unit.capture.test_backward import breaks_of


class Reverse(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return -ctx.scale * gradient, None


class Identity(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


class Exp(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * y * 2


class Product(Function):
    """With `setup_context`, a default argument, several results and one without gradients."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, k: float = 2.0) -> Any:
        return x @ w, (x * k).sum(), w.argmax()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, k = inputs
        ctx.save_for_backward(x, w)
        ctx.mark_non_differentiable(output[2])
        ctx.k = k

    @staticmethod
    def backward(ctx: Any, g: Tensor, s: Tensor, last: Tensor) -> Any:
        x, w = ctx.saved_tensors
        assert last.dtype is torch.int64 and not torch.is_grad_enabled()
        first = g @ w.t() + s * ctx.k * 3 if ctx.needs_input_grad[0] else None
        second = x.t() @ g * 5 + last if ctx.needs_input_grad[1] else None
        return first, second, None


class Optional(Function):
    """Which gradients come in is the program's business."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Any:
        if first is None:
            return None if second is None else second * 7
        return first * 5 if second is None else first + second * 11


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 4


class Clipped(Function):
    """Saves what it computed on the way, and decides by tensors alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        inside = (x.abs() < 1).to(x.dtype)
        ctx.inside = inside
        ctx.shape = x.shape
        return x.clamp(-1, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return (gradient * ctx.inside).reshape(ctx.shape) + 0.1


class Vjp(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def vjp(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 9


def reverse(x: Tensor, w: Tensor) -> Tensor:
    return (Reverse.apply(x.sin(), 0.5) * w.sum()).exp()


def identity(x: Tensor, w: Tensor) -> Tensor:
    return Identity.apply(x.sin()).cos() + w.sum()


def saved_result(x: Tensor, w: Tensor) -> Tensor:
    return Exp.apply(x @ w) + Exp.apply(w).sum()


def several(x: Tensor, w: Tensor) -> Tensor:
    a, b, c = Product.apply(x.sin(), w)
    return a.sum() * 2 + b + c


def one_of_several(x: Tensor, w: Tensor) -> Tensor:
    return Product.apply(x, w, 3.0)[1] * w.detach().sum()


def no_gradient_of_input(x: Tensor, w: Tensor) -> Tensor:
    return Product.apply(x.detach(), w)[0]


def undefined_first(x: Tensor, w: Tensor) -> Tensor:
    return Optional.apply(x)[1] * w.sum()


def undefined_second(x: Tensor, w: Tensor) -> Tensor:
    return Optional.apply(x)[0] * w.sum()


def defined_both(x: Tensor, w: Tensor) -> Tensor:
    a, b = Optional.apply(x)
    return a * w.sum() + b


def dirty(x: Tensor, w: Tensor) -> Tensor:
    y = x.sin()
    z = InPlace.apply(y)
    return y * 2 + z.cos() + w.sum()


def dirty_view(x: Tensor, w: Tensor) -> Tensor:
    y = x.sin()
    InPlace.apply(y[0])
    return y * 2 + w.sum()


def attribute(x: Tensor, w: Tensor) -> Tensor:
    return Clipped.apply(x * 2) * w.sum()


def called_vjp(x: Tensor, w: Tensor) -> Tensor:
    return Vjp.apply(x) * w.sum()


def written_result(x: Tensor, w: Tensor) -> Tensor:
    y = Vjp.apply(x)
    y.mul_(2)
    return y * w.sum()


def twice(x: Tensor, w: Tensor) -> Tensor:
    return Product.apply(x, Product.apply(w, w.t())[0])[0]


def without_gradients(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        y = Exp.apply(x)
    return y @ w


PROGRAMS: list[Callable[[Tensor, Tensor], Tensor]] = [
    reverse,
    identity,
    saved_result,
    several,
    one_of_several,
    no_gradient_of_input,
    undefined_first,
    undefined_second,
    defined_both,
    dirty,
    dirty_view,
    attribute,
    called_vjp,
    written_result,
    twice,
    without_gradients,
]


def living_fakes() -> set[int]:
    gc.collect()
    return {id(o) for o in gc.get_objects() if type(o) is TracedTensor}


def leaves() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 4).requires_grad_(), torch.randn(4, 5).requires_grad_()


def same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_backward_afterwards(journal: Journal, program: Callable[..., Tensor]) -> None:
    compiled = braze.compile(program, fullgraph=True)
    expected, actual = leaves(), leaves()
    for _ in range(2):
        result = program(*expected)
        found = compiled(*actual)
        torch.testing.assert_close(found, result)
        result.sum().backward()
        found.sum().backward()
    same(actual, expected)
    assert breaks_of(compiled) == []
    assert not any(record.fallbacks for record in journal.records())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_backward_in_the_frame(program: Callable[..., Tensor]) -> None:
    before = living_fakes()

    def step(x: Tensor, w: Tensor) -> Tensor:
        loss = program(x, w).sum()
        loss.backward()
        return loss.detach()

    compiled = braze.compile(step, fullgraph=True)
    expected, actual = leaves(), leaves()
    for _ in range(2):
        torch.testing.assert_close(compiled(*actual), step(*expected))
    same(actual, expected)
    assert breaks_of(compiled) == []
    assert living_fakes() == before


# Product's backward raises where it is differentiated. Optional's asks which gradients there are:
# one call of it in eager is two here, each with some of them.
DIFFERENTIABLE = [
    program for program in PROGRAMS if not {"Product", "Optional"} & {*program.__code__.co_names}
]


def gradients_of_gradients(program: Callable[..., Tensor]) -> list[Any]:
    """First and second derivatives, or what is raised instead of the second ones."""
    x, w = leaves()
    found = program(x, w)
    first = torch.autograd.grad((found * found).sum(), (x, w), create_graph=True, allow_unused=True)
    try:
        torch.autograd.backward([(g * g).sum() for g in first if g is not None and g.requires_grad])
    except RuntimeError as problem:
        return [*first, type(problem), str(problem)]
    return [*first, x.grad, w.grad]


@pytest.mark.parametrize("program", DIFFERENTIABLE, ids=lambda p: p.__name__)
def test_second_backward_is_as_in_eager(program: Callable[..., Tensor]) -> None:
    expected = gradients_of_gradients(program)
    found = gradients_of_gradients(braze.compile(program, backend="aot_eager", fullgraph=True))
    for actual, wanted in zip(found, expected, strict=True):
        if isinstance(wanted, Tensor):
            torch.testing.assert_close(actual, wanted)
        else:
            assert actual == wanted


@pytest.mark.parametrize("needs_gradients", [False, True])
def test_a_dirty_argument_is_the_result(needs_gradients: bool) -> None:
    def f(x: Tensor) -> Any:
        y = InPlace.apply(x)
        return y, y is x

    def called(function: Callable[[Tensor], Any]) -> tuple[bool, bool, list[Any]]:
        x = torch.ones(3, requires_grad=needs_gradients) * 1
        y, inside = function(x)
        return inside, y is x, x.tolist()

    expected = called(f)
    assert expected[:2] == (True, True)
    assert called(braze.compile(f, backend="aot_eager", fullgraph=True)) == expected


def test_a_view_of_an_input_that_leaves_is_made_by_eager() -> None:
    """It shares the input's memory and has a gradient of its own: no graph says that."""

    def f(x: Tensor) -> Tensor:
        return Reverse.apply(x, 2.0)

    compiled = braze.compile(f)
    x = leaves()[0]
    y = compiled(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((3, 4), -2.0))
    assert y.data_ptr() == x.data_ptr()


class Counting(Function):
    calls: list[int] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Counting.calls.append(1)
        return gradient * 2


def test_a_backward_with_effects() -> None:
    """Afterwards it is eager's business; in the frame the effect follows the graph."""
    x = leaves()[0]
    compiled = braze.compile(lambda x: Counting.apply(x) * 2)
    y = compiled(x)
    assert Counting.calls == []
    y.sum().backward()
    assert Counting.calls == [1] and len(breaks_of(compiled)) == 1

    def step(x: Tensor) -> None:
        (Counting.apply(x) * 2).sum().backward()

    x = leaves()[0]
    braze.compile(step, fullgraph=True)(x)
    assert Counting.calls == [1, 1]
    assert x.grad is not None and torch.equal(x.grad, torch.full((3, 4), 4.0))


def test_saved_and_then_written_to() -> None:
    """Eager's error, from eager."""

    def f(x: Tensor) -> Tensor:
        y = Exp.apply(x)
        z = y * 2
        y.add_(1)
        return z

    x = leaves()[0]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        braze.compile(f)(x).sum().backward()


class Wrong(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("mine")


def test_a_backward_that_raises() -> None:
    x = leaves()[0]
    y = braze.compile(lambda x: Wrong.apply(x) * 2)(x)
    with pytest.raises(ValueError, match="mine"):
        y.sum().backward()


def test_other_sizes() -> None:
    compiled = braze.compile(lambda x: (Exp.apply(x) * 2).sum())
    for size in (3, 5, 7):
        x = torch.randn(size, requires_grad=True)
        compiled(x).backward()
        torch.testing.assert_close(x.grad, x.detach().exp() * 4)


class Own(torch.autograd.Function):
    """Its methods disagree, so that which one was asked shows."""

    @staticmethod
    def forward(x: Any) -> Any:
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 100

    @staticmethod
    def jvp(ctx: Any, tangent: Any) -> Any:
        return tangent * 7

    @staticmethod
    def vmap(info: Any, dims: Any, x: Any) -> Any:
        return torch.cos(x), dims[0]


def in_dual_level(x: Tensor) -> Any:
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        made = Own.apply(forward_ad.make_dual(x, torch.ones(3)))
        return forward_ad.unpack_dual(made).tangent


TRANSFORMED: dict[str, Callable[[Tensor], Any]] = {
    "jvp": lambda x: torch.func.jvp(Own.apply, (x,), (torch.ones(3),))[1],
    "jvp around more": lambda x: torch.func.jvp(
        lambda t: Own.apply(t * 2) + t, (x,), (torch.ones(3),)
    )[1],
    "jacfwd": lambda x: torch.func.jacfwd(Own.apply)(x),
    "grad": lambda x: torch.func.grad(lambda t: Own.apply(t).sum())(x),
    "vjp": lambda x: torch.func.vjp(Own.apply, x)[1](torch.ones(3))[0],
    "vmap": lambda x: torch.vmap(Own.apply)(x),
    "vmap of grad": lambda x: torch.vmap(torch.func.grad(lambda t: Own.apply(t)))(x),
    "dual level": in_dual_level,
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_ask_its_own_methods(name: str) -> None:
    program = TRANSFORMED[name]
    compiled = braze.compile(program, backend="aot_eager")
    found = []
    for function in (program, compiled, compiled):
        try:
            found.append(function(torch.tensor([0.5, 1.0, -2.0])).tolist())
        except RuntimeError as error:
            found.append(str(error))
    assert found[0] == found[1] == found[2]


# Where the class of nodes is written: in PyTorch, or in Braze.
_OF_CLASSES = {"__firstlineno__", "__static_attributes__"}


def _attributes_of_nodes() -> list[str]:
    made = Own.apply(torch.ones(2, requires_grad=True)).grad_fn
    return sorted(
        set(dir(made)) - {"__dict__", "__module__", "__weakref__", *dir(object)} - _OF_CLASSES
    )


def _shown(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_shown, value))
    return type(value).__name__ if callable(value) or value is None else repr(value)[:30]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("before", [True, False], ids=["asked before saving", "asked after it"])
def test_ctx_has_what_nodes_have(before: bool) -> None:
    """Each attribute of autograd's node, asked of `ctx`: eager's answer, or its error."""
    for name in [*_attributes_of_nodes(), "of_nobody"]:
        seen: list[Any] = []

        class Asking(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, w: Any, name: str, seen: Any) -> Any:
                if not before:
                    ctx.save_for_backward(x, w)
                try:
                    seen.append(_shown(getattr(ctx, name)))
                except (AttributeError, RuntimeError) as error:
                    seen.append(str(error)[:40])
                ctx.save_for_backward(x, w)
                return x * w

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                x, w = ctx.saved_tensors
                return gradient * w, gradient * x, None, None

        def program(x: Any, w: Any, name: Any = name, seen: Any = seen, cls: Any = Asking) -> Any:
            return cls.apply(x, w, name, seen).sin()

        answers = []
        for function in (program, braze.compile(program, backend="aot_eager")):
            seen.clear()
            x = torch.ones(2, requires_grad=True)
            function(x, torch.ones(2) * 3).sum().backward()
            assert x.grad is not None
            answers.append((list(seen), x.grad.tolist()))
        assert answers[0] == answers[1], name


class OnceCubed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


@pytest.mark.parametrize("scaled", [False, True])
def test_once_differentiable_gradient_has_eagers_history(scaled: bool) -> None:
    """It has one where that of what came in has, and its second derivative is eager's error."""

    def program(x: Tensor) -> Tensor:
        y = OnceCubed.apply(x)
        return y * y if scaled else y  # type: ignore[no-any-return]

    def ending(function: Callable[[Tensor], Tensor]) -> Any:
        x = torch.arange(1.0, 4.0, requires_grad=True)
        (found,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        try:
            return found.tolist(), found.requires_grad, found.sum().backward()
        except RuntimeError as error:
            return found.tolist(), found.requires_grad, str(error)

    expected = ending(program)
    assert (expected[1] is scaled and "differentia" in expected[2]) or "does not" in expected[2]
    assert ending(braze.compile(program, fullgraph=True)) == expected


def test_a_backward_that_is_differentiable_once_is_not_differentiated_twice() -> None:
    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x.exp())
            return x.exp()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = gradients[0] * ctx.saved_tensors[0]
            return made

    def function(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Exponential.apply(x)  # type: ignore[no-untyped-call]
        (gradient,) = torch.autograd.grad(made.pow(2).sum(), x, create_graph=True)
        return (gradient * x).sum()

    loss = braze.compile(function)(torch.ones(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="once_differentiable"):
        loss.backward()
