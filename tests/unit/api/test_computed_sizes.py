"""Sizes and numbers that depend on data: results as eager's at other values, one compile."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

import braze
from braze.trace import Journal
from tests.recorded import recorded

Program = Callable[..., Any]
ASKED = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


def compiles(program: Program, calls: Sequence[Sequence[Any]], **named: Any) -> int:
    """Call the program and its compiled form in one graph, compare, and count the compiles. A run
    that falls back is an error."""
    options = {**ASKED, "suppress_errors": False, "verify": True}
    with recorded() as journal:
        compiled = braze.compile(program, fullgraph=True, options=options, **named)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", braze.errors.BrazeWarning)
        for arguments in calls:
            expected = program(*arguments)
            found = compiled(*arguments)
            torch.testing.assert_close(found, expected)
    assert not journal.fallbacks(), journal.fallbacks()
    return len(journal.records())


def masks(*shape: int) -> list[torch.Tensor]:
    """All, some, one, and no true element, and some again."""
    generator = torch.Generator().manual_seed(1)
    some = [torch.rand(shape, generator=generator) > share for share in (0.3, 0.8, 0.5)]
    one = torch.zeros(shape, dtype=torch.bool)
    one.view(-1)[-1] = True
    return [some[0], torch.ones(shape, dtype=torch.bool), one, one & False, *some[1:]]


def counts(*values: int) -> list[torch.Tensor]:
    return [torch.tensor(value) for value in values]


X = torch.arange(48.0).reshape(8, 6).sin()


def sliced(x: torch.Tensor, n: torch.Tensor) -> Any:
    k = n.item()
    torch._check(k >= 0)
    return x[:k] * 2, x[k:].exp(), x[:, :k].sum(1)


def by_int(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x * int(n) + x.new_ones(8, 6) * int(n + 0.5)


def made(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    k = n.item()
    torch._check_is_size(k)
    return (torch.arange(k).float()[:, None] * x[0] + torch.zeros(k, 6)).relu()


def listed(x: torch.Tensor, n: torch.Tensor) -> Any:
    first, second = torch.stack([n, 8 - n]).tolist()
    top, rest = x.split([first, second])
    return top.exp(), rest.neg() + second


def returned(x: torch.Tensor, n: torch.Tensor) -> Any:
    k = n.item()
    return k, k * 2 + 1, k > 3, x + k


def repeated(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    k = n.item()
    torch._check_is_size(k, max=100)
    return x.sum(0).expand(k, 6).reshape(-1).cos()


ON_NUMBERS = [sliced, by_int, made, listed, returned, repeated]


@pytest.mark.parametrize("program", ON_NUMBERS, ids=lambda p: p.__name__)
def test_numbers(program: Program) -> None:
    calls = [(X, n) for n in counts(3, 5, 1, 0, 8, 2)]
    assert compiles(program, calls) == 1


def nonzero(x: torch.Tensor, mask: torch.Tensor) -> Any:
    places = mask.nonzero()
    return places * 2, x[places[:, 0]].exp()


def masked_rows(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x[mask.any(1)].sin() @ x.mT


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    chosen = x[mask]
    return chosen * 3 - chosen.sum()


def selected(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.masked_select(x, mask).exp()


def positions(x: torch.Tensor, mask: torch.Tensor) -> Any:
    rows, columns = torch.where(mask)
    return rows + columns, torch.argwhere(mask)


def distinct(x: torch.Tensor, mask: torch.Tensor) -> Any:
    numbers = mask.sum(1)
    found, inverse, number = numbers.unique(return_inverse=True, return_counts=True)
    return found * 2, inverse + 1, number, numbers.unique(), torch.unique_consecutive(numbers)


def distinct_rows(x: torch.Tensor, mask: torch.Tensor) -> Any:
    return torch.unique(mask.long(), dim=0), torch.unique(mask.long(), dim=0, return_inverse=True)


def spread(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(mask.sum(1), dim=0).exp()


def written(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[mask] = y[mask] * 2 + 1
    return y


def masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (x[mask] - torch.zeros(6, 8).T[mask]).square().mean()


def expert_layers(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A mixture of experts, each for the rows that are routed to it."""
    choice = mask.sum(1) % 3
    out = torch.zeros_like(x)
    for expert in range(3):
        (rows,) = torch.where(choice == expert)
        weight = torch.full((6, 6), 0.1 * (expert + 1))
        out.index_add_(0, rows, (x[rows] @ weight).relu())
    return out


