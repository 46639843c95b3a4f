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
    """
    # The bound method and not the module: what PyTorch calls is a function of the inputs, and the
    # graph module must stay what the caller's tools expect.
    compiled: Callable[..., Any] = compile_callable(graph.forward, mode=mode, options=options)
    return compiled
