"""Functions that the program has traced without being interpreted: `nonstrict_trace`.

The function runs natively on fake tensors, whatever its Python code does, and the operators that it
calls are recorded. Tensors that it reaches otherwise than by its arguments (globals, parameters of
a module that it closes over) become inputs of the graph, held as objects: nothing that it reads is
guarded but their metadata.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch
from torch.overrides import TorchFunctionMode

from braze.capture.calls.torch_calls import leaf_call
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.guard_context import CONSTANTS, TENSORS
from braze.compat.private_names import pytree
from braze.compat.torch.dispatcher import WithoutModes
from braze.compat.torch.functorch import unwrapped
from braze.ir.captured.guard import GuardKind
from braze.ir.captured.source import ObjectSource
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def call_nonstrict(
    interpreter: Interpreter,
    function: types.FunctionType,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Any:
    """One call of torch's for the whole function, from the tensors and numbers among its arguments
    to those among its results. Raises BreakRequested for results that are neither."""
    contents = interpreter.side_effects.contents
    leaves, structure = interpreter.call(pytree.tree_flatten, (args, kwargs))
    leaves = list(contents(leaves))
    given = [leaf for leaf in leaves if _is_passed(leaf)]
    for leaf in leaves:
        source = None if _is_passed(leaf) else interpreter.guard_context.source_of(leaf)
        if source is not None:
            interpreter.guard_context.guard(source, GuardKind.ID_MATCH, leaf)
    structures: list[Any] = []
    adopting = _Adopting(interpreter, function)

    def flat(*passed: object) -> Any:
        """The function from leaves to leaves; a backend's graph holds this one."""
        found = iter(passed)
        whole = [next(found) if _is_passed(leaf) else leaf for leaf in leaves]
        positional, keywords = pytree.tree_unflatten(whole, structure)
        with adopting:
            made, result = pytree.tree_flatten(function(*positional, **keywords))
        structures.append(result)
        return tuple(made)

    flat.__name__ = function.__name__
    made = leaf_call(interpreter, flat, tuple(given), {})
    adopting.ends()
    if not all(map(_is_passed, made)):
        detail = f"{function.__qualname__} gives what is neither a tensor nor a number"
        raise BreakRequested("unsupported-tensor", detail)
    return interpreter.call(pytree.tree_unflatten, list(made), structures[-1])


# --- private ---------------------------------------------------------------------------------


def _is_passed(leaf: object) -> bool:
    return type(leaf) in TENSORS or type(leaf) in CONSTANTS


@final
class _Adopting(TorchFunctionMode):
    """A mode that puts fake tensors in the place of real ones while a function is traced, and does
    nothing where a backend's graph runs it."""

    def __init__(self, interpreter: Interpreter, function: types.FunctionType) -> None:
        super().__init__()
        self._interpreter: Interpreter | None = interpreter
        self._name = function.__qualname__

    def ends(self) -> None:
        """The trace is over: real tensors are what the function works on from now on."""
        self._interpreter = None

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        if self._interpreter is None:
            return func(*args, **(kwargs or {}))
        given, keywords = pytree.tree_map(self._adopted, (tuple(args), kwargs or {}))
        return func(*given, **keywords)

    def _adopted(self, value: object) -> object:
        if not isinstance(value, torch.Tensor) or type(unwrapped(value)) is TracedTensor:
            return value  # transforms of torch.func wrap fake tensors
        assert self._interpreter is not None
        source = ObjectSource(f"a tensor that {self._name} holds", value)
        with WithoutModes():
            return self._interpreter.guard_context.track(value, source)