ON_SIZES = [
    *(nonzero, masked_rows, masked, selected, positions, distinct, distinct_rows, spread),
    *(written, masked_mean, expert_layers),
]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", ON_SIZES, ids=lambda p: p.__name__)
def test_sizes(program: Program, dynamic: bool | None) -> None:
    calls = [(X, mask) for mask in masks(8, 6)]
    if program is masked_mean:  # eager's mean of nothing is no number
        del calls[3]
    assert compiles(program, calls, dynamic=dynamic) == 1


# --- gradients -----------------------------------------------------------------------------------


def scaled(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    k = n.item()
    torch._check(k >= 0)
    return (x[:k].exp() * k) @ torch.ones(6, k)


def view(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    k = n.item()
    torch._check(k >= 0)
    return x[:k]


def routed(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for expert in range(3):
        (rows,) = torch.where(mask.sum(1) % 3 == expert)
        out = out.index_add(0, rows, (x[rows] * (expert + 1)).tanh())
    return out


def loss(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (x.exp()[mask] - 1).square().sum()


DIFFERENTIABLE = [scaled, view, routed, loss, selected, spread, masked_rows]


@pytest.mark.parametrize("program", DIFFERENTIABLE, ids=lambda p: p.__name__)
def test_gradients(journal: Journal, program: Program) -> None:
    on_numbers = program in (scaled, view)
    compiled = braze.compile(program, fullgraph=True, options={**ASKED, "suppress_errors": False})
    for given in counts(3, 5, 1, 0, 8) if on_numbers else masks(8, 6):
        x, y = (X.detach().clone().requires_grad_() for _ in range(2))
        expected, found = program(x, given), compiled(y, given)
        torch.testing.assert_close(found, expected)
        expected.square().sum().backward()
        found.square().sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
    assert not journal.fallbacks(), journal.fallbacks()
    assert len(journal.records()) <= 2


# --- what is asked, and promised -----------------------------------------------------------------


def branching(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    k = n.item()
    return x[:k] * 2 if k > 3 else x - k


def test_a_branch_breaks_the_graph(journal: Journal) -> None:
    compiled = braze.compile(branching, options=ASKED)
    for n in counts(2, 5, 1, 7, 5, 2):
        torch.testing.assert_close(compiled(X, n), branching(X, n))
    # One graph before the branch, one behind it for each way.
    assert len(journal.records()) <= 5
    with pytest.raises(
        braze.errors.GraphBreakError, match=r"(?s)u0 .*torch\._check.*torch\.cond"
    ) as e:
        braze.compile(branching, fullgraph=True, options=ASKED)(X, torch.tensor(2))
    assert "test_computed_sizes.py" in str(e.value)


@pytest.mark.parametrize("program", [sliced, masked, distinct], ids=lambda p: p.__name__)
def test_nothing_is_kept_in_the_graph_unasked(program: Program) -> None:
    given = torch.tensor(3) if program is sliced else masks(8, 6)[0]
    with braze.error_on_graph_break(True), pytest.raises(braze.errors.GraphBreakError):
        braze.compile(program)(X, given)


@pytest.mark.parametrize("setting", ["capture_scalar_outputs", "capture_dynamic_output_shape_ops"])
def test_each_setting_is_for_its_own(setting: str) -> None:
    on_numbers = setting == "capture_scalar_outputs"
    calls = [(sliced, torch.tensor(3)), (masked, masks(8, 6)[0])]
    for number, (program, given) in enumerate(calls):
        compiled = braze.compile(program, options={setting: True})
        if number == 0 if on_numbers else number == 1:
            with braze.error_on_graph_break(True):
                torch.testing.assert_close(compiled(X, given), program(X, given))
        else:
            with braze.error_on_graph_break(True), pytest.raises(braze.errors.GraphBreakError):
                compiled(X, given)


def promising(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    k = n.item()
    torch._check(k >= 2, lambda: "too few")
    torch._check(k <= x.shape[0])
    return x[:k] + torch.zeros(k, 6)


def test_a_promise_that_is_not_kept_raises_what_eager_raises(journal: Journal) -> None:
    compiled = braze.compile(promising, fullgraph=True, options=ASKED)
    torch.testing.assert_close(compiled(X, torch.tensor(4)), promising(X, torch.tensor(4)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", braze.errors.BrazeWarning)
        with pytest.raises(RuntimeError, match="too few"):
            compiled(X, torch.tensor(1))
        with pytest.raises(RuntimeError, match="Expected cond to be True"):
            compiled(X, torch.tensor(9))
    torch.testing.assert_close(compiled(X, torch.tensor(8)), promising(X, torch.tensor(8)))
    assert len(journal.records()) == 1


def test_an_assertion_is_a_promise() -> None:
    """pytest rewrites the assertions of its modules: this program is a text."""
    text = "def program(x, n):\n    k = n.item()\n    assert 0 < k\n    return x[:k].exp()"
    names: dict[str, Any] = {}
    exec(compile(text, __file__, "exec"), names)
    program = names["program"]
    assert compiles(program, [(X, n) for n in counts(3, 5, 8)]) == 1
    compiled = braze.compile(program, fullgraph=True, options=ASKED)
    compiled(X, torch.tensor(3))
    with warnings.catch_warnings(), pytest.raises(AssertionError):
        warnings.simplefilter("ignore", braze.errors.BrazeWarning)
        compiled(X, torch.tensor(0))


def broadcast(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(n.item())


def test_what_was_assumed_is_checked() -> None:
    """Where the sizes broadcast after all, the frame runs eagerly, with a message."""
    whole = braze.compile(broadcast, fullgraph=True, options=ASKED)
    torch.testing.assert_close(whole(X, torch.tensor(6)), broadcast(X, torch.tensor(6)))
    with pytest.raises(braze.errors.LeftToEagerError, match="u0"):
        whole(X, torch.tensor(1))
    compiled = braze.compile(broadcast, options=ASKED)
    torch.testing.assert_close(compiled(X, torch.tensor(6)), broadcast(X, torch.tensor(6)))
    with pytest.warns(braze.errors.BrazeWarning, match=r"test_computed_sizes.py:\d+.*u0"):
        torch.testing.assert_close(compiled(X, torch.tensor(1)), broadcast(X, torch.tensor(1)))
    with pytest.raises(RuntimeError, match="must match"):
        compiled(X, torch.tensor(4))


def folded(x: torch.Tensor, mask: torch.Tensor) -> Any:
    return x[mask].max(), x[mask].squeeze(0)


@pytest.mark.filterwarnings("ignore::braze.errors.BrazeWarning")
def test_small_sizes_that_change_the_result() -> None:
    compiled = braze.compile(folded, options=ASKED)
    some, _, one, none, *_ = masks(8, 6)
    for mask in (some, one):
        torch.testing.assert_close(compiled(X, mask), folded(X, mask))
    with pytest.raises(RuntimeError):
        compiled(X, none)


@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_of_planned_memory_of_computed_length(dynamic: bool) -> None:
    """Their lengths are not known when memory is laid out."""

    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= x.shape[0])
        square = (x @ x.mT).sin().exp()
        return square[:k] @ square

    sizes = [X] * 4 if not dynamic else [X, X[:5], X.repeat(3, 1), X]
    calls = [(x, torch.tensor(k)) for x, k in zip(sizes, (3, 1, 8, 0))]
    assert compiles(program, calls, dynamic=dynamic) == 1


def test_an_item_at_a_number_and_its_text() -> None:
    def program(x: torch.Tensor, n: torch.Tensor) -> Any:
        k = n.item()
        y = x.clone()
        y[k, 1:] = x[:, k].sum()
        return x[k] + x[..., k].sum(), y

    assert compiles(program, [(X, n) for n in counts(3, 0, 5, 2)]) == 1

    def by_tensors(x: torch.Tensor, n: torch.Tensor) -> Any:
        y = x.clone()
        y[n, 1:] = 3
        y[:, n] += x[n, ..., None][0]
        y[n:] *= 2
        rows = torch.tensor([1, 0])
        return y, x[rows, n], x[n, rows, None], x[n.item()][x[n] > 0].sum()

    assert compiles(by_tensors, [(X, n) for n in counts(3, 0, 5, 2)]) == 1

    def text(x: torch.Tensor, n: torch.Tensor) -> Any:
        return x * 2, f"{n.item()} rows", str(n.item())

    compiled = braze.compile(text, options=ASKED)
    for n in counts(3, 5, 0):
        found, expected = compiled(X, n), text(X, n)
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]


# --- what only raises, or only warns, where numbers do not fit --------------------------------


def between(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    k = n.item()
    assert 0 < k < 8, "between"
    return x[:k] * 2


def raising(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    k = int(n)
    if k < 1 or not k < 8:
        raise ValueError(f"not {k}")
    return x[:k] * 2


def as_long(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    some = x[:, 0][x[:, 0] > x[n, 0]]
    assert some.shape == x[2:5, 0].shape
    return some * x[2:5, 0]


@pytest.mark.parametrize("program", [between, raising], ids=lambda p: p.__name__)
def test_a_branch_that_raises_is_a_check_of_numbers(program: Program) -> None:
    assert compiles(program, [(X, n) for n in counts(3, 5, 1, 7)]) == 1


def sorted_rows() -> torch.Tensor:
    return torch.arange(8.0)[:, None] * torch.ones(6)


def test_shapes_that_are_asserted_to_be_equal() -> None:
    assert compiles(as_long, [(sorted_rows(), torch.tensor(4))]) == 1


@pytest.mark.filterwarnings("ignore::braze.errors.BrazeWarning")
@pytest.mark.parametrize(
    ("program", "n"), [(between, 8), (between, 0), (raising, 0), (raising, 9), (as_long, 5)]
)
def test_what_does_not_hold_raises_as_the_program_does(program: Program, n: int) -> None:
    compiled = braze.compile(program, fullgraph=True, options=ASKED, backend="aot_eager")
    compiled(sorted_rows(), torch.tensor(4))
    with pytest.raises(Exception) as expected:
        program(sorted_rows(), torch.tensor(n))
    with pytest.raises(type(expected.value)) as found:
        compiled(sorted_rows(), torch.tensor(n))
    assert str(found.value) == str(expected.value)


LOSSES = [functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_losses_of_masked_values(loss: Program) -> None:
    def program(x: torch.Tensor, mask: torch.Tensor) -> Any:
        return loss(x[mask], (x * 0.5)[mask]), loss(x[x > 0.1], torch.zeros_like(x[x > 0.1]))

    assert compiles(program, [(X, mask) for mask in (masks(8, 6)[0], masks(8, 6)[1])]) == 1


@pytest.mark.filterwarnings("ignore:Using a target size", "ignore::braze.errors.BrazeWarning")
def test_losses_that_broadcast() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(x[x > 0], y)

    compiled = braze.compile(program, options=ASKED, backend="aot_eager")
    for y in (torch.ones(3), torch.ones(1), torch.ones(3)):
        x = torch.tensor([1.0, -2.0, 3.0, 4.0])
        torch.testing.assert_close(compiled(x, y), program(x, y))
    with pytest.raises(RuntimeError):
        compiled(x, torch.ones(2))


def test_broadcasting_of_symbolic_sizes() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first, second = torch.broadcast_tensors(x, y[:1])
        return first * second

    calls = [(torch.randn(n, 3), torch.randn(n, 3)) for n in (4, 7, 5)]
    assert compiles(program, calls, dynamic=True) == 1
