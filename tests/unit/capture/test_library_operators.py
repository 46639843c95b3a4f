"""Operators of `torch.library` with a registered gradient: one graph, eager's gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import braze
from braze.compat.torch.custom_ops import definition_of, registered_gradient
from braze.report.explain import summarise
from braze.trace import Journal
from tests.unit.capture.test_backward import breaks_of

NAME = "braze_library_operators"


@torch.library.custom_op(f"{NAME}::scaled", mutates_args=())
def scaled(x: Tensor, w: Tensor, scale: float = 2.0) -> Tensor:
    return x @ w * scale


@scaled.register_fake
def _(x: Tensor, w: Tensor, scale: float = 2.0) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[1])


def _keep_scaled(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, w, ctx.scale = inputs
    ctx.save_for_backward(x, w)


def _scaled_backward(ctx: Any, gradient: Tensor) -> Any:
    x, w = ctx.saved_tensors
    # Unlike what autograd would compute itself: three times that of w.
    first = gradient @ w.t() * ctx.scale if ctx.needs_input_grad[0] else None
    second = x.t() @ gradient * ctx.scale * 3 if ctx.needs_input_grad[1] else None
    return first, second, None


scaled.register_autograd(_scaled_backward, setup_context=_keep_scaled)


@torch.library.custom_op(f"{NAME}::pair", mutates_args=())
def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.argmax(-1)


@pair.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.int64)


def _keep_pair(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(inputs[0])


def _pair_backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
    (x,) = ctx.saved_tensors
    return scaled(gradient.reshape(1, -1), x.reshape(-1, 1), 0.5) * x.cos()


pair.register_autograd(_pair_backward, setup_context=_keep_pair)


@torch.library.custom_op(f"{NAME}::bare", mutates_args=())
def bare(x: Tensor) -> Tensor:
    return x * 1.0


bare.register_fake(torch.empty_like)
bare.register_autograd(lambda ctx, gradient: gradient * 5)


@torch.library.custom_op(f"{NAME}::total", mutates_args=())
def total(xs: list[Tensor]) -> Tensor:
    return torch.stack(xs).sum(0)


total.register_fake(lambda xs: torch.empty_like(xs[0]))
total.register_autograd(
    lambda ctx, gradient: [gradient * 2] * ctx.count,
    setup_context=lambda ctx, inputs, output: setattr(ctx, "count", len(inputs[0])),
)


@torch.library.custom_op(f"{NAME}::named", mutates_args=())
def named(x: Tensor, *, by: float) -> Tensor:
    return x * by


named.register_fake(lambda x, *, by: torch.empty_like(x))
named.register_autograd(
    lambda ctx, gradient: gradient * ctx.by * 2,
    setup_context=lambda ctx, inputs, keyword_only_inputs, output: setattr(
        ctx, "by", keyword_only_inputs["by"]
    ),
)


@torch.library.custom_op(f"{NAME}::cut", mutates_args=())
def cut(x: Tensor, sizes: list[int]) -> tuple[Tensor, list[Tensor]]:
    return x.sum(), [piece.clone() for piece in x.split(sizes)]


@cut.register_fake
def _(x: Tensor, sizes: list[int]) -> tuple[Tensor, list[Tensor]]:
    return x.new_empty(()), [x.new_empty(size, *x.shape[1:]) for size in sizes]


cut.register_autograd(
    lambda ctx, of_sum, of_pieces: (torch.cat(of_pieces) * 3 + of_sum, None),
    setup_context=lambda ctx, inputs, output: None,
)

torch.library.define(f"{NAME}::powers", "(Tensor x, Tensor w) -> (Tensor, Tensor)")


@torch.library.impl(f"{NAME}::powers", "default")
def _(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x * x, w * w


torch.library.register_fake(f"{NAME}::powers")(
    lambda x, w: (torch.empty_like(x), torch.empty_like(w))
)
torch.library.register_autograd(
    f"{NAME}::powers",
    lambda ctx, first, second: (first * ctx.saved_tensors[0] * 5, second),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def of_lists(x: Tensor, w: Tensor) -> Tensor:
    return total([x.sin(), x * 2, x]) @ w


def of_keywords(x: Tensor, w: Tensor) -> Tensor:
    return named(x.sin(), by=3.0) @ named(by=2.0, x=w)


def lists_of_results(x: Tensor, w: Tensor) -> Tensor:
    of_all, (first, second) = cut(x.sin(), [1, 2])
    return (first * 2 + second * of_all).sum(0) @ w


def registered_by_name(x: Tensor, w: Tensor) -> Tensor:
    first, second = torch.ops.braze_library_operators.powers(x.sin(), w)
    return first @ second


def by_definition(x: Tensor, w: Tensor) -> Tensor:
    return scaled(x.sin(), w).exp()


def by_packet(x: Tensor, w: Tensor) -> Tensor:
    return torch.ops.braze_library_operators.scaled(x, w=w, scale=0.5).cos()


def by_overload(x: Tensor, w: Tensor) -> Tensor:
    return torch.ops.braze_library_operators.scaled.default(x, w, 3.0) * x.sum()


def of_one_input(x: Tensor, w: Tensor) -> Tensor:
    return scaled(x.detach(), w) + x.sum()


def two_results(x: Tensor, w: Tensor) -> Tensor:
    y, at = pair(x)
    return (y * 2).sum() + at.sum() * w.sum()


def without_a_context(x: Tensor, w: Tensor) -> Tensor:
    return bare(bare(x) @ w)


def behind_each_other(x: Tensor, w: Tensor) -> Tensor:
    return scaled(scaled(x, w, 0.1), bare(w).t())


def unused(x: Tensor, w: Tensor) -> Tensor:
    scaled(x, w)
    return x.sum() * w


def written_to(x: Tensor, w: Tensor) -> Tensor:
    y = scaled(x, w)
    y.mul_(2)
    return y.sin()


def without_gradients(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        y = scaled(x, w)
    return (y * x.sum()).sum() + w.sum()


PROGRAMS = [
    by_definition, by_packet, by_overload, of_one_input, two_results, without_a_context,
    behind_each_other, unused, written_to, without_gradients, of_lists, of_keywords,
    lists_of_results, registered_by_name,
]  # fmt: skip


def leaves() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)


def gradients(program: Callable[..., Tensor], x: Tensor, w: Tensor) -> list[Any]:
    result = program(x, w)
    given = torch.linspace(0.5, 2, result.numel()).view(result.shape)
    found = torch.autograd.grad(result, (x, w), given, allow_unused=True)
    return [result.detach(), *found]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
def test_backward_afterwards(
    journal: Journal, program: Callable[..., Tensor], backend: str
) -> None:
    expected = gradients(program, *leaves())
    compiled = braze.compile(program, backend=backend)
    for _ in range(3):
        torch.testing.assert_close(gradients(compiled, *leaves()), expected)
    report = summarise("", journal, None)
    assert (report.graph_count, report.break_count, report.fallbacks) == (1, 0, ())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_backward_in_the_frame(program: Callable[..., Tensor]) -> None:
    def step(x: Tensor, w: Tensor) -> Any:
        return gradients(program, x, w)

    expected = step(*leaves())
    compiled = braze.compile(step)
    for _ in range(3):
        torch.testing.assert_close(compiled(*leaves()), expected)
    assert not breaks_of(compiled)


@pytest.mark.parametrize("needed", [*itertools.product((True, False), repeat=2)])
def test_which_inputs_need_gradients(needed: tuple[bool, bool]) -> None:
    x, w = [t.detach().requires_grad_(needs) for t, needs in zip(leaves(), needed, strict=True)]
    compiled = braze.compile(by_definition)
    result, right = compiled(x, w), by_definition(x, w)
    torch.testing.assert_close(result, right)
    assert result.requires_grad == right.requires_grad == any(needed)
    wanted = [t for t in (x, w) if t.requires_grad]
    if wanted:
        torch.testing.assert_close(
            torch.autograd.grad(result.sum(), wanted), torch.autograd.grad(right.sum(), wanted)
        )


def test_it_is_a_node_of_the_graph() -> None:
    x, w = leaves()
    module = braze.export(by_definition)(x, w).graph_module
    operator = torch.ops.braze_library_operators.scaled.default
    assert [n for n in module.graph.nodes if n.target is operator]
    torch.testing.assert_close(gradients(module, x, w), gradients(by_definition, x, w))


def test_sizes_that_change() -> None:
    compiled = braze.compile(by_definition)
    for rows in (3, 5, 7, 9):
        x, w = torch.randn(rows, 4, requires_grad=True), leaves()[1]
        torch.testing.assert_close(gradients(compiled, x, w), gradients(by_definition, x, w))
    assert not breaks_of(compiled)


FACTOR = [2.0]


@torch.library.custom_op(f"{NAME}::by_factor", mutates_args=())
def by_factor(x: Tensor) -> Tensor:
    return x * 1.0


by_factor.register_fake(torch.empty_like)
by_factor.register_autograd(lambda ctx, gradient: gradient * FACTOR[0])


def test_what_a_backward_reads_is_guarded() -> None:
    """PyTorch calls it from C++, where nobody would see it."""
    compiled = braze.compile(lambda x: by_factor(x).sum())
    for factor in (2.0, 3.0):
        FACTOR[0] = factor
        x = torch.ones(3, requires_grad=True)
        (found,) = torch.autograd.grad(compiled(x), x)
        torch.testing.assert_close(found, torch.full((3,), factor))


@torch.library.custom_op(f"{NAME}::without_fake", mutates_args=())
def without_fake(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op(f"{NAME}::positive", mutates_args=())
def positive(x: Tensor) -> Tensor:
    return x[x > 0].clone()


@positive.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@pytest.mark.parametrize("operator", [without_fake, positive], ids=["no fake", "data"])
def test_unknown_sizes_break(journal: Journal, operator: Any) -> None:
    def program(x: Tensor) -> Tensor:
        return operator(x.sin()).cos()  # type: ignore[no-any-return]

    x = torch.linspace(-1, 1, 9)
    torch.testing.assert_close(braze.compile(program)(x), program(x))
    report = summarise("", journal, None)
    assert [reason.code for reason in report.break_reasons] == ["operator-without-fake"]
    assert not report.fallbacks


def test_what_has_a_registered_gradient() -> None:
    assert registered_gradient(definition_of(torch.ops.aten.sin)) is None
    assert registered_gradient(definition_of(torch.ops.braze_library_operators.positive)) is None
    found = registered_gradient(definition_of(torch.ops.braze_library_operators.scaled.default))
    assert found is not None and found.backward is _scaled_backward


# --- operators that return nothing, without a fake implementation ---------------------------------

WRITING = {
    "(Tensor(a!) z, Tensor x) -> ()": lambda op, z, x: op(z, x),
    "(Tensor x, *, Tensor(a!)? z=None) -> ()": lambda op, z, x: op(x, z=z),
    "(Tensor x, Tensor[] y, Tensor(a!)? z, SymInt n) -> ()": lambda op, z, x: op(x, [x, x], z, 2),
    "(Tensor(a!)[] z, Tensor x) -> ()": lambda op, z, x: op([z], x),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("place", range(len(WRITING)))
def test_operator_without_results_needs_no_fake(place: int, backend: str) -> None:
    schema, use = [*WRITING.items()][place]
    calls: list[Any] = []

    def kernel(*args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        z = given["z"][0] if isinstance(given["z"], (list, tuple)) else given["z"]
        calls.append(z)
        z.add_(given["x"].sum())

    with torch.library._scoped_library("braze_without_results", "FRAGMENT") as library:
        library.define(f"write_{place}{schema}")
        library.impl(f"write_{place}", kernel, "CPU")
        operator = getattr(torch.ops.braze_without_results, f"write_{place}").default
        names = [argument.name for argument in operator._schema.arguments]

        def program(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            scaled = z * 2
            use(operator, z, x + 1)
            use(operator, scaled, x)
            return scaled + z

        compiled = braze.compile(program, backend=backend, fullgraph=True)
        for size in (3, 3, 5):
            x, z = torch.randn(size), torch.randn(size)
            ours = z.clone()
            expected, count = program(z, x), len(calls)
            torch.testing.assert_close(compiled(ours, x), expected)
            torch.testing.assert_close(ours, z)
            assert len(calls) == 2 * count
            calls.clear()


EMPTY_LISTS: list[list[Tensor]] = []


@torch.library.custom_op(f"{NAME}::scale_all", mutates_args={"tensors"})
def scale_all(tensors: list[Tensor], scale: float) -> None:
    if not tensors:
        EMPTY_LISTS.append(tensors)
    for tensor in tensors:
        tensor.mul_(scale)


@pytest.mark.parametrize("count", [0, 2])
def test_lists_of_written_tensors_may_be_empty(count: int) -> None:
    """The operator runs at each call, and not while it is captured."""

    def f(x: Tensor) -> Tensor:
        made = [x + number for number in range(count)]
        scale_all(made, 2.0)
        return x + sum(made)

    compiled, x = braze.compile(f, fullgraph=True), torch.ones(3)
    expected = f(x)
    EMPTY_LISTS.clear()
    for _ in range(3):
        torch.testing.assert_close(compiled(x), expected)
    assert len(EMPTY_LISTS) == (0 if count else 3)
