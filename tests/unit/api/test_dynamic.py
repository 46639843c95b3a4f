"""Sizes that vary, from the face to the kernels: results as eager's, and how many compiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.trace import Journal
from tests.recorded import recorded

rand = torch.randn


def compiles(
    program: Callable[..., Any], calls: Iterable[Sequence[Any]], dynamic: bool | None, **named: Any
) -> int:
    """Call the program and its compiled form, compare, and count the compiles."""
    with recorded() as journal:
        compiled = braze.compile(
            program, dynamic=dynamic, options={"suppress_errors": False, "verify": True}, **named
        )
    torch.manual_seed(0)
    with torch.no_grad():
        for arguments in calls:
            expected = program(*arguments)
            found = compiled(*arguments)
            torch.testing.assert_close(found, expected)
            if isinstance(expected, torch.Tensor):
                assert found.stride() == expected.stride()
    assert not journal.fallbacks(), journal.fallbacks()
    return len(journal.records())


def flattened(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.view(x.shape[0], -1) + 1).sum(1)


def projected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = nn.functional.linear(x.reshape(-1, 8), w).softmax(-1)
    return y.view(x.size(0), x.size(1), -1).transpose(1, 2).contiguous().flatten(1)


def joined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.cat([x, y], 1)[:, 1:]
    return z @ z.mT.contiguous()


def normalised(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return nn.functional.layer_norm(x, (16,), w, b).mean(0)


def weighted(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1) + x.max(-1, keepdim=True).values


PROGRAMS: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = [
    (flattened, [(rand(n, 4, 8),) for n in (6, 3, 7, 16, 2)]),
    (projected, [(rand(b, s, 8), rand(10, 8)) for b, s in ((6, 4), (3, 4), (3, 5), (9, 2))]),
    (joined, [(rand(b, s, 8), rand(b, t, 8)) for b, s, t in ((6, 4, 5), (3, 4, 4), (2, 5, 9))]),
    (normalised, [(rand(s, t, 16), rand(16), rand(16)) for s, t in ((4, 5), (2, 3), (40, 50))]),
    (weighted, [(rand(s, t),) for s, t in ((4, 5), (6, 7), (2, 3), (40, 500))]),
]


@pytest.mark.parametrize(
    ("program", "calls"), PROGRAMS, ids=lambda row: getattr(row, "__name__", "")
)
def test_one_compile_for_all_sizes(program: Any, calls: Any) -> None:
    assert compiles(program, calls, dynamic=True) == 1


def test_static_compiles_for_each_size() -> None:
    assert compiles(flattened, PROGRAMS[0][1], dynamic=False) == 5


def test_ints_are_symbols_too() -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        return (x * n)[:, :n].sum(0), n + 1, x.shape, [n // 2, -n % 3]

    assert compiles(program, [(rand(4, 20), n) for n in (3, 5, 17, 19)], dynamic=True) == 1


def test_zero_and_one_have_compiles_of_their_own() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.flatten(1) + x.shape[0]).sum(1)

    calls = [(rand(n, 4, 8),) for n in (6, 1, 0, 5, 1, 0)]
    assert compiles(program, calls, dynamic=True) == 3


def test_other_strides_compile_again() -> None:
    calls: list[Any] = [(rand(6, 5),), (rand(5, 6).t(),), (rand(7, 3).t(),), (rand(8, 9),)]
    calls += [(rand(1, 5).expand(4, 5),), (rand(4, 12)[:, ::2],)]
    assert compiles(weighted, calls, dynamic=True) == 4


def test_control_flow_on_sizes_is_guarded() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0) if x.shape[0] > 4 else x.prod(0)

    assert compiles(program, [(rand(n, 3),) for n in (5, 9, 4, 3, 7)], dynamic=True) == 2


def test_writes_and_views_of_inputs(journal: Journal) -> None:
    def program(x: torch.Tensor) -> Any:
        x.add_(1)
        x[:, 1:] *= 2
        return x[1:], x.view(-1), x.shape[0] * 2

    compiled = braze.compile(program, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for size in (3, 5, 8):
            x = rand(size, 4)
            mine = x.clone()
            expected, found = program(x), compiled(mine)
            torch.testing.assert_close(found, expected)
            assert torch.equal(x, mine)
            assert found[0].data_ptr() == mine[1:].data_ptr()
    assert len(journal.records()) == 1


def test_breaks_with_symbols() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0] * 2
        y = x.sum(1)
        braze.graph_break()
        return y.repeat(2)[:n] + n

    assert compiles(program, [(rand(n, 3),) for n in (5, 9, 4)], dynamic=True) <= 4


def test_gradients_through_symbolic_graphs() -> None:
    compiled = braze.compile(projected, dynamic=True)
    for batch in (3, 5):
        x, w = rand(batch, 4, 8), rand(10, 8, requires_grad=True)
        (expected,) = torch.autograd.grad(projected(x, w).square().sum(), w)
        (found,) = torch.autograd.grad(compiled(x, w).square().sum(), w)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_backends(backend: str) -> None:
    compiled = braze.compile(projected, dynamic=True, backend=backend)
    with torch.no_grad():
        for batch in (3, 5):
            arguments = rand(batch, 4, 8), rand(10, 8)
            torch.testing.assert_close(compiled(*arguments), projected(*arguments))


# --- what users say about dimensions -------------------------------------------------------------


def compiled_marked(program: Any, size: int, mark: Any, *later: int) -> int:
    with recorded() as journal:
        compiled = braze.compile(program)
    with torch.no_grad():
        for number, n in enumerate((size, *later)):
            x = rand(n, 3)
            if not number:
                mark(x)
            torch.testing.assert_close(compiled(x), program(x))
    return len(journal.records())


def test_marked_dimensions_are_symbols_at_once() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0) * x.shape[0]

    assert compiled_marked(program, 5, lambda x: braze.mark_dynamic(x, 0), 7, 9) == 1
    assert compiled_marked(program, 5, lambda x: braze.maybe_mark_dynamic(x, -2), 7, 9) == 1
    assert compiled_marked(program, 5, lambda x: braze.mark_unbacked(x, [0]), 7, 9) == 1


def test_marked_dimensions_must_stay_symbols() -> None:
    def fixed(x: torch.Tensor) -> torch.Tensor:
        return x.view(5, 3) + 1

    def narrowed(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] < 8 else x

    with pytest.raises(braze.exc.ConstraintViolated, match=r"test_dynamic.py:\d+: L\['x'\]"):
        compiled_marked(fixed, 5, lambda x: braze.mark_dynamic(x, 0))
    with pytest.raises(braze.exc.ConstraintViolated, match=r"allows \[2, 7\]"):
        compiled_marked(narrowed, 5, lambda x: braze.mark_dynamic(x, 0, min=2, max=64))
    with pytest.raises(braze.exc.UserError, match="is 1 at the first call"):
        compiled_marked(fixed, 1, lambda x: braze.mark_dynamic(x, 0, min=1))
    with pytest.raises(braze.exc.UserError, match="no dimension 4"):
        braze.mark_dynamic(rand(3), 4)
    assert compiled_marked(fixed, 5, lambda x: braze.maybe_mark_dynamic(x, 0)) > 0


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("size, least, most", [(20, 2, 10), (3, 4, None), (9, None, 8)])
def test_sizes_outside_the_marked_range(
    size: int, least: int | None, most: int | None, fullgraph: bool
) -> None:
    """At the first call, and at one that comes after calls inside the range."""
    compiled = braze.compile(lambda x: x * 2, fullgraph=fullgraph)
    for inside in (None, 5, 7):
        if inside is not None:
            x = rand(inside, 3)
            braze.mark_dynamic(x, 0, min=least, max=most)
            assert torch.equal(compiled(x), x * 2)
        x = rand(size, 3)
        braze.mark_dynamic(x, 0, min=least, max=most)
        with pytest.raises(
            braze.exc.ConstraintViolated, match=rf"\[{least}, {most}\] and is {size}"
        ):
            compiled(x)


def test_a_backward_must_not_specialise_marked_dimensions() -> None:
    x = rand(6, 5).requires_grad_()
    braze.mark_dynamic(x, 0)
    with pytest.raises(braze.errors.ConstraintViolated, match=r"test_dynamic.py:\d+.*backward"):
        braze.compile(lambda x: torch.cumprod(x, 0).sum())(x)


def test_unbacked_dimensions_answer_no_question() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sum(0) if x.shape[0] > 4 else x

    with pytest.raises(braze.errors.ConstraintViolated, match=r"test_dynamic.py:\d+.*unbacked"):
        compiled_marked(program, 5, lambda x: braze.mark_unbacked(x, 0))
    assert compiled_marked(lambda x: x.exp().sum(0), 5, lambda x: braze.mark_unbacked(x, 0), 9) == 1


def rows(x: torch.Tensor) -> Any:
    return (x * 2).sum(-1), x.t().contiguous(), x.reshape(-1), x[:10].exp(), len(x)


def joined(x: torch.Tensor) -> Any:
    return x.softmax(-1), torch.cat([x, x]), x[1:], x.unsqueeze(0).expand(3, -1, -1), x.mT @ x


def over_columns(x: torch.Tensor) -> Any:
    turned = (x.t() * 3 + 1).sum(0)
    return (
        x * 2,
        turned,
        x.softmax(-1),
        nn.functional.pad(x, (1, 2)),
        x.contiguous().view(-1, 3) + 1,
    )


def compiled_unbacked(
    program: Any, backend: str, *calls: tuple[torch.Tensor, ...], dims: Sequence[int] = (0,)
) -> int:
    """Compiles; dimensions of the first call's tensors are marked."""
    options = {"suppress_errors": False, "verify": True}
    with recorded() as journal:
        compiled = braze.compile(program, options=options, backend=backend)
    for x in calls[0]:
        braze.mark_unbacked(x, dims)
    with torch.no_grad():
        for call in calls:
            expected = program(*call)
            torch.testing.assert_close(compiled(*call), expected)
    assert not journal.fallbacks()
    return len(journal.records())


