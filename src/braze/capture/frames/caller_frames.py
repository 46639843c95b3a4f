"""In whose name real code is called: a warning names the line of its caller, or of a caller's."""

from __future__ import annotations

import types
from typing import Any, final

from braze.capture.frames.frame import Frame
from braze.compat.python.frames import Caller, caller_at, outside_callers

C_FUNCTIONS = frozenset(
    {
        types.BuiltinFunctionType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.MethodWrapperType,
        types.ClassMethodDescriptorType,
    }
)
_SEEN = 3  # torch.nn.Softmax warns in the name of the third


@final
class Callers:
    """Functions that call from the lines that the frames of a capture are at.

    frames: the interpreter's, which change.
    """

    def __init__(self, frames: list[Frame]) -> None:
        self._frames = frames
        self._outside = outside_callers(_SEEN)
        # By the identity of instructions, which are kept alive beside them.
        self._known: dict[int, tuple[Caller, Any]] = {}

    def at(self, frame: Frame) -> Caller:
        """The one at the line of a frame."""
        instruction = frame.current[1]
        found = self._known.get(id(instruction))
        if found is None:
            caller = caller_at(frame.code, instruction.line, frame.globals)
            found = self._known[id(instruction)] = caller, instruction
        return found[0]

    def captured(self, count: int) -> list[Caller]:
        """Those in the captured frame, innermost first: as many as there are. The two frames of
        `nn.Module.__call__` are at the line that calls the module."""
        found: list[Caller] = []
        missing = 0
        for frame in reversed(self._frames):
            found += [self.at(frame)] * (1 + missing)
            missing = 2 if frame.of_module else 0
            if len(found) >= count:
                break
        return found[:count]

    def seen_by(self, function: object) -> list[Caller]:
        """Those of a function of torch's that is called now. C++ sees one."""
        if self._frames and type(function) in C_FUNCTIONS:
            return [self.at(self._frames[-1])]
        return [*self.captured(_SEEN), *self._outside][:_SEEN]

    def release(self) -> None:
        """Let go of the program's modules."""
        self._known.clear()
        self._outside.clear()
