"""Integers that change from call to call, in graphs of user backends: one graph serves all, unless
the compiler asks for their values."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.interop.example_numbers import ExampleNumber, ValueAsked


class Noting:
    """A backend that runs its graphs, and keeps them. look: what it does with an int among its
    example inputs; what is raised there it raises itself, or drops."""

    def __init__(self, look: Callable[[Any], Any] | None = None, drops: bool = False) -> None:
        self.modules: list[torch.fx.GraphModule] = []
        self.look, self.drops = look, drops

    def __call__(self, module: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        self.modules.append(module)
        for given in example_inputs:
            if self.look is not None and not isinstance(given, torch.Tensor):
                try:
                    self.look(given)
                except Exception:
                    if not self.drops:
                        raise
        return module.forward

    def integers(self) -> list[int]:
        """How many inputs of each graph are no tensors."""
        return [len(m.graph.find_nodes(op="placeholder")) - 1 for m in self.modules]


class Counter:
    def __init__(self) -> None:
        self.n = 3


def closure_of_count() -> Callable[[torch.Tensor], torch.Tensor]:
    n = 3

    def counted(x: torch.Tensor) -> torch.Tensor:
        nonlocal n
        n += 1
        return x * n

    return counted


def in_list(x: torch.Tensor, k: list[int]) -> torch.Tensor:
    k[0] += 1
    return x * k[0]


def in_dict(x: torch.Tensor, k: dict[str, int]) -> torch.Tensor:
    k["n"] += 1
    return x[: k["n"]] * k["n"]


def in_attribute(x: torch.Tensor, k: Counter) -> torch.Tensor:
    k.n += 1
    return x.repeat(k.n) * k.n


def in_nested(x: torch.Tensor, k: list[dict[str, list[int]]]) -> torch.Tensor:
    k[0]["a"][1] += 2
    return x + k[0]["a"][1] // 2


PLACES: list[tuple[Any, Callable[[], tuple[Any, ...]]]] = [
    (lambda: in_list, lambda: ([3],)),
    (lambda: in_dict, lambda: ({"n": 3},)),
    (lambda: in_attribute, lambda: (Counter(),)),
    (lambda: in_nested, lambda: ([{"a": [0, 3]}],)),
    (closure_of_count, lambda: ()),
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp_partition", "own"])
@pytest.mark.parametrize(("program", "state"), PLACES, ids=["list", "dict", "attr", "deep", "cell"])
def test_counts_are_symbolic_at_the_second_compile(
    program: Any, state: Any, backend: str, journal: Any
) -> None:
    plain, own = program(), Noting()
    compiled = braze.compile(program(), backend=own if backend == "own" else backend)
    theirs, mine, x = state(), state(), torch.arange(20.0)
    for _ in range(12):
        torch.testing.assert_close(compiled(x, *mine), plain(x, *theirs))
    assert str([vars(m) if hasattr(m, "__dict__") else m for m in mine]) == str(
        [vars(t) if hasattr(t, "__dict__") else t for t in theirs]
    )
    assert len(journal.records()) == 2
    assert backend != "own" or own.integers() == [0, 1]


def test_arguments_are_symbolic_where_asked() -> None:
    backend = Noting()
    compiled = braze.compile(lambda x, k: x * k + x.shape[0], backend=backend, dynamic=True)
    for n, k in ((4, 3), (6, 3), (5, 7)):
        x = torch.randn(n, 2)
        torch.testing.assert_close(compiled(x, k), x * k + n)
    assert backend.integers() == [1]


LOOKS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "bool": bool,
    "float": float,
    "hash": hash,
    "format": lambda n: f"{n:3}",
    "index": operator.index,
    "hint": lambda n: n.node.hint,
    "expression": lambda n: n.node.expr,
    "zeros": torch.zeros,
    "times": lambda n: torch.ones(2) * n,
    "slice": lambda n: torch.ones(9)[:n],
    "view": lambda n: torch.ones(9, 2).view(-1, n),
    "add": lambda n: torch.add(torch.ones(2), torch.ones(2), alpha=n),
    **{
        name: lambda n, name=name: getattr(operator, name)(n, 2)
        for name in "add sub mul floordiv mod truediv pow eq ne lt le gt ge and_ or_".split()
    },
    **{name: lambda n, name=name: getattr(operator, name)(n) for name in ("neg", "pos", "not_")},
}


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("look", LOOKS)
def test_who_looks_at_a_value_gets_constants(look: str, drops: bool) -> None:
    backend = Noting(LOOKS[look], drops)
    compiled = braze.compile(lambda x, k: x * k, backend=backend)
    for k in (3, 4, 5):
        assert torch.equal(compiled(torch.ones(2), k), torch.full((2,), float(k)))
    # The one that looks is not run. Torch may refuse the object by its type.
    told_nothing = drops and look in ("zeros", "slice", "view", "add")
    assert backend.integers() == [0, 1, 0, 0] or (told_nothing and backend.integers() == [0, 1])


def test_printing_and_copying_example_inputs_asks_for_no_value() -> None:
    shown: list[str] = []
    backend = Noting(lambda n: shown.append(f"{copy.deepcopy([n])} {copy.copy(n)!r} {type(n)}"))
    compiled = braze.compile(lambda x, k: x * k, backend=backend)
    for k in (3, 4, 5):
        compiled(torch.ones(2), k)
    assert backend.integers() == [0, 1] and shown == [f"[n1] n1 {ExampleNumber}"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", [3, 3.5])
@pytest.mark.parametrize("tracer", ["jit", "make_fx"])
def test_tracing_compilers_take_no_number_for_a_constant(tracer: str, first: float) -> None:
    def tracing(module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        if tracer == "jit":
            return torch.jit.trace(module, tuple(example_inputs), check_trace=False)
        return torch.fx.experimental.proxy_tensor.make_fx(module)(*example_inputs)

    compiled = braze.compile(lambda x, k: x * k + 1, backend=tracing)
    for k in (first, first + 1, first + 2, first + 3):
        assert torch.equal(compiled(torch.ones(2), k), torch.full((2,), k + 1.0))


def test_floats_that_change_are_inputs() -> None:
    def decayed(x: torch.Tensor, k: dict[str, float]) -> torch.Tensor:
        k["rate"] *= 0.5
        return x * k["rate"]

    backend, mine, theirs = Noting(), {"rate": 3.0}, {"rate": 3.0}
    compiled = braze.compile(decayed, backend=backend)
    for _ in range(5):
        assert torch.equal(compiled(torch.ones(2), mine), decayed(torch.ones(2), theirs))
    assert backend.integers() == [0, 1] and mine == theirs


def test_every_question_to_an_int_is_noted() -> None:
    names = {*dir(int), *dir(float), "node", "value"} - set(dir(object)) | {"__hash__", "__eq__"}
    for name in names | {"__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__format__"}:
        number = ExampleNumber("n")
        with pytest.raises(ValueAsked):
            getattr(number, name)(*(2,))
        assert number.is_asked, name


class _Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: torch.Tensor) -> torch.Tensor:
        return v * v

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * 5


def test_custom_function_beside_a_changing_number() -> None:
    """Its node has a name that the graph's text can say, and its gradient is the program's."""
    graphs = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(module.code)
        return module.forward

    def program(x: torch.Tensor, n: float) -> torch.Tensor:
        result: torch.Tensor = _Squared.apply(x * n) + n  # type: ignore[no-untyped-call]
        return result

    compiled = braze.compile(program, backend=backend, fullgraph=True)
    for n in (1.0, 2.0, 3.0):
        x = torch.arange(6.0).requires_grad_()
        results = [f(x, n) for f in (compiled, program)]
        assert torch.equal(*results)
        assert torch.equal(*[torch.autograd.grad(each.sum(), x)[0] for each in results])
    assert len(graphs) == 2
    for code in graphs:
        compile(code, "graph", "exec")