@pytest.mark.parametrize("first", [5, 0, 1])
@pytest.mark.parametrize("program", [rows, joined], ids=lambda p: p.__name__)
def test_unbacked_dimensions_may_be_zero_or_one(program: Any, first: int) -> None:
    calls = [(rand(n, 4),) for n in (first, 3, 0, 1, 14)]
    backend = "braze" if first == 0 else "aot_eager"
    assert compiled_unbacked(program, backend, *calls) == 1


@pytest.mark.parametrize("first", [4, 1, 0])
def test_unbacked_columns(first: int) -> None:
    calls = [(rand(3, n),) for n in (first, 1, 0, 6)]
    assert compiled_unbacked(over_columns, "aot_eager", *calls, dims=(1,)) == 1
    calls = [(rand(3 * n, n),) for n in (first, 1, 0, 6)]
    assert compiled_unbacked(over_columns, "aot_eager", *calls, dims=(0, 1)) == 1


def test_unbacked_images() -> None:
    weight = rand(2, 3, 3, 3)

    def program(x: torch.Tensor) -> Any:
        return nn.functional.conv2d(x, weight, padding=1).relu().mean((2, 3)), x.flatten(2).mT + 1

    calls = [(rand(2, 3, n, 6),) for n in (1, 4, 2)]
    assert compiled_unbacked(program, "aot_eager", *calls, dims=(2,)) == 1


