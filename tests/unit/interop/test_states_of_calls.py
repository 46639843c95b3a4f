"""Graphs of user backends: states that the program enters, constants that no text says, options."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import braze

LINEAR = torch.nn.Linear(4, 4)


class Keeping:
    """A backend that runs the text of each graph and keeps the graph."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(module)
        space = dict(module.graph.python_code("self").globals)
        exec(compile(module.code, "<graph>", "exec"), space)
        return lambda *given: space["forward"](module, *given)


class Scale(torch.autograd.Function):
    """Scales by what an object says."""

    @staticmethod
    def forward(ctx: Any, x: Any, by: Any) -> Any:
        ctx.by = by
        return x * by.value

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * ctx.by.value, None


class Rate(enum.Enum):
    """No text of a graph names it."""

    FAST = 3.0


def cast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = LINEAR(x)
        with torch.autocast("cpu", enabled=False):
            z = LINEAR(x)
    return y, z, LINEAR(x)  # type: ignore[return-value]


def cast_and_frozen(x: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
    return y, x @ x  # type: ignore[return-value]


def on_another_device(x: Tensor) -> Any:
    with torch.device("meta"):
        return torch.ones(4), x * 2


STATES = (cast, cast_and_frozen, on_another_device)


def facts(made: Any) -> list[Any]:
    return [(t.dtype, t.device, t.requires_grad, tuple(t.shape)) for t in made]


@pytest.mark.parametrize("around", [False, True], ids=["plain", "under autocast"])
@pytest.mark.parametrize("program", STATES, ids=lambda program: program.__name__)
def test_states_are_in_the_graph(program: Callable[..., Any], around: bool) -> None:
    backend = Keeping()
    x = torch.randn(4, 4, requires_grad=True)
    compiled = braze.compile(program, backend=backend)
    with torch.autocast("cpu", dtype=torch.float16, enabled=around):
        expected, made = program(x), compiled(x)
        assert torch.is_autocast_enabled("cpu") is around
    assert facts(made) == facts(expected)
    assert len(backend.graphs) == 1
    assert not torch.is_autocast_enabled("cpu")


def test_failing_graph_leaves_autocast() -> None:
    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            module(*given)
            torch.set_autocast_enabled("cpu", True)
            raise RuntimeError("of the backend")

        return run

    x = torch.randn(4, 4)
    with pytest.warns(braze.errors.BrazeWarning, match="of the backend"):
        made = braze.compile(cast, backend=backend)(x)
    assert facts(made) == facts(cast(x))
    assert not torch.is_autocast_enabled("cpu")


CONSTANTS: dict[str, Callable[[Tensor], Any]] = {
    "bool as a dtype": lambda x: x.to(bool),
    "int as a dtype": lambda x: x.detach().sum(dtype=int),
    "float as a dtype": lambda x: torch.zeros(3, dtype=float) + x,
    "infinite complex": lambda x: x * complex(0, math.inf),
    "infinity": lambda x: x.masked_fill(x > 0, -math.inf),
    "nan": lambda x: x.nan_to_num(nan=math.nan),
    "a slice": lambda x: x[slice(0, 2, None)],
    "an enumeration's member": lambda x: Scale.apply(x, Rate.FAST),
    "a size": lambda x: x.view(torch.Size([1, 3])),
    "a device": lambda x: x.to(torch.device("cpu"), torch.float64),
    "a function": lambda x: torch.vmap(lambda t: t * 2)(x),
}


@pytest.mark.filterwarnings("error::braze.errors.BrazeWarning")
@pytest.mark.parametrize("name", CONSTANTS)
def test_text_says_each_constant(name: str) -> None:
    program, backend = CONSTANTS[name], Keeping()
    x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    made = braze.compile(program, backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(made, program(x), equal_nan=True)
    assert len(backend.graphs) == 1


READS: dict[str, Callable[[Tensor], Any]] = {
    "a number": lambda x: x * x.sum().item(),
    "a mask": lambda x: x[x > 0] * 2,
    "positions": lambda x: torch.nonzero(x),
    "a whole number of a float": lambda x: torch.zeros(int(x.max().item())),
}


BACKENDS = pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", Keeping()], ids=["eager", "aot_eager", "a function"]
)


@BACKENDS
@pytest.mark.parametrize("name", READS)
def test_options_hold_for_each_backend(name: str, backend: Any) -> None:
    options = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    compiled = braze.compile(READS[name], backend=backend, fullgraph=True, options=options)
    for values in ([1.0, -1.0, 2.0, 0.0], [5.5, 3.0, -2.0, 7.0]):
        x = torch.tensor(values)
        torch.testing.assert_close(compiled(x), READS[name](x))


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e20])
def test_whole_number_out_of_range(value: float) -> None:
    def program(x: Tensor) -> Any:
        return torch.zeros(int(x.sum().item()))

    options = {"capture_scalar_outputs": True}
    compiled = braze.compile(program, backend="aot_eager", options=options)
    assert compiled(torch.tensor([3.5])).shape == (3,)
    with pytest.raises(Exception) as expected:
        program(torch.tensor([value]))
    with pytest.raises(expected.type):
        compiled(torch.tensor([value]))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_backward_is_in_the_graph(backend: str) -> None:
    def program(x: Tensor) -> Any:
        loss = LINEAR(x).square().sum()
        (gradient,) = torch.autograd.grad(loss, LINEAR.weight)
        return loss.detach(), gradient

    x = torch.randn(2, 4)
    compiled = braze.compile(program, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x), program(x))
