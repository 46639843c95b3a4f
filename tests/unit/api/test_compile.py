"""The face: what `compile` accepts, and what it hands to `braze.targets`.

A fake tensor for it records its orders and calls the original.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import braze
from braze import api
from braze.interop.backends import OWN, Backend, Level
from braze.marks import MARKS, Mark
from braze.options import Options
from braze.trace import JOURNAL, Journal


@dataclass
class Order:
    target: Any
    options: Options
    backend: Backend
    journal: Journal


@dataclass
class RecordingTargets:
    """Stands for `braze.targets`."""

    orders: list[Order] = field(default_factory=list)
    resets: int = 0

    def is_program(self, target: Any) -> bool:
        return inspect.isfunction(target)

    def compile_function(
        self, function: Any, *order: Any, bound: int | None = None
    ) -> Callable[..., Any]:
        self.orders.append(Order(function, *order))

        @functools.wraps(function)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return compiled

    def make_dispatcher(self, *order: Any) -> None:
        raise AssertionError("nothing is compiled ahead of time here")

    def compile_module(self, module: torch.nn.Module, *order: Any) -> torch.nn.Module:
        self.orders.append(Order(module, *order))
        return module

    def original_module(self, module: torch.nn.Module) -> torch.nn.Module:
        return module

    def compiled_with(self, target: Any) -> None:
        return None

    def reset(self) -> None:
        self.resets += 1


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> RecordingTargets:
    recording = RecordingTargets()
    monkeypatch.setattr(api, "targets", recording)
    return recording


def double(x: int) -> int:
    """Twice."""
    return 2 * x


def test_function_form(targets: RecordingTargets) -> None:
    compiled = api.compile(double)
    assert compiled(3) == 6
    assert compiled.__name__ == "double" and compiled.__doc__ == "Twice."
    (order,) = targets.orders
    assert order.target is double
    assert order.backend is OWN["braze"]
    assert order.journal is JOURNAL
    assert order.options == Options(verify=order.options.verify, cache_dir=order.options.cache_dir)


def test_decorator_without_arguments(targets: RecordingTargets) -> None:
    @api.compile
    def triple(x: int) -> int:
        return 3 * x

    assert triple(2) == 6
    assert len(targets.orders) == 1


@pytest.mark.parametrize("model", [{}, {"model": None}])
def test_decorator_with_arguments(targets: RecordingTargets, model: dict[str, Any]) -> None:
    @api.compile(fullgraph=True, dynamic=False, mode="max-autotune", **model)
    def triple(x: int) -> int:
        return 3 * x

    assert triple(2) == 6
    (order,) = targets.orders
    assert order.options.fullgraph and order.options.dynamic is False
    assert order.options.mode == "max-autotune"


def test_methods_and_classes(targets: RecordingTargets) -> None:
    class Scale:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @api.compile
        def decorated(self, x: int) -> int:
            return self.factor * x

        def plain(self, x: int) -> int:
            return self.factor * x

    scale = Scale(5)
    assert scale.decorated(2) == 10
    bound = api.compile(scale.plain)
    assert bound(2) == 10
    assert bound.__self__ is scale  # type: ignore[attr-defined]

    class Adder:
        def __call__(self, x: int) -> int:
            return x + 1

    assert api.compile(Adder) is Adder
    assert Adder()(1) == 2
    assert targets.orders[-1].target.__qualname__.endswith("Adder.__call__")


def test_other_callables_become_functions(targets: RecordingTargets) -> None:
    assert api.compile(functools.partial(double, 4))() == 8
    assert api.compile(abs)(-2) == 2
    assert all(isinstance(order.target, types.FunctionType) for order in targets.orders)
    assert targets.orders[1].target.__name__ == "abs"


def test_modules(targets: RecordingTargets) -> None:
    model = torch.nn.Linear(2, 2)
    assert api.compile(model) is model
    assert targets.orders[0].target is model


def test_compiling_what_is_compiled_starts_from_the_original(targets: RecordingTargets) -> None:
    again = api.compile(api.compile(double), fullgraph=True)
    assert again(1) == 2
    assert [order.target for order in targets.orders] == [double, double]


def test_disabled_is_what_was_given(targets: RecordingTargets) -> None:
    assert api.compile(double, disable=True) is double
    assert api.compile(disable=True)(double) is double
    assert api.compile(double, options={"disable": True}) is double
    with braze.options.config.patch(disable=True):
        assert api.compile(double) is double
    assert targets.orders == []


def test_configuration_is_taken_when_compile_is_called(targets: RecordingTargets) -> None:
    with braze.options.config.patch(recompile_limit=3):
        api.compile(double)
    api.compile(double, options={"recompile_limit": 4})
    assert [order.options.recompile_limit for order in targets.orders] == [3, 4]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"backend": "eagre"}, braze.exc.InvalidBackend, "Did you mean 'eager'"),
        ({"backend": 3}, braze.exc.InvalidBackend, "name or a callable"),
        ({"mode": "fast"}, braze.exc.InvalidOption, "Unknown mode 'fast'.*'reduce-overhead'"),
        ({"options": {"numeric": "eager"}}, braze.exc.InvalidOption, "'numerics'"),
        ({"mode": "default", "options": {}}, braze.exc.InvalidOption, "not both"),
        ({"options": ["numerics"]}, braze.exc.InvalidOption, "options is a dict"),
        ({"fullgraph": "yes"}, braze.exc.InvalidOption, "'fullgraph' takes bool"),
        ({"dynamic": 1}, braze.exc.InvalidOption, "'dynamic' takes bool or None"),
    ],
)
def test_wrong_arguments_are_named_at_once(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        api.compile(double, **arguments)
    with pytest.raises(error, match=message):
        api.compile(**arguments)
    assert issubclass(error, RuntimeError)


def test_what_cannot_be_compiled() -> None:
    with pytest.raises(braze.exc.UserError, match="function or a module"):
        api.compile(3)  # type: ignore[type-var]
    with pytest.raises(braze.exc.UserError, match="cannot be called"):
        api.compile(type("Empty", (), {}))


def test_foreign_backends_get_what_is_not_ours(targets: RecordingTargets) -> None:
    seen: list[Any] = []

    def backend(graph: Any, example_inputs: Any, **keywords: Any) -> Any:
        seen.append(keywords)
        return graph

    api.compile(double, backend=backend, options={"their_switch": 1, "recompile_limit": 3})
    (order,) = targets.orders
    assert (order.backend.level, order.backend.name) == (Level.TORCH, "backend")
    assert order.options.recompile_limit == 3
    assert order.options.backend == "backend"
    assert order.backend.compiler is not None
    order.backend.compiler("graph", [])
    assert seen == [{"options": {"their_switch": 1}}]


def test_explain_compiles_afresh_with_a_journal_of_its_own(targets: RecordingTargets) -> None:
    explanation = api.explain(api.compile(double), backend="eager")(4)
    assert explanation.result == 8
    assert explanation.function == "double"
    assert targets.orders[-1].journal is not JOURNAL
    assert targets.orders[-1].journal.detailed
    assert targets.orders[-1].backend.name == "eager"


def test_reset(targets: RecordingTargets) -> None:
    JOURNAL.note_fallback("x")
    api.reset()
    assert targets.resets == 1
    assert JOURNAL.fallbacks() == ()


def test_disable(targets: RecordingTargets) -> None:
    @api.disable
    def left_out(x: int) -> int:
        return x

    @api.disable(reason="too dynamic")
    def also(x: int) -> int:
        return x

    assert (left_out(1), also(2)) == (1, 2)
    assert MARKS.of(left_out) is Mark.DISABLE
    assert MARKS.note_of(also) == "too dynamic"
    assert api.compile(left_out) is left_out
    assert MARKS.of(api.disable(double, recursive=False)) is Mark.DISABLE_FRAME
    assert MARKS.of(double) is None
    assert api.disable(api.compile(double))(2) == 4


def test_words_of_a_program_about_itself() -> None:
    assert api.is_compiling() is False
    assert api.graph_break() is None  # type: ignore[func-returns-value]
    assert MARKS.of(api.is_compiling) is Mark.IS_COMPILING
    assert MARKS.of(api.graph_break) is Mark.GRAPH_BREAK

    def function() -> None: ...

    for put, mark in (
        (api.allow_in_graph, Mark.ALLOW_IN_GRAPH),
        (api.disallow_in_graph, Mark.DISALLOW_IN_GRAPH),
        (api.assume_constant_result, Mark.ASSUME_CONSTANT),
    ):
        assert put(function) is function
        assert put([function]) == [function]
        assert MARKS.of(function) is mark
        with pytest.raises(braze.exc.UserError, match="takes a callable"):
            put(3)


def test_the_face_has_what_it_promises() -> None:
    for name in braze.__all__:
        assert getattr(braze, name) is not None