@pytest.mark.parametrize("first", [4, 0, 1])
def test_unbacked_dimensions_that_have_to_be_equal(first: int) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + y, nn.functional.mse_loss(x, y, reduction="sum")

    calls = [(rand(n, 4), rand(n, 4)) for n in (first, 3, 0, 1)]
    assert compiled_unbacked(program, "aot_eager", *calls) == 1


def promising(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] == y.shape[0], lambda: "not as long")
    torch._check(x.shape[0] >= 3, lambda: "too few")
    return x if x.shape[0] < 2 else x[:3] * y[:3]


def test_what_is_promised_of_unbacked_dimensions(journal: Journal) -> None:
    compiled = braze.compile(promising, backend="aot_eager")
    x, y = rand(4, 2), rand(4, 2)
    for tensor in (x, y):
        braze.mark_unbacked(tensor, 0)
    for pair in ((x, y), (rand(3, 2), rand(3, 2)), (rand(9, 2), rand(9, 2))):
        torch.testing.assert_close(compiled(*pair), promising(*pair))
    assert len(journal.records()) == 1
    with pytest.raises(RuntimeError, match="not as long"):
        compiled(rand(4, 2), rand(5, 2))
    with pytest.raises(RuntimeError, match="too few"):
        compiled(rand(2, 2), rand(2, 2))


def test_gradients_of_unbacked_dimensions(journal: Journal) -> None:
    weight = rand(4, 4).requires_grad_()

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x @ weight).tanh().sum()

    compiled = braze.compile(program, backend="aot_eager", options={"suppress_errors": False})
    for number, n in enumerate((1, 5, 0, 3)):
        x = rand(n, 4)
        if not number:
            braze.mark_unbacked(x, 0)
        (expected,) = torch.autograd.grad(program(x), weight)
        (found,) = torch.autograd.grad(compiled(x), weight)
        torch.testing.assert_close(found, expected)
    assert not journal.fallbacks()


