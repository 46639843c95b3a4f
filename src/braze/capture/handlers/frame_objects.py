"""What `sys._getframe()` gives while a frame is captured: the interpreted frames."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any, final

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.handlers.code_execution import space_of
from braze.capture.opcodes.calls import local_variables
from braze.compat import private_names as private
from braze.compat.python.bytecode_versions import BYTECODE

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@final
class FrameView:
    """One interpreted frame, as far as programs look at frames. It does not leave the capture."""

    def __init__(self, interpreter: Interpreter, index: int) -> None:
        self._interpreter = interpreter
        self._index = index
        frame = interpreter.frames[index]
        self.f_code = frame.code
        self.f_lineno = frame.current[1].line
        self.f_globals = space_of(interpreter, frame.globals)

    @property
    def f_locals(self) -> object:
        """The variables that have a value."""
        frame = self._interpreter.frames[self._index]
        if BYTECODE.frame_locals_are_live and (frame.names is None or frame.locals):
            raise BreakRequested("unsupported-attribute", "frame.f_locals")
        return local_variables(self._interpreter, frame)

    @property
    def f_back(self) -> FrameView:
        """The caller."""
        return _view(self._interpreter, self._index - 1)

    def __getattr__(self, name: str) -> Any:
        """What else a frame has, and only a real one can tell."""
        if hasattr(types.FrameType, name):
            raise BreakRequested("unsupported-attribute", f"frame.{name}")
        raise AttributeError(f"'frame' object has no attribute {name!r}")


def _view(interpreter: Interpreter, index: int) -> FrameView:
    if index < 0:
        raise BreakRequested("unsupported-function", "a look at the frames of callers")
    return FrameView(interpreter, index)


@answers(private.getframe)
def get_frame(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> FrameView:
    depth = args[0] if args else 0
    return _view(interpreter, len(interpreter.frames) - 1 - depth)


def _module_name(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    depth = args[0] if args else kwargs.get("depth", 0)
    index = len(interpreter.frames) - 1 - depth
    if index < 0:
        raise BreakRequested("unsupported-function", "a look at the frames of callers")
    return interpreter.frames[index].globals.get("__name__")


if hasattr(sys, "_getframemodulename"):  # from Python 3.12
    answers(sys._getframemodulename)(_module_name)
