"""`torch.compile(model, backend="braze")`: our pipeline behind PyTorch's capture.

PyTorch finds `braze_backend` through the entry point group `torch_dynamo_backends`. The graph that
it captured is a plain module to us: its `forward` is captured again and compiled. PyTorch's guards
have been checked by then; ours are few, because the graph's code reads nothing but its arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from braze.api import compile as compile_callable


def braze_backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
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
    compiled = compile_callable(graph.forward, mode=mode, options=options, dynamic=dynamic)

    # Neither the compiled method nor an object: PyTorch replaces a backend's result by the module's
    # own `forward` where `__self__` is a lazy graph module (tests/unit/interop/test_torch_compile
    # counts graphs), and looks for the result's code and name.
    def call_graph(*inputs: Any) -> Any:
        return compiled(*inputs)

    def call_with_numbers(*inputs: Any) -> Any:
        return compiled(*[x.item() if i in numbers else x for i, x in enumerate(inputs)])

    return call_with_numbers if numbers else call_graph


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


def _is_open(example: Any) -> bool:
    """Whether PyTorch's capture took a number, or a size of a tensor, for a symbol."""
    if isinstance(example, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in example.shape)
    return isinstance(example, torch.SymInt | torch.SymFloat)
