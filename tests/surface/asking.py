"""Cases of a sweep: a function is asked, something is changed, and it is asked again.

A case is a generator function. Each `yield function, arguments` asks; the code between two of them
changes what the answer may depend on. `difference` runs a case twice, once in eager mode and once
with each function compiled (once, for the whole case), and compares what came of each call.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

import braze
from braze.errors import BrazeWarning
from braze.trace import FAULTS

Asked: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
Case: TypeAlias = Callable[[], Iterator[Asked]]

# Once: each guard is asked by itself. Five times: what held twice is compared as a snapshot.
REPETITIONS = (1, 5)
_SHOWN = (int, float, complex, str, bytes, bool, type(None), range, torch.dtype, torch.Size)
_DEPTH = 4


def shown(value: Any, depth: int = _DEPTH) -> Any:
    """A value as it is compared between two runs, in which objects have other addresses."""
    cls = type(value)
    name = f"{cls.__module__}.{cls.__qualname__}"
    if isinstance(value, torch.Tensor):
        return name, value.dtype, value.tolist()
    if cls in _SHOWN:
        return name, repr(value)
    if isinstance(value, type):
        return name, value.__qualname__
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return name, value.__name__
    if depth and isinstance(value, dict):
        items = [(shown(k, depth - 1), shown(v, depth - 1)) for k, v in dict.items(value)]
        return name, items
    if depth and isinstance(value, (list, tuple)):
        base = list if isinstance(value, list) else tuple
        return name, [shown(item, depth - 1) for item in base.__iter__(value)]
    if depth and isinstance(value, (set, frozenset)):
        base = set if isinstance(value, set) else frozenset
        return name, sorted(repr(shown(item, depth - 1)) for item in base.__iter__(value))
    if issubclass(cls, (str, int, float)):
        return name, cls.__mro__[-2].__repr__(value)
    return (name,)


def asking(ask: Callable[[], Any]) -> Callable[[torch.Tensor], Any]:
    """A function that asks beside a tensor, and gives what is raised as a value."""

    def asked(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            return y, ask()
        except Exception as problem:
            return y + 1, type(problem), str(problem)

    return asked


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What a call gives or raises."""
    try:
        return shown(function(*args))
    except Exception as problem:
        return type(problem).__qualname__, str(problem)


def run(case: Case, repetitions: int, compiler: Callable[..., Any]) -> list[Any]:
    """What comes of each call of a case."""
    made: dict[Callable[..., Any], Callable[..., Any]] = {}
    found = []
    for function, args in case():
        if function not in made:
            made[function] = compiler(function)
        found.append([outcome(made[function], args) for _ in range(repetitions)])
    return found


class Counted:
    """A compiler that counts its graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return braze.compile(function, backend=self.backend)  # type: ignore[no-any-return]

    def backend(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Run the graph as it is."""
        self.graphs += 1
        return graph.forward  # type: ignore[no-any-return]


def _answer(found: Any) -> Any:
    """What is left of an outcome without the tensor that each question is returned with."""
    is_pair = found[0] == "builtins.tuple" and len(found[1]) >= 2
    return found[1][1:] if is_pair else found


def difference(case: Case, repetitions: int, graphs: list[int]) -> str | None:
    """How the compiled functions of a case differ from eager mode; None where they do not. graphs:
    gets how many were compiled."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=BrazeWarning)
        expected = run(case, repetitions, lambda function: function)
        compiler = Counted()
        found = run(case, repetitions, compiler)
    for step, (want, got) in enumerate(zip(expected, found, strict=True)):
        if want != got:
            return f"step {step}: eager {_answer(want[0])}, compiled {[*map(_answer, got)]}"
    graphs.append(compiler.graphs)
    # A break that leaves the rest to eager is no difference; a fault of Braze is.
    said = [str(one.message) for one in caught if any(f"[{c}]" in str(one.message) for c in FAULTS)]
    said += [str(one.message) for one in caught if "bug in Braze" in str(one.message)]
    return f"warned: {said[0]}" if said else None
