"""Numbers that a tensor's dtype does not hold, by programs: known ones, and ones that change."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import braze
from braze.errors import BrazeWarning
from braze.ir.types import TensorType
from braze.tracing import Tracer
from tests.recorded import recorded

Outcome = tuple[Any, ...]
Program = Callable[..., Any]


def outcome(function: Program, *args: Any) -> Outcome:
    """What a call gives, as text in which NaN equals itself, or raises."""
    try:
        result = function(*args)
        return "gives", repr(result.detach() if isinstance(result, Tensor) else result)
    except Exception as error:
        return type(error), str(error)


def _caught(y: Tensor, number: Any) -> Any:
    try:
        return y.masked_fill(y == 1, number)
    except RuntimeError as error:
        return str(error), y + 1


def _not_used(y: Tensor, number: Any) -> Tensor:
    torch.full((2,), number, dtype=y.dtype)
    return y + 1


def _item(y: Tensor, number: Any) -> Tensor:
    changed = y * 1
    changed[0] = number
    return changed


def _index() -> Tensor:
    return torch.zeros(1, dtype=torch.int64)


PROGRAMS: dict[str, Program] = {
    "fill": lambda y, n: (y * 1).fill_(n),
    "full": lambda y, n: torch.full((2,), n, dtype=y.dtype),
    "full_like": torch.full_like,
    "new_full": lambda y, n: y.new_full((2,), n),
    "masked_fill": lambda y, n: y.masked_fill(y == 1, n),
    "where": lambda y, n: torch.where(y == 1, y, n),
    "clamp": lambda y, n: y.clamp(0, n),
    "add": lambda y, n: torch.add(y, y, alpha=n),
    "rsub": lambda y, n: torch.rsub(y, y, alpha=n),
    "baddbmm": lambda y, n: torch.baddbmm(
        y[None, None], y[None, None], y.new_ones(1, 2, 2), beta=n
    ),
    "scatter": lambda y, n: y.scatter(0, _index(), n),
    "index_fill": lambda y, n: y.index_fill(0, _index(), n),
    "pad": lambda y, n: F.pad(y, (1, 1), value=n),
    "threshold": lambda y, n: F.threshold(y, 0, n),
    "hardtanh": lambda y, n: F.hardtanh(y, -1, n),
    "leaky_relu": F.leaky_relu,
    "linspace": lambda y, n: torch.linspace(0, n, 3, dtype=y.dtype),
    "tensor": lambda y, n: torch.tensor(n, dtype=y.dtype),
    "plus": lambda y, n: y + n,
    "less": lambda y, n: y < n,
    "twice": lambda y, n: (y * 1).fill_(n * 2),
    "item": _item,
    "caught": _caught,
    "not used": _not_used,
}
DTYPES = (torch.float32, torch.float16, torch.uint8, torch.int32, torch.complex64)
FLOATS = (2.0, 3.0, 1e51, 5.0, math.inf, -1e60, math.nan, 1e5, 300.0, -1.0, 0.5, 3e38)
INTEGERS = (2, 3, 300, -1, -256, 1 << 31, 70_000, 1 << 40, 5, 65_505)


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_that_change(name: str) -> None:
    refused = 0
    for dtype in DTYPES:
        for numbers in (FLOATS, INTEGERS):
            y = torch.ones(2, dtype=dtype)
            for dynamic in (None, True):
                compiled = braze.compile(PROGRAMS[name], backend="aot_eager", dynamic=dynamic)
                for number in numbers:
                    expected = outcome(PROGRAMS[name], y, number)
                    assert outcome(compiled, y, number) == expected, (dtype, dynamic, number)
                    refused += "without overflow" in str(expected)
    assert bool(refused) is (name not in ("plus", "less"))


def test_numbers_within_the_range_share_a_graph() -> None:
    def program(y: Tensor, number: float) -> Tensor:
        return y.masked_fill(y == 1, number)

    with recorded() as journal:
        compiled = braze.compile(program, backend="aot_eager")
        for number in (1.0, 2.0, -3.0, 1e5, 1e38, 0.0):
            assert torch.equal(compiled(torch.ones(2), number), torch.full((2,), number))
        assert len(journal.records()) == 2
        for number in (1e51, 4.0):
            assert outcome(compiled, torch.ones(2), number) == outcome(
                program, torch.ones(2), number
            )
        assert len(journal.records()) == 3


# --- numbers that the graph computes -------------------------------------------------------------


def _of_sum(y: Tensor) -> Tensor:
    return torch.full((2,), y.sum().item(), dtype=torch.float16)


def _of_product(y: Tensor) -> Tensor:
    return F.pad(y.float(), (1, 1), value=y.sum().item() * 2)


def _between_writes(y: Tensor) -> Tensor:
    y.add_(1)
    torch.full((2,), y.sum().item(), dtype=torch.float16)
    return y.add_(1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("program", [_of_sum, _of_product, _between_writes])
def test_numbers_of_tensors(program: Program, backend: str) -> None:
    compiled = braze.compile(program, backend=backend)
    for number in (2.0, 3.0, 1e5, 1e50, math.inf, math.nan, -1.0, 65_504.0, 5.0):
        ys = [torch.tensor([number, 0.0], dtype=torch.float64) for _ in range(2)]
        assert outcome(compiled, ys[0]) == outcome(program, ys[1])
        assert torch.equal(ys[0].nan_to_num(), ys[1].nan_to_num())  # with what was written before


# --- known numbers -------------------------------------------------------------------------------


class _Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        torch.full((2,), 1e51)
        return gradient * 3


def _refused_backward(x: Tensor) -> Any:
    try:
        _Refuses.apply(x).sum().backward()
    except RuntimeError as error:
        return str(error)


KNOWN: dict[str, Program] = {
    "dead": lambda x: (torch.full((2,), 1e51), x + 1)[1],
    "in place": lambda x: (x * 1).fill_(1e51),
    "bytes": lambda x: x.to(torch.uint8).fill_(300),
    "negative bytes": lambda x: x.to(torch.uint8).fill_(-1),
    "integers take no infinity": lambda x: x.int().fill_(math.inf),
    "floats do": lambda x: x.masked_fill(x == 1, -math.inf),
    "a sum": lambda x: x + 1e51,
    "beyond 64 bits": lambda x: torch.full((2,), 1 << 63),
    "complex": lambda x: (x * 1).fill_(1j),
    "one half": lambda x: torch.ones(1, dtype=torch.float16).fill_(1e5),
    "two halves": lambda x: torch.ones(2, dtype=torch.float16).fill_(1e5),
    "none": lambda x: torch.full((0,), 1e51),
    "range": lambda x: torch.arange(0, 1e51, 5e50, dtype=torch.float16),
    "backward": _refused_backward,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("name", KNOWN)
def test_known_numbers(name: str, backend: str) -> None:
    program = KNOWN[name]
    compiled = braze.compile(program, backend=backend)
    for _ in range(2):
        warnings.simplefilter("error", BrazeWarning)  # nothing fails on the way
        xs = [torch.ones(2, requires_grad=True) for _ in range(2)]
        assert outcome(compiled, xs[0]) == outcome(program, xs[1])
        assert (xs[0].grad is None) is (xs[1].grad is None)


def test_what_was_written_before_is_written() -> None:
    def program(y: Tensor, log: list[int]) -> Tensor:
        log.append(1)
        y.add_(1)
        y.masked_fill_(y == 2, 1e51)
        log.append(2)
        return y

    found = []
    for function in (program, braze.compile(program, backend="aot_eager")):
        y, log = torch.ones(2), list[int]()
        found.append((outcome(function, y, log), y.tolist(), log))
    assert found[0] == found[1]
    assert found[0][1:] == ([2.0, 2.0], [1])


def test_a_device_that_is_not_there_is_asked_nothing() -> None:
    device = torch.device("cuda", torch.cuda.device_count())
    tracer = Tracer()
    image = tracer.add_input_of_type(TensorType(torch.float32, (2, 3), (3, 1), device))
    with tracer:
        assert image.masked_fill(image > 0, -math.inf).device == device


def test_a_gradient_with_numbers_that_fit_no_dtype() -> None:
    programs: list[Program] = [
        lambda x: (x * 1e51).sum(),
        lambda x: x.double().clamp(max=1e51).float().sum(),
        lambda x: torch.add(x, x, alpha=1e30).sum(),
        functools.partial(F.leaky_relu, negative_slope=1e51),
    ]
    for program in programs:
        found = []
        for function in (program, braze.compile(program, backend="aot_eager")):
            x = torch.ones(2, requires_grad=True)
            found.append(outcome(lambda f=function, x=x: f(x).sum().backward()) + (repr(x.grad),))
        assert found[0] == found[1]
