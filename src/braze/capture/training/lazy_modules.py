"""A lazy module's first call gives it its sizes, for real, and the frame is captured anew.

    m = nn.LazyLinear(4)
    m(x)       # capture stops at `m._infer_parameters`, calls it, and begins again: m is a Linear

The program makes that call before the graph runs instead of in its midst, so it is made only where
nobody can tell: nothing was changed and no random number drawn before it. torch's own modules ask
their input for its metadata alone, and get a tensor without memory of its own; a program's module
may read the data, and is called only with what the frame was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested, LazyModuleCalled
from braze.capture.state.guard_context import TENSORS
from braze.compat import private_names as private
from braze.compat.torch.ambient_state import ambient_state
from braze.frozen import frozen
from braze.ir.graphs.op_effects import has_effects
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_CODE, _WHAT = "module-change", "the sizes of a lazy module"
_OWN_MODULES = "torch.nn.modules."


def _same(value: object) -> object:
    return value


@answers(private.infer_parameters)
def infer_sizes(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """The hook that runs before a lazy module's first forward."""
    bound, module, values, *rest = args
    named = rest[0] if rest else kwargs.get("kwargs")
    setup = getattr(type(module).initialize_parameters, "__module__", None) or ""
    of_torch = setup.startswith(_OWN_MODULES)
    if bound is not module or not _may_come_first(interpreter, module, of_torch):
        raise BreakRequested(_CODE, _WHAT)

    def real(tensor: object) -> object:
        return _metadata(tensor) if of_torch else _given(interpreter, tensor)

    given = _each((values, named), real, interpreter.side_effects.native)
    raise LazyModuleCalled(lambda: module._infer_parameters(module, *_each(given, _like)))


# --- private ---------------------------------------------------------------------------------


@final
@frozen
class _Metadata:
    """What torch's own lazy modules ask their input for."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def _may_come_first(interpreter: Interpreter, module: object, of_torch: bool) -> bool:
    """Whether nobody can tell a call of the module's from one before all that the frame did.
    of_torch: it reads no data."""
    entered = interpreter.entered_state
    if id(module) not in interpreter.guard_context.known:
        return False
    if ambient_state().with_modes_of(entered) != entered:
        return False
    (side_effects, *counts), tracer = interpreter.marks(), interpreter.tracer
    if any(side_effects) or any(counts) or interpreter.draws:
        return False
    if not of_torch and any((s.place.base or s.place).version for s, _ in tracer.inputs):
        return False
    return not any(has_effects(call[0]) for call in tracer.recorder.calls)


def _each(
    value: Any, leaf: Callable[[object], object], plain: Callable[[object], object] = _same
) -> Any:
    """An argument with `leaf(x)` for each tensor, or its metadata, in it."""
    value = plain(value)
    cls = type(value)
    if cls in TENSORS or cls is _Metadata or isinstance(value, torch.Tensor):
        return leaf(value)
    if isinstance(value, tuple):
        items = [_each(item, leaf, plain) for item in value]
        return cls(*items) if hasattr(value, "_fields") else tuple(items)
    if cls is list:
        return [_each(item, leaf, plain) for item in value]
    if cls is dict:
        return {key: _each(item, leaf, plain) for key, item in value.items()}
    if value is None or cls in (bool, int, float, str):
        return value
    raise BreakRequested(_CODE, f"{_WHAT}, called with a {cls.__name__}")


def _metadata(tensor: object) -> object:
    if type(tensor) is not TracedTensor:
        return tensor
    return _Metadata(tuple(map(int, tensor.shape)), tensor.dtype, tensor.device)


def _like(tensor: object) -> Any:
    """A tensor of this shape with one element's memory, none of which is read."""
    if type(tensor) is not _Metadata:
        return tensor
    return torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


def _given(interpreter: Interpreter, tensor: object) -> object:
    """The tensor that the frame was given."""
    for fake, real in interpreter.tracer.inputs:
        if fake is tensor and real is not None:
            return real
    raise BreakRequested(_CODE, f"{_WHAT}, whose own code is called with what the frame computed")
