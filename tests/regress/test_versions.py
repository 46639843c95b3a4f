"""`_version` after a call: what a program wrote to in place several times counted one write, and a
result none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from tests.recorded import recorded

Made = tuple[Callable[..., Any], tuple[torch.Tensor, ...], dict[str, torch.Tensor]]
PROGRAMS: list[Callable[[], Made]] = []


def program(make: Callable[[], Made]) -> Callable[[], Made]:
    """A function, its arguments, and further tensors to look at."""
    PROGRAMS.append(make)
    return make


@program
def of_an_input() -> Made:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x.mul_(2)
        x[:2].zero_()
        x[x > 1] = 5.0
        return x.sum()

    return f, (torch.ones(4),), {}


@program
def by_out() -> Made:
    def f(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        torch.add(x, 1, out=out)
        torch.mul(out, 2, out=out)
        return out.sum()

    return f, (torch.ones(3), torch.empty(3)), {}


@program
def of_results() -> Made:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x + 1
        first.mul_(2)
        first.add_(1)
        base = x * 2
        base.unsqueeze_(0)
        base.exp_()
        plain = torch.zeros(4).copy_(x)
        return first, base[0, :2], base[0, 2:], plain, x * 3

    return f, (torch.ones(4),), {}


@program
def of_results_with_gradients() -> Made:
    def f(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        saved = (w * 2).exp_().exp_()
        return saved, w * 3

    return f, (torch.full((3,), 0.1, requires_grad=True),), {}


@program
def through_data() -> Made:
    def f(x: torch.Tensor) -> None:
        x.data.add_(1)
        x.add_(2)
        x.data.mul_(2)
        x.mul_(3)

    return f, (torch.ones(3),), {}


@program
def with_a_history() -> Made:
    w = torch.ones(3, requires_grad=True)
    written = torch.zeros(3)

    def f(w: torch.Tensor) -> torch.Tensor:
        written.detach_()
        with torch.enable_grad():
            return _written(written, w)

    return f, (w,), {"written": written}


def _written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    x.add_(w)
    x.add_(1)
    return x.sum()


@program
def of_lists() -> Made:
    pair = [torch.ones(2), torch.ones(3)]

    def f(x: torch.Tensor) -> torch.Tensor:
        made = [x + 1, x + 2]
        torch._foreach_add_(pair, 1)
        torch._foreach_mul_(pair, 2)
        torch._foreach_sqrt_(made)
        return made[0]

    return f, (torch.ones(2),), {"first": pair[0], "second": pair[1]}


@program
def of_statistics() -> Made:
    norm = torch.nn.BatchNorm1d(3)

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return norm(norm(x)).sum()

    return f, (torch.ones(4, 3),), dict(norm.named_buffers())


@program
def behind_a_break() -> Made:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x.add_(2)
        print(end="")
        x.add_(3)
        return x.mul_(4)

    return f, (torch.ones(3),), {}


@program
def in_inference_mode() -> Made:
    def f(x: torch.Tensor) -> list[float]:
        with torch.inference_mode():
            x.add_(1)
            x.mul_(2)
            return x.tolist()

    return f, (torch.ones(3),), {}


@program
def of_a_row_of_a_parameter() -> Made:
    def f(x: torch.Tensor) -> None:
        x.detach().zero_()

    parameter = torch.ones(2, 3, requires_grad=True)
    return f, (parameter[1],), {"all": parameter}


@program
def of_what_has_a_history() -> Made:
    def f(x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.no_grad():
            x.mul_(2)
            y[:1].add_(x[0, :1])

    parameter = torch.ones(2, 3, requires_grad=True)
    return f, (parameter * 1, parameter.unbind()[0]), {"all": parameter}


def versions(make: Callable[[], Made], backend: str | None) -> list[list[int]]:
    """Those of arguments, further tensors and results after each of three calls."""
    f, args, more = make()
    if backend is not None:
        f = braze.compile(f, backend=backend)
    found = []
    for _ in range(3):
        returned = f(*args)
        results = returned if isinstance(returned, (tuple, list)) else [returned]
        tensors = [*args, *more.values(), *results]
        found.append([t._version for t in tensors if isinstance(t, torch.Tensor)])
    return found


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_versions_are_those_of_eager(make: Callable[[], Made], backend: str) -> None:
    assert versions(make, backend) == versions(make, None)


_WAYS = [
    (name, way)
    for name, ways in {
        "SGD": ("plain", "foreach", "fused"),
        "Adam": ("plain", "foreach", "fused"),
        "AdamW": ("plain", "foreach", "fused"),
        "Adagrad": ("plain", "foreach", "fused"),
        "NAdam": ("plain", "foreach"),
        "RMSprop": ("plain", "foreach"),
        "RAdam": ("plain", "foreach"),  # branches on numbers of its state, as the next one does
        "ASGD": ("plain", "foreach"),
    }.items()
    for way in ways
]


@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
@pytest.mark.parametrize(("name", "way"), _WAYS)
def test_a_step_counts_what_the_optimizer_writes(name: str, way: str, scaled: bool) -> None:
    """A fused kernel's writes are not counted by autograd; with a scaler it is the kernel that
    runs, without one the same step in Python is compiled."""
    options: dict[str, Any] = {"fused": True} if way == "fused" else {"foreach": way == "foreach"}
    options |= {"momentum": 0.9} if name == "SGD" else {}
    options |= {"amsgrad": True} if name == "Adam" else {}

    def after(compiled: bool) -> list[dict[str, int]]:
        model = torch.nn.Linear(3, 2)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        x = torch.ones(4, 3)

        def step() -> None:
            optimizer.zero_grad(set_to_none=False)
            scaler.scale(model(x).sum()).backward()
            if not scaled:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

        run = braze.compile(step) if compiled else step
        found = []
        for _ in range(3):
            run()
            state = optimizer.state[model.weight].items()
            found.append({k: v._version for k, v in state if isinstance(v, torch.Tensor)})
            assert model.bias.grad is not None
            found[-1] |= {"weight": model.weight._version, "gradient": model.bias.grad._version}
        return found

    assert after(True) == after(False)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_result_written_to_since_is_refused_by_its_backward(compiled: bool) -> None:
    def f(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        other = w.sin()
        other.mul_(2)
        return (w * 2).exp_(), other

    run = braze.compile(f) if compiled else f
    w = torch.ones(3, requires_grad=True)
    result, other = run(w)
    result.add_(1)
    other.sum().backward(retain_graph=True)  # reads nothing of the other one
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_tensor_saved_before_is_refused_after_two_writes(compiled: bool) -> None:
    def f(x: torch.Tensor) -> None:
        x.add_(1)
        x.sub_(1)

    run = braze.compile(f) if compiled else f
    w, x = torch.ones(3, requires_grad=True), torch.ones(3)
    product = w * x
    run(x)
    with pytest.raises(RuntimeError, match=r"is at version 2; expected version 0"):
        product.sum().backward()


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("name", ["SGD", "Adam", "NAdam", "ASGD"])
def test_a_step_that_a_scaler_leaves_out_counts_no_write(
    name: str, options: dict[str, Any]
) -> None:
    def versions(compile: Callable[[Any], Any]) -> list[Any]:
        weights = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
        optimizer = getattr(torch.optim, name)(weights, lr=1e-2, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        @compile
        def step(factor: torch.Tensor) -> None:
            optimizer.zero_grad()
            scaler.scale(sum(w.pow(2).sum() for w in weights) * factor).backward()
            scaler.step(optimizer)
            scaler.update()

        seen: list[Any] = []
        for factor in (1.0, 1.0, torch.inf, 1.0, torch.nan, 1.0):
            step(torch.tensor(factor))
            states = [x for state in optimizer.state.values() for x in state.values()]
            tensors = [x for x in (*weights, *states) if isinstance(x, torch.Tensor)]
            seen.append(
                [(x._version, [round(v, 4) for v in x.flatten().tolist()]) for x in tensors]
            )
        return seen

    assert versions(braze.compile) == versions(lambda step: step)


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
def test_what_inference_mode_made_is_written_to(backend: str) -> None:
    """It counts no writes."""

    def f(cache: torch.Tensor, made: torch.Tensor, place: int) -> torch.Tensor:
        cache[:, place : place + 1] = made
        return cache.sum(1)

    with recorded() as journal:
        compiled = braze.compile(f, backend=backend)
    with torch.inference_mode():
        expected, actual = torch.zeros(2, 6), torch.zeros(2, 6)
        for place in range(4):
            made = torch.rand(2, 1)
            torch.testing.assert_close(compiled(actual, made, place), f(expected, made, place))
            assert torch.equal(actual, expected) and actual.is_inference()
    assert not journal.fallbacks()
    ordinary = torch.zeros(2, 6)
    with torch.inference_mode():
        compiled(ordinary, torch.ones(2, 1), 0)
    assert ordinary._version == 1


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_what_a_history_saved_counts_no_write_behind_it(backend: str) -> None:
    """The watched leaf is none of every result's, so the graph runs under autograd."""
    a, b = (torch.ones(3, 3, requires_grad=True) for _ in range(2))
    b.register_post_accumulate_grad_hook(lambda parameter: None)

    def f(x: torch.Tensor) -> int:
        with torch.no_grad():
            first = (x + 0.125).relu_()
        second = first.detach() @ a
        (second * b.sum()).sum().backward(retain_graph=True)
        second.sum().backward()
        return first._version

    compiled = braze.compile(f, backend=backend)
    x = torch.ones(2, 3)
    assert (f(x), compiled(x), compiled(x)) == (1, 1, 1)
    assert a.grad is not None
    assert torch.equal(a.grad, torch.full((3, 3), 3 * 2 * 1.125 * 10.0))
