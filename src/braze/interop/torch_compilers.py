"""User compilers of torch-level graphs: `compiler(torch.fx.GraphModule, example_inputs)`.

A graph whose sizes are symbols computes with them, so that what runs it serves all sizes. A
compiler that looks at its example inputs instead (it traces them, or hands them to one that takes
sizes for constants) makes something that raises at other sizes: it is asked again, for those.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from braze.interop.undo_writes import leaving_regions, undoing_writes
from braze.ir.captured.compile_request import GraphCallable, PartlyRun
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.random_ops import drawing_devices
from braze.ir.graphs.run_graph import checking_writes
from braze.ir.graphs.version_counters import putting_back
from braze.locks import make_lock


def run_by_compiler(
    graph: Graph,
    module: torch.fx.GraphModule,
    compiler: Callable[..., Callable[..., object]],
    example_inputs: Sequence[object],
    most: int,
) -> GraphCallable:
    """What a user's compiler makes of a graph, whose torch-level calls are `module`; a fault leaves
    the inputs as they were. most: how often it may be asked again, for other sizes."""
    if not most:
        compiled = leaving_regions(module, compiler(module, example_inputs))
        made = undoing_writes(graph, checking_writes(graph, lambda inputs: compiled(*inputs)))
        return putting_back(made, graph)
    by_sizes = _BySizes(module, compiler, example_inputs, most)
    run = undoing_writes(graph, checking_writes(graph, by_sizes))

    def run_or_compile(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        try:
            return run(inputs)
        except PartlyRun:
            raise
        except Exception:
            if not by_sizes.compile_again(inputs) or drawing_devices(graph):
                raise  # random state is put back above
        return run(inputs)

    return putting_back(run_or_compile, graph)


@final
class _BySizes:
    """A torch-level graph with symbolic sizes: compiled once, and again for sizes that what was
    made does not serve."""

    __slots__ = ("_by_sizes", "_compiled", "_compiler", "_lock", "_module", "_most")

    def __init__(
        self,
        module: torch.fx.GraphModule,
        compiler: Callable[..., Callable[..., Any]],
        example_inputs: Sequence[object],
        most: int,
    ) -> None:
        self._module = module
        self._compiler = compiler
        self._most = most
        self._compiled = leaving_regions(module, compiler(copy.copy(module), example_inputs))
        self._by_sizes: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._by_sizes[_sizes(example_inputs)] = self._compiled
        self._lock = make_lock()

    def __call__(self, inputs: Sequence[object]) -> Any:
        return (self._by_sizes.get(_sizes(inputs)) or self._compiled)(*inputs)

    def compile_again(self, inputs: Sequence[object]) -> bool:
        """After a fault: compile for the sizes of these inputs; whether that is worth a try."""
        sizes = _sizes(inputs)
        with self._lock:
            if sizes in self._by_sizes or len(self._by_sizes) > self._most:
                return False
            made = self._compiler(copy.copy(self._module), list(inputs))
            self._by_sizes[sizes] = leaving_regions(self._module, made)
        return True


def _sizes(inputs: Sequence[object]) -> tuple[object, ...]:
    return tuple([(*x.shape, *x.stride()) if isinstance(x, torch.Tensor) else x for x in inputs])
