"""`torch.compile(model, backend="braze")`: our pipeline behind PyTorch's capture.

PyTorch finds `braze_backend` through the entry point group `torch_dynamo_backends`. The graph that
it captured is a plain module to us: its `forward` is captured again and compiled. PyTorch's guards
have been checked by then; ours are few, because the graph's code reads nothing but its arguments.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from braze.api import compile as compile_callable


def braze_backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., object]:
    """A callable that runs the graph through Braze; it compiles when first called.

    mode, options: those of `torch.compile`, with the meaning that they have in `braze.compile`.
    Sizes that PyTorch's capture left open (`dynamic=True`, or what changed between calls) are
    symbols here from the first call on. Raises InvalidOption, which `torch.compile` shows as the
    cause of its BackendCompilerFailed.
    """
    # The code of a lazy graph module is written when it is asked for: before that, `forward` is
    # PyTorch's `_lazy_forward`, which writes it.
    assert graph.code
    dynamic = True if any(map(_is_open, example_inputs)) else None
    graph, numbers = _with_numbers(graph)
    if options and (options.get("freeze") or options.get("freezing")):
        weights = frozenset(_weights_of(graph))
        frozen = _FrozenGraph(graph, weights, {"mode": mode, "options": options}, dynamic)
        compiled: Callable[..., Any] = frozen.__call__
    else:
        compiled = compile_callable(graph.forward, mode=mode, options=options, dynamic=dynamic)

    # Neither the compiled method nor an object: PyTorch replaces a backend's result by the module's
    # own `forward` where `__self__` is a lazy graph module (tests/unit/interop/test_torch_compile
    # counts graphs), and looks for the result's code and name.
    def call_graph(*inputs: object) -> object:
        return compiled(*inputs)

    def call_with_numbers(*inputs: Any) -> object:
        return compiled(*[x.item() if i in numbers else x for i, x in enumerate(inputs)])

    return call_with_numbers if numbers else call_graph


class _FrozenGraph:
    """A graph whose weights, which PyTorch's capture has as inputs, are buffers of a module: one
    for each set of weights that it is called with. Later changes in place are not seen."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        weights: frozenset[int],
        order: Mapping[str, Any],
        dynamic: bool | None,
    ) -> None:
        self._graph, self._weights, self._order = graph, weights, {**order, "dynamic": dynamic}
        self._made: list[tuple[tuple[Any, ...], Callable[..., Any]]] = []

    def __call__(self, *inputs: Any) -> Any:
        weights = tuple([x for number, x in enumerate(inputs) if number in self._weights])
        rest = [x for number, x in enumerate(inputs) if number not in self._weights]
        for kept, compiled in self._made:
            if all(map(operator.is_, kept, weights)):
                return compiled(*rest)
        compiled = compile_callable(self._bound(weights).forward, **self._order)
        self._made.append((weights, compiled))
        return compiled(*rest)

    def _bound(self, weights: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
        made = copy.deepcopy(self._graph.graph)
        module = torch.fx.GraphModule(self._graph, made)
        inputs = list(made.find_nodes(op="placeholder"))
        for number, tensor in zip(sorted(self._weights), weights, strict=True):
            name = f"frozen_{number}"
            module.register_buffer(name, tensor)
            with made.inserting_before(inputs[number]):
                read = made.get_attr(name)
            inputs[number].replace_all_uses_with(read)
            made.erase_node(inputs[number])
        module.recompile()
        return module


def _weights_of(graph: torch.fx.GraphModule) -> Iterator[int]:
    """The numbers of inputs that are parameters and buffers of the program's modules."""
    for number, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        source = getattr(node.meta.get("grapharg"), "source", None)
        if "NN_MODULE" in getattr(getattr(source, "guard_source", None), "name", ""):
            yield number


def _with_numbers(graph: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, frozenset[int]]:
    """The graph, and which of its inputs are Python's numbers in it. PyTorch's capture gives a
    number that may change (an `eps` under `dynamic=True`) as a tensor of which the graph asks the
    `item()`; in C++ an operator with an argument `float eps` needs the number itself."""
    made = copy.deepcopy(graph.graph)
    numbers = set()
    for place, (old, node) in enumerate(
        zip(graph.graph.find_nodes(op="placeholder"), made.find_nodes(op="placeholder"))
    ):
        if not _is_wrapped_number(old):
            continue
        for item in list(node.users):
            item.replace_all_uses_with(node)
            made.erase_node(item)
        numbers.add(place)
    return (
        (torch.fx.GraphModule(graph, made), frozenset(numbers)) if numbers else (graph, frozenset())
    )


def _is_wrapped_number(node: torch.fx.Node) -> bool:
    """Whether an input is a tensor that PyTorch's capture made of a number, and is asked for that
    alone."""
    given = node.meta.get("grapharg")
    if not getattr(given, "pass_arg_as_tensor", False) or getattr(given, "is_tensor", True):
        return False
    return all((user.op, user.target) == ("call_method", "item") for user in node.users)


def _is_open(example: object) -> bool:
    """Whether PyTorch's capture took a number, or a size of a tensor, for a symbol."""
    if isinstance(example, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in example.shape)
    return isinstance(example, torch.SymInt | torch.SymFloat)
