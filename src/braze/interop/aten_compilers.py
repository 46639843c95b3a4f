"""User compilers of ATen graphs: `compiler(torch.fx.GraphModule, example_inputs) -> callable`.

The callable takes the inputs one by one, or as one list where it carries `_boxed_call`, as
`torch.compile`'s ahead-of-time backends do, and returns a tuple or list of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from braze.compat.torch.grad_mode import is_autocast_on, without_autocast
from braze.interop.fx_graph import aten_to_fx
from braze.ir.graphs.graph import Graph
from braze.locks import make_lock


@final
class CompiledAtFirstCall:
    """A graph that a user's compiler gets when it is called first, with that call's inputs.

    instead: what runs from then on if the compiler raises; it is given the exception, which it
    may raise.
    """

    __slots__ = ("_compiled", "_compiler", "_instead", "_lock", "module")

    def __init__(
        self,
        graph: Graph,
        compiler: Callable[..., Any],
        instead: Callable[[Exception], Callable[[Sequence[torch.Tensor]], object]],
    ) -> None:
        self.module = aten_to_fx(graph)
        self._compiler = compiler
        self._instead = instead
        self._compiled: Callable[[Sequence[torch.Tensor]], Any] | None = None
        self._lock = make_lock()

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if self._compiled is None:
            with self._lock:
                if self._compiled is None:
                    self._compiled = self._compile(list(inputs))
        if not is_autocast_on():
            return list(self._compiled(inputs))
        with without_autocast():  # the graph has the casts
            return list(self._compiled(inputs))

    def _compile(self, inputs: list[torch.Tensor]) -> Callable[[Sequence[torch.Tensor]], Any]:
        try:
            compiled = self._compiler(self.module, inputs)
        except Exception as error:
            return self._instead(error)
        if getattr(compiled, "_boxed_call", False):
            return lambda inputs: compiled(list(inputs))
        return lambda inputs: compiled(*inputs)
