"""A graph's callable with the programs of its scalars on the CPU around it.

begin([step, ..., buffer])          # buffer[k] = ...
results = main([x, ..., *elements])
end([step, ...])                    # step = step + 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, final

import torch

from braze.ir.captured.compile_request import GraphCallable
from braze.ir.graphs.host_scalars import HostCalls
from braze.ir.picking import items_at

# Buffers of a call, and tensors that are their elements.
_Memory: TypeAlias = tuple[list[torch.Tensor], list[torch.Tensor]]


@final
class WithHostScalars:
    """A `GraphCallable` of a graph in three parts.

    The buffers are a call's until it returns: its kernels were given values by then, not pointers.
    A call that is made meanwhile has others.
    """

    __slots__ = ("_begin", "_begins", "_calls", "_end", "_ends", "_free", "_kept", "_main", "text")

    def __init__(
        self, calls: HostCalls, begin: GraphCallable, main: GraphCallable, end: GraphCallable
    ) -> None:
        """begin, main, end: of the graphs of these names."""
        self._begin, self._main, self._end = begin, main, end
        self._calls, self._free = calls, list[_Memory]()
        self._begins, self._ends = items_at(calls.begin), items_at(calls.end)
        self._kept = items_at(calls.main)
        self.text = "\n".join([getattr(part, "text", "") for part in (begin, main, end)])

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The graph's results; raises what the three raise."""
        calls = self._calls
        try:
            memory = self._free.pop()
        except IndexError:
            memory = _new_memory(calls)
        buffers, elements = memory
        own = self._begin([*self._begins(inputs), *buffers])
        given = [*self._kept(inputs), *elements, *own[calls.own :], *inputs[calls.inputs :]]
        results = self._main(given)
        if calls.end:
            self._end([*self._ends(inputs)])
        self._free.append(memory)
        return [results[place] if place >= 0 else own[-1 - place] for place in calls.results]


# --- private ---------------------------------------------------------------------------------


def _new_memory(calls: HostCalls) -> _Memory:
    with torch.inference_mode(False), torch.no_grad():
        buffers = [torch.empty(n, dtype=dtype, device="cpu") for dtype, n in calls.buffers]
        return buffers, [element for buffer in buffers for element in buffer.unbind()]
