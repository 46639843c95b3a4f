"""The Python function that a library gave an operator as its composition.

`Library.impl(name, function, "CompositeImplicitAutograd")` leaves the function to C++, which tells
nobody. It is found by a call of the kernel that ends where its first Python frame begins.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import Any, final

from braze.compat import private_names as private
from braze.compat.private_names import OpOverload, OpOverloadPacket


@final
class _Reached(BaseException):
    """Ends the call of a kernel at its first frame."""

    def __init__(self, frame: types.FrameType) -> None:
        self.frame = frame


def _stop(frame: types.FrameType, event: str, argument: Any) -> None:
    if event == "call":
        raise _Reached(frame)


def composition_of(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
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


def _only_overload(operator: Any) -> Any:
    if isinstance(operator, OpOverload):
        return operator
    assert isinstance(operator, OpOverloadPacket)
    names = operator.overloads()
    return getattr(operator, names[0]) if len(names) == 1 else None


def _as_call(
    frame: types.FrameType,
) -> tuple[types.FunctionType, tuple[Any, ...], dict[str, Any]] | None:
    code, given = frame.f_code, frame.f_locals
    found = [
        function
        for function in gc.get_referrers(code)
        if type(function) is types.FunctionType and function.__globals__ is frame.f_globals
    ]
    if len(found) != 1 or code.co_flags & (_VARARGS | _VARKEYWORDS):
        return None
    names = code.co_varnames[: code.co_argcount]
    others = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return found[0], tuple([given[n] for n in names]), {name: given[name] for name in others}


_VARARGS, _VARKEYWORDS = 4, 8
