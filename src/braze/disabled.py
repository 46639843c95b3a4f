"""`braze.disable`: functions, modules and blocks whose calls are never compiled."""

from __future__ import annotations

import functools
import types
from typing import Any, final

import torch

from braze import targets
from braze.errors import UserError
from braze.marks import MARKS, Mark


def disable(function: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Return a function, class or module whose calls are never compiled; also a decorator, and
    without a function a block: `with braze.disable(): ...`.

    A compiled caller breaks its graph at the call. What the function calls runs eagerly too,
    unless it was itself compiled. reason: shown where the graph breaks.
    recursive: False leaves out the function's own tensor operations only: what it calls is
        compiled where its caller is.

    In a block, calls of everything compiled run eagerly. The block is the process's: other threads
    compile nothing either until the last block is left. A compiled function breaks its graph at a
    block inside of it and is compiled again behind the block, unless that raises or loops for long.
    """
    if function is None:
        return Disabling(recursive, reason)
    if not recursive:
        return _disable_frame(function, reason or "")
    if isinstance(function, torch.nn.Module):
        return targets.disable_module(targets.original_module(function), reason or "")
    if isinstance(function, type):
        MARKS.put(function, Mark.DISABLE, reason or "")
        return function
    if MARKS.of(function) is Mark.COMPILED:
        function = function.__wrapped__

    @functools.wraps(function)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    MARKS.put(disabled, Mark.DISABLE, reason or "")
    return disabled


@final
class Disabling:
    """What `disable()` returns: a decorator, and a block that may be entered again."""

    def __init__(self, recursive: bool, reason: str | None) -> None:
        self._recursive, self._reason = recursive, reason

    def __call__(self, function: object) -> Any:
        """The function, class or module, never compiled."""
        return disable(function, self._recursive, reason=self._reason)

    def __enter__(self) -> None:
        targets.enter_eager_block()

    def __exit__(self, *exception: object) -> None:
        targets.leave_eager_block()


for _changes in (Disabling.__enter__, Disabling.__exit__):
    MARKS.put(_changes, Mark.DISABLE, "calls run eagerly in its block")


# --- private ---------------------------------------------------------------------------------


def _disable_frame(function: Any, reason: str) -> Any:
    """A copy of a Python function, with code of its own, so that the original keeps its graphs."""
    if isinstance(function, types.MethodType):
        return types.MethodType(_disable_frame(function.__func__, reason), function.__self__)
    if MARKS.of(function) is Mark.COMPILED:
        function = function.__wrapped__
    if not isinstance(function, types.FunctionType):
        raise UserError(
            "disable(recursive=False) takes a Python function or method: of a module, its "
            f"class's forward; not {function!r}."
        )
    code = function.__code__.replace()
    copied = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(copied, function)
    MARKS.put(copied, Mark.DISABLE_FRAME, reason)
    return copied