def test_static_dimensions_are_compiled_as_they_are(journal: Journal) -> None:
    compiled = braze.compile(flattened, dynamic=True)
    with torch.no_grad():
        for n in (3, 4, 5):
            x = rand(n, 4, 8)
            braze.mark_static(x)
            compiled(x)
    assert len(journal.records()) == 3


def test_sizes_that_change_become_symbols() -> None:
    calls = [(rand(b, s),) for b, s in ((4, 8), (5, 8), (6, 8), (6, 9), (3, 7), (8, 4))]
    assert compiles(weighted, calls, dynamic=None) == 3


def test_a_growing_cache(journal: Journal) -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = nn.Linear(8, 8)

        def forward(self, x: Any, keys: Any) -> Any:
            keys = torch.cat([keys, self.proj(x)], 1)
            return torch.softmax(x @ keys.mT, -1) @ keys, keys

    model = Cached().eval()
    compiled = braze.compile(model)
    mine = theirs = rand(2, 1, 8)
    with torch.no_grad():
        for _ in range(16):
            x = rand(2, 1, 8)
            found, mine = compiled(x, mine)
            expected, theirs = model(x, theirs)
            torch.testing.assert_close(found, expected)
    assert len(journal.records()) <= 3


def row(x: torch.Tensor, i: int) -> torch.Tensor:
    return x[i] * 2 + x[:, i, None] + x[None, ..., i]


def row_written(x: torch.Tensor, i: int) -> torch.Tensor:
    y = x * 2
    y[i, 1:] = 0
    y[i] += x[i, 0]
    return y


@pytest.mark.parametrize("program", [row, row_written])
def test_an_index_that_changes_is_a_number_in_a_range(program: Callable[..., Any]) -> None:
    x = rand(8, 8)
    calls = [(x, i) for i in (3, 4, 2, 7, 5)]
    assert compiles(program, calls, None) == 2
    assert compiles(program, [(x, i) for i in (-2, -3, -8, -5)], None) == 2
    compiled = braze.compile(program)
    for i in (3, 4, 9):
        if i < 9:
            assert torch.equal(compiled(x, i), program(x, i))
            continue
        with pytest.raises(IndexError):
            compiled(x, i)


def shuffled(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    folded = nn.functional.pixel_unshuffle(x[..., :rows, :columns], 2)
    return nn.functional.pixel_shuffle(folded * 2, 4)


def spaced(x: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(0, 1, x.shape[-1]) + torch.linspace(2.0, -1, steps=x.shape[-1])
    return x * weights.to(x.dtype)


def in_blocks(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    blocks = nn.functional.unfold(x, 2, stride=2)
    return nn.functional.fold(blocks.softmax(1), (rows, columns), 2, stride=2)


@pytest.mark.parametrize(
    "program", [shuffled, spaced, in_blocks], ids=lambda program: program.__name__
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_operators_that_take_sizes_as_numbers(program: Any, dynamic: bool | None) -> None:
    sizes = [(2, 8, 6, 9), (3, 8, 10, 12), (5, 8, 7, 13), (4, 8, 12, 5)]
    calls = [(rand(size),) for size in sizes]
    assert compiles(program, calls, dynamic, backend="aot_eager") <= (1 if dynamic else 2)


def test_gradient_of_symbolically_many_steps(journal: Journal) -> None:
    compiled = braze.compile(spaced, dynamic=True, backend="aot_eager")
    for length in (6, 9, 5):
        mine, theirs = (torch.arange(float(length)).requires_grad_() for _ in range(2))
        compiled(mine).square().sum().backward()
        spaced(theirs).square().sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert len([r for r in journal.records() if "backward" not in r.function]) == 1


def reflected(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(x, (2, 1), mode="reflect")


def largest(x: torch.Tensor) -> torch.Tensor:
    return x.max() - x.min()


@pytest.mark.parametrize(
    ("program", "size"), [(reflected, 2), (largest, 0)], ids=lambda p: getattr(p, "__name__", "")
)
def test_sizes_at_which_the_program_raises_are_no_faults(
    journal: Journal, program: Callable[..., Any], size: int
) -> None:
    compiled = braze.compile(program, dynamic=True, backend="aot_eager")
    for columns in (8, 4, 9):
        x = rand(3, columns)
        torch.testing.assert_close(compiled(x), program(x))
    with pytest.raises(RuntimeError) as expected:
        program(rand(3, size))
    with pytest.raises(RuntimeError) as found:
        compiled(rand(3, size))
    assert str(found.value) == str(expected.value) and not journal.fallbacks()
