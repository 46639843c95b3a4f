"""A user backend's graph that fails half-way leaves its inputs as they were.

Other graphs write to their inputs when all else is done. A graph of torch-level calls writes where
the program does; where a later call raises, the frame is run again from its start, natively.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import torch

from braze.compat.torch.ambient_state import (
    ENTER_AUTOCAST,
    ambient_state,
    autocast_depth,
    set_ambient_state,
)
from braze.compat.torch.autograd_engine import set_versions, version_of
from braze.compat.torch.dispatcher import set_grad_enabled
from braze.compat.torch.saved_tensor_hooks import raised_by_hooks
from braze.ir.captured.compile_request import PartlyRun
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.op_effects import is_irrevocable
from braze.shapes.binding import ProgramRaises

_Run: TypeAlias = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def undoing_writes(graph: Graph, run: _Run) -> _Run:
    """`run`, undone where it raises. Raises PartlyRun where that cannot be, because gradients flow
    through what was written, or an operator of a library did more than compute."""
    written = {mutation.input for mutation in graph.mutations}
    places = [number for number, value in enumerate(graph.inputs) if value in written]
    acts = any(is_irrevocable(node.op) for node in graph.nodes)
    # What the graph says where the program itself raises: its nodes raise RuntimeError.
    said = {check.message for check in graph.sizes.checks if check.raises}

    def run_or_undo(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        gradients = torch.is_grad_enabled()
        kept = [_Kept(inputs[place]) for place in places]
        try:
            return run(inputs)
        except Exception as fault:
            set_grad_enabled(gradients)  # which the graph switches where the program does
            if acts or raised_by_hooks(fault):
                raise PartlyRun(fault) from None
            if not all(one.can_be_restored() for one in kept):
                raise PartlyRun(fault) from fault
            for one in kept:
                one.restore()
            if str(fault) in said:
                raise ProgramRaises(str(fault)) from None
            raise

    return run_or_undo


def leaving_regions(module: torch.fx.GraphModule, run: Callable[..., object]) -> Callable[..., Any]:
    """What was made of a graph; where it raises in the middle of a region of autocast, the region
    is left."""
    if not module.graph.find_nodes(op="call_function", target=ENTER_AUTOCAST):
        return run

    def run_or_leave(*inputs: object) -> object:
        before, depth = ambient_state(), autocast_depth()
        try:
            return run(*inputs)
        except BaseException:
            set_ambient_state(before, depth - autocast_depth())
            raise

    return run_or_leave


@final
class _Kept:
    """A tensor, and what it was."""

    __slots__ = ("data", "had_gradient", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.version = version_of(tensor)
        self.data = tensor.detach().clone()
        self.had_gradient = tensor.requires_grad

    def can_be_restored(self) -> bool:
        """A history that a tensor had, or that of a view's base, cannot be given back."""
        return not self._has_new_history() or not (self.had_gradient or self.tensor._is_view())

    def restore(self) -> None:
        """Make the tensor what it was. A write through its `data` does not raise its version."""
        version = version_of(self.tensor)
        if version == self.version and torch.equal(self.tensor, self.data):
            return
        has_new_history = self._has_new_history()
        with torch.no_grad():
            self.tensor.copy_(self.data)
        if version == self.version and not self.tensor.is_inference():
            set_versions((self.tensor,), (version,))
        if has_new_history:
            self.tensor.detach_()

    def _has_new_history(self) -> bool:
        is_written = version_of(self.tensor) != self.version
        is_leaf = not self.tensor.requires_grad or self.tensor.is_leaf
        return is_written and not is_leaf
