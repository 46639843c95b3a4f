"""What changes modules or parameters themselves: it is done for real, in one break.

Converting a model and parametrizing it replace data or classes, which no graph does. Where nothing
would change, as for a model that is in float32 already, the graph goes on. So it does where a model
is frozen, or is no longer, before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import parametrize

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.objects.module_attributes import module_entry
from braze.capture.state.guard_context import TENSORS
from braze.capture.training.leaf_creation import set_requires_grad
from braze.compat import private_names as private
from braze.compat.torch.nn_modules import BACKWARD_HOOK_SETUPS

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_ALWAYS = {
    "register_parametrization()": parametrize.register_parametrization,
    "remove_parametrizations()": parametrize.remove_parametrizations,
    "swap_tensors()": torch.utils.swap_tensors,
}


def _changes(name: str) -> Callable[..., object]:
    def stop(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        raise BreakRequested("module-change", name)

    return stop


for _name, _function in _ALWAYS.items():
    answers(_function)(_changes(_name))


@answers(torch.nn.Module.requires_grad_)
def require_gradients(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> object:
    """Parameters that nothing was done with are changed one by one."""
    module, wanted = _bound(*args, **kwargs)
    for parameter in interpreter.call(list, interpreter.call(torch.nn.Module.parameters, module)):
        try:
            set_requires_grad(interpreter, parameter, bool(wanted))
        except BreakRequested:
            raise BreakRequested("module-change", f"Module.requires_grad_({wanted})") from None
    return module


def _bound(self: object, requires_grad: bool = True) -> tuple[object, bool]:
    return self, requires_grad


@answers(private.convert_module)
def convert(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`to`, `double`, `cuda` ...: nothing to do where a conversion gives each tensor itself."""
    module, function, *_ = args
    for each in interpreter.call(list, interpreter.call(torch.nn.Module.modules, module)):
        for kind in ("_parameters", "_buffers"):
            for name in interpreter.call(list, interpreter.attribute(each, kind)):
                tensor = module_entry(interpreter, each, name)
                if tensor is not None and not _is_kept(interpreter, function, tensor):
                    raise BreakRequested("module-change", f"conversion of {type(each).__name__}")
    return module


def _is_kept(interpreter: Interpreter, function: object, tensor: object) -> bool:
    if type(tensor) not in TENSORS or interpreter.attribute(tensor, "grad") is not None:
        return False
    return interpreter.call(function, tensor) is tensor


def _set_up_backward_hook(function: Any) -> Callable[..., object]:
    """Backward hooks hang on nodes of autograd's own graph: where gradients flow, those are made
    for real, and the module's forward is a graph of its own between."""

    def set_up(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        hook, values = args
        given = values if isinstance(values, tuple) else (values,)
        tensors = [value for value in given if type(value) in TENSORS]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            name = type(interpreter.attribute(hook, "module")).__name__
            raise BreakRequested("backward-hook", f"a backward hook of {name}")
        return interpreter.call_python(function, args, kwargs)

    return set_up


for _function in BACKWARD_HOOK_SETUPS:
    answers(_function)(_set_up_backward_hook(_function))
