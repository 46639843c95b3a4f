"""Operators of `torch.library` whose gradient the program registered: functions of autograd.

    torch.library.register_autograd("mine::op", backward, setup_context=setup)
    y = torch.ops.mine.op(x)       is captured as F.apply(x), with
        F.forward = the operator, F.setup_context = setup, F.backward = backward

PyTorch calls these two from C++, where nobody would see what they read. As methods of a function of
autograd they are interpreted (`autograd_functions.py`), and the operator is a node of the graph.

Left to PyTorch, and so a break where a gradient is needed: operators with keyword-only arguments
or lists of tensors, such that write to their arguments, and gradients that are registered by
`torch.library.Library.impl`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.torch_calls import leaf_call
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.guard_context import TENSORS
from braze.capture.training.autograd_functions import OperatorFunction, apply_function
from braze.compat.torch.custom_ops import (
    composition_of,
    definition_of,
    positional,
    registered_gradient,
)
from braze.compat.torch.dispatcher import has_python_kernel_for_all

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def call_operator(
    interpreter: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call of an operator overload, or of the packet of several."""
    if has_python_kernel_for_all(function) and not interpreter.transforms:
        found = interpreter.native(composition_of, function, args, kwargs)
        if found is not None:
            composition, values, keywords = found
            interpreter.guard_context.source_of_function(composition)
            return interpreter.call(composition, *values, **keywords)
    options = interpreter.request.options
    if not (options is not None and options.fullgraph) and has_python_kernel_for_all(function):
        # It would really be called while the frame is captured, and what it reads is not guarded.
        raise BreakRequested("unsupported-tensor", f"{function}, whose kernel is Python code")
    definition = definition_of(function)
    if definition is not None and torch.is_grad_enabled() and not interpreter.transforms:
        gradient = registered_gradient(definition)
        values = None if gradient is None else positional(gradient.operator, args, kwargs)
        if values is not None and any(type(v) in TENSORS and v.requires_grad for v in values):
            assert gradient is not None
            cls = _function_of(gradient.operator, gradient.setup_context, gradient.backward)
            return apply_function(interpreter, (cls, *values), {})
    return leaf_call(interpreter, function, args, kwargs)


# --- private -------------------------------------------------------------------------------------


@functools.lru_cache(256)
def _function_of(operator: Any, setup: Any, backward: Any) -> type:
    """The class of autograd's that stands for the operator: one, since guards know it."""

    def forward(*values: Any) -> Any:
        return operator(*values)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        if setup is not None:
            setup(ctx=ctx, inputs=inputs, output=output)

    methods = {"forward": forward, "setup_context": setup_context, "backward": backward}
    body = {name: staticmethod(method) for name, method in methods.items()}
    name = str(operator)
    return type(name, (OperatorFunction,), {**body, "operator": operator, "__qualname__": name})
