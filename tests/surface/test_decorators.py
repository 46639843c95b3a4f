"""Every decorator of torch's on the function that is compiled, and on what was compiled: managers
that decorate, found by `dir()`, and what `torch.compiler` and its front end have. Alone here, and
each around each other in a whole run. Managers that are made outside of the compiled function, and
entered inside, too."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch

import braze
from braze.errors import GraphBreakError
from braze.regions import REGIONS
from braze.trace import Journal
from tests.shares import todays
from tests.surface.test_contexts import WAYS, body, made_inputs, outcome, settle

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

# Of torch.compiler and its front end: what decorates a function, and means what it means alone.
FUNCTIONS = """
allow_in_graph disable disable_nested_graph_breaks dont_skip_tracing nested_compile_region
nonstrict_trace run
""".split()


def decorators() -> Iterator[tuple[str, Callable[[], Decorator]]]:
    """(label, maker) of each."""
    try:
        made = {label: make() for label, make in WAYS.items()}
    finally:
        settle()
    for label, manager in made.items():
        if callable(manager):
            yield label, WAYS[label]
    for flag in (True, False):
        theirs = _dynamo().error_on_graph_break
        yield f"error_on_graph_break {flag}", functools.partial(theirs, flag)
        yield f"braze {flag}", functools.partial(braze.error_on_graph_break, flag)
    for stance in ("default", "force_eager", "eager_on_recompile", "eager_then_compile"):
        yield f"stance {stance}", functools.partial(torch.compiler.set_stance, stance)
    yield "frame disabled", lambda: torch.compiler.disable(recursive=False)
    for name in FUNCTIONS:
        for module in (torch.compiler, _dynamo()):
            if hasattr(module, name):
                yield name, functools.partial(getattr, module, name)


def _dynamo() -> Any:
    return torch._dynamo  # type: ignore[attr-defined]


DECORATORS = dict(decorators())
# Under them a break is an error, as under `fullgraph`, and is the right outcome of what breaks the
# graph where a compiled function enters it: inference mode, a library's flags, a stance.
FORBID = [DECORATORS["error_on_graph_break True"], DECORATORS["braze True"]]


def fresh() -> Callable[..., Any]:
    """A new function that does what `body` does."""

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        return body(x, w)

    return function


def decorated(chosen: Sequence[Callable[[], Decorator]], height: int = -1, **given: Any) -> Any:
    """A new function with decorators around it, compiled at a height of their stack; -1: nowhere.
    given: to the compiler."""
    made = fresh()
    for number in range(len(chosen) + 1):
        if number == height:
            made = braze.compile(made, backend="eager", **given)
        if number < len(chosen):
            made = chosen[number]()(made)
    return made


def breaks(chosen: Sequence[Callable[[], Decorator]], height: int) -> bool:
    """Whether what is compiled is more than one graph, with nothing around it that forbids it."""
    around = [passing if make in FORBID else make for make in chosen]
    return is_refused(outcome(decorated(around, height, fullgraph=True)))


def passing() -> Decorator:
    """What wraps a function and does nothing."""
    return lambda function: lambda *args: function(*args)


def is_refused(found: Any) -> bool:
    """Whether an outcome is that of a graph break that was forbidden."""
    return isinstance(found[0][0], type) and issubclass(found[0][0], GraphBreakError)


def check(label: str, *chosen: Callable[[], Decorator]) -> None:
    """Compiled at each height of a stack of decorators; called three times."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for height in range(len(chosen) + 1):
            eager, compiled = decorated(chosen), decorated(chosen, height)
            for call in range(3):
                expected, found = outcome(eager), outcome(compiled)
                if found != expected and is_refused(found) and set(FORBID) & set(chosen):
                    assert breaks(chosen, height), (label, height, call)
                    continue
                assert found == expected, (label, height, call)
            assert not [*REGIONS] and not _forbids_breaks()


def _forbids_breaks() -> bool:
    return bool(_dynamo().utils._get_error_on_graph_break())


# The managers of which each run tries every fifth; a whole run tries all.
_MANAGERS = sorted(WAYS)
_FEW, _REST = _MANAGERS[::5], [label for n, label in enumerate(_MANAGERS) if n % 5]


def _parts(few: Iterable[str], rest: Iterable[str]) -> list[Any]:
    return [*few, *(pytest.param(label, marks=pytest.mark.slow) for label in rest)]


@pytest.mark.parametrize(
    "label",
    _parts(
        [label for label in DECORATORS if label not in _REST], sorted(DECORATORS.keys() & _REST)
    ),
)
def test_decorated_as_eager(label: str) -> None:
    check(label, DECORATORS[label])


@pytest.mark.slow
@pytest.mark.parametrize("label", DECORATORS)
def test_decorated_twice_as_eager(label: str) -> None:
    """Around every eighth, other ones for each and each day, every fourth at night; a whole run
    tries all (BRAZE_SURFACE=all)."""
    step = 1 if os.environ.get("BRAZE_SURFACE") == "all" else 4
    others = [*DECORATORS.items()][list(DECORATORS).index(label) % step :: step]
    for other, make in todays(others, 2) if step > 1 else others:
        check(f"{label} of {other}", make, DECORATORS[label])


@pytest.mark.parametrize("label", _parts(_FEW, _REST))
def test_managers_held_outside_as_eager(label: str) -> None:
    """Entered by one graph, by two that a break parts, and left by an exception."""
    for ends in ("whole", "breaks", "raises"):

        def program(ends: str = ends) -> Callable[..., Any]:
            manager = WAYS[label]()

            def function(x: torch.Tensor, w: torch.Tensor) -> Any:
                y = x * 2
                try:
                    with manager:
                        y = torch.sin(y @ w)
                        if ends == "breaks":
                            braze.graph_break()
                        if ends == "raises":
                            raise KeyError("of the program's")
                        y = y * w
                except KeyError:
                    y = y + 3
                return y.cos(), torch.zeros(2)

            return function

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eager = program()
            expected = [outcome(eager) for _ in range(2)]
            compiled = braze.compile(program(), backend="eager")
            assert [outcome(compiled) for _ in range(2)] == expected, (label, ends)


# Those that cost no break as decorators, as with torch.compile.
WHOLE = (
    """
error_on_graph_break True|error_on_graph_break False|braze True|braze False|allow_in_graph
nested_compile_region|dont_skip_tracing|torch.no_grad|torch.set_grad_enabled off|torch.enable_grad
torch.autocast bfloat16|torch.autograd.profiler.record_function|torch.nn.attention.sdpa_kernel math
torch.nn.attention.sdpa_kernel two
""".replace("\n", "|")
    .strip("|")
    .split("|")
)


@pytest.mark.parametrize("label", WHOLE)
def test_decorated_functions_are_one_graph(label: str, journal: Journal) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.sin(x @ w) * x

    compiled = braze.compile(DECORATORS[label]()(function), fullgraph=True)
    for _ in range(2):
        compiled(*made_inputs())
    assert [record.outcome for record in journal.records()] == ["graph"]
