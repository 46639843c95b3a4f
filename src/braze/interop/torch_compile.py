"""`torch.compile(model, backend="braze")`: our pipeline behind PyTorch's capture.

PyTorch finds `braze_backend` through the entry point group `torch_dynamo_backends`. The graph that
it captured is a plain module to us: its `forward` is captured again and compiled. PyTorch's guards
have been checked by then; ours are few, because the graph's code reads nothing but its arguments.
"""

from __future__ import annotations

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
    compiled = compile_callable(graph.forward, mode=mode, options=options, dynamic=dynamic)

    # Neither the compiled method nor an object: PyTorch replaces a backend's result by the module's
    # own `forward` where `__self__` is a lazy graph module (tests/unit/interop/test_torch_compile
    # counts graphs), and looks for the result's code and name.
    def call_graph(*inputs: Any) -> Any:
        return compiled(*inputs)

    return call_graph


def _is_open(example: Any) -> bool:
    """Whether PyTorch's capture took a number, or a size of a tensor, for a symbol."""
    if isinstance(example, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in example.shape)
    return isinstance(example, torch.SymInt | torch.SymFloat)
