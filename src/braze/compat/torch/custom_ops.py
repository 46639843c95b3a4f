"""Operators that programs define by `torch.library`, and the gradients that they register.

`Library.impl(name, function, "CompositeImplicitAutograd")` leaves the function to C++, which tells
nobody. It is found by a call of the kernel that ends where its first Python frame begins.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections.abc import Callable
from typing import Any, final

import torch

from braze.compat import private_names as private
from braze.compat.private_names import OPDEFS, OpOverload, OpOverloadPacket
from braze.frozen import frozen


@final
@frozen(eq=False)
class RegisteredGradient:
    """operator: the overload; setup_context: keeps what the backward needs, by keywords (`ctx`,
    `inputs`, `output`), or None; backward: `(ctx, *gradients) -> gradients of the inputs`."""

    operator: torch._ops.OpOverload
    setup_context: Callable[..., Any] | None
    backward: Callable[..., Any]


def definition_of(function: Any) -> object:
    """What `torch.library.custom_op` made the operator of; None for all others. function: an
    overload, or the packet that stands for the only one."""
    name = getattr(function, "_qualified_op_name", None)
    if name is None:
        name = function._schema.name
    return OPDEFS.get(name)


def registered_gradient(definition: Any) -> RegisteredGradient | None:
    """The gradient that the program registered for an operator; None where it has none, and where
    it is one of an operator that writes or gives several lists of tensors."""
    if definition is None or definition._backward_fn is None:
        return None
    operator = definition._opoverload
    if not _is_expressible(operator):
        return None
    return RegisteredGradient(operator, definition._setup_context_fn, definition._backward_fn)


def gradient_by_name(function: Any) -> RegisteredGradient | None:
    """The same of an operator that `torch.library.define` made and `register_autograd` gave a
    gradient by its name. Nothing but the kernel of its autograd key knows it: an autograd node
    that the operator makes of tensors without memory leads there."""
    operator = getattr(function, "default", function)
    schema = getattr(operator, "_schema", None)
    if schema is None or not _is_expressible(operator):
        return None
    namespace, _, name = schema.name.partition("::")
    if f"{namespace}/{name}/Autograd" not in private.library_kernels:
        return None
    found = _info_of(operator)
    if found is None:
        return None
    return RegisteredGradient(operator, found._setup_context_fn, found._backward_fn)


def _is_expressible(operator: Any) -> bool:
    returned = [str(result.type) for result in operator._schema.returns]
    return not operator._schema.is_mutable and sum("List" in kind for kind in returned) < 2


@functools.cache
def _info_of(operator: Any) -> Any:
    """What `register_autograd` keeps of an operator; None where nothing was registered."""
    if any(str(argument.type) != "Tensor" for argument in operator._schema.arguments):
        return None
    count = len(operator._schema.arguments)
    try:
        with torch.enable_grad():
            given = [torch.empty(1, device="meta", requires_grad=True) for _ in range(count)]
            made = operator(*given)
    except Exception:  # its shape rule may refuse such tensors
        return None
    node = getattr(made[0] if isinstance(made, (tuple, list)) else made, "grad_fn", None)
    forward = getattr(getattr(node, "_forward_cls", None), "forward", None)
    if getattr(forward, "__module__", "") != "torch._library.autograd":
        return None
    return _cell(forward, "info") if _cell(forward, "op") is operator else None


def triton_function(definition: Any, device_type: str) -> types.FunctionType | None:
    """The function that computes an operator of `torch.library.triton_op` on a device, which a
    compiler may look into; None for other operators, and where a kernel is disabled."""
    if _function_in(getattr(definition, "_init_fn", None)) is None or definition._disabled_kernel:
        return None
    kernels = definition._backend_fns
    own = kernels.get(device_type, kernels.get(None))
    own = getattr(own, "__wrapped__", own)  # as marked for other compilers
    found = _cell(own, "fn")
    return _function_in(found) or (found if isinstance(found, types.FunctionType) else None)


def _function_in(kernel: object) -> types.FunctionType | None:
    """What `torch.library.triton_op` decorated, of the kernel that it made."""
    name = getattr(kernel, "__qualname__", "")
    if name != "triton_op.<locals>.dec.<locals>.backend_fn":
        return None
    found = _cell(kernel, "fn")
    return found if isinstance(found, types.FunctionType) else None


def _cell(function: Any, name: str) -> object:
    """What a variable around a function holds."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    return cells[name].cell_contents if name in cells else None


def positional(
    operator: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[object] | None:
    """All arguments in the order of the operator's schema; None where they do not fit it."""
    left = dict(kwargs)
    values = list(args)
    for argument in operator._schema.arguments[len(args) :]:
        if argument.name in left:
            values.append(left.pop(argument.name))
        elif argument.has_default_value():
            values.append(argument.default_value)
        else:
            return None
    return None if left or len(values) != len(operator._schema.arguments) else values


@final
class _Reached(BaseException):
    """Ends the call of a kernel at its first frame."""

    def __init__(self, frame: types.FrameType) -> None:
        self.frame = frame


def _stop(frame: types.FrameType, event: str, argument: object) -> None:
    if event == "call":
        raise _Reached(frame)


def composition_of(
    operator: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[types.FunctionType, tuple[Any, ...], dict[str, Any]] | None:
    """The function that composes an operator, and what the dispatcher calls it with for these
    arguments; None where it is not of Python, or cannot be found."""
    overload = _only_overload(operator)
    if overload is None or sys.getprofile() is not None:
        return None
    key = private.DispatchKey.CompositeImplicitAutograd
    place, _, name = overload.name().partition("::")
    if f"{place}/{name}/CompositeImplicitAutograd" not in private.library_kernels:
        return None
    try:
        sys.setprofile(_stop)
        overload._op_dk(key, *args, **kwargs)
    except _Reached as reached:
        sys.setprofile(None)
        return _as_call(reached.frame)
    finally:
        sys.setprofile(None)
    return None


def _only_overload(operator: object) -> Any:
    if isinstance(operator, OpOverload):
        return operator
    assert isinstance(operator, OpOverloadPacket)
    names = operator.overloads()
    return getattr(operator, names[0]) if len(names) == 1 else None


def _as_call(
    frame: types.FrameType,
) -> tuple[types.FunctionType, tuple[object, ...], dict[str, object]] | None:
    code, given = frame.f_code, frame.f_locals
    function = _function_of(code, frame.f_globals)
    if function is None or code.co_flags & (_VARARGS | _VARKEYWORDS):
        return None
    names = code.co_varnames[: code.co_argcount]
    others = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return function, tuple([given[n] for n in names]), {name: given[name] for name in others}


def _function_of(code: types.CodeType, space: dict[str, object]) -> types.FunctionType | None:
    """The function that runs the code: one like it where it has no cells, since each of its
    arguments is given; else the only one, which is not found behind `gc.freeze()`."""
    if not code.co_freevars:
        return types.FunctionType(code, space)
    found = [f for f in gc.get_referrers(code) if type(f) is types.FunctionType]
    return found[0] if len(found) == 1 else None


_VARARGS, _VARKEYWORDS = 4, 8
