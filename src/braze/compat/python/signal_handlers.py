"""What handlers of signals raise while a frame is compiled goes to the program, past the compiler.

A handler runs between any two instructions, those of the compiler included. An exception of its own
(a time limit's) would be taken there for a fault of the compiler, for a mistake of the program, or
for nothing; the signal does not come a second time.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, TypeAlias

from braze.errors import Interrupted

Handler: TypeAlias = Callable[[int, FrameType | None], Any]
_SIGNALS = tuple(sorted(set(signal.Signals)))


def wrap_handlers() -> dict[int, tuple[Handler, Handler]]:
    """Let what the program's handlers raise pass every `except Exception` from now on: by signal,
    the handler and what stands in its place. Python's own one of Ctrl-C raises what does anyway."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    wrapped: dict[int, tuple[Handler, Handler]] = {}
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if not callable(handler) or handler is signal.default_int_handler:
            continue
        if isinstance(handler, functools.partial) and handler.func is _handle:
            continue  # a compile within a compile
        inside = functools.partial(_handle, handler)
        wrapped[number] = handler, inside
        signal.signal(number, inside)
    return wrapped


def unwrap_handlers(wrapped: Mapping[int, tuple[Handler, Handler]]) -> None:
    """Put the program's handlers back, but where it has set others."""
    for number, (handler, inside) in wrapped.items():
        if signal.getsignal(number) is inside:
            signal.signal(number, handler)


def is_raised_by_handler(error: BaseException) -> bool:
    """Whether a handler of a signal that the program set was among the frames that raised."""
    codes = {_code_of(signal.getsignal(number)) for number in _SIGNALS} - {None}
    place = error.__traceback__
    while place is not None and codes:
        if place.tb_frame.f_code in codes:
            return True
        place = place.tb_next
    return False


def _code_of(handler: object) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.args[0] if handler.func is _handle else handler.func
    if isinstance(handler, MethodType):
        handler = handler.__func__
    if not isinstance(handler, FunctionType):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004
    return handler.__code__ if isinstance(handler, FunctionType) else None


def _handle(handler: Handler, number: int, frame: FrameType | None) -> None:
    try:
        handler(number, frame)
    except Exception as exception:
        raise Interrupted(exception) from None
