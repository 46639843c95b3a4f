"""Code objects as steps: each decoded instruction beside the handler that carries it out.

Families of instructions register their handlers here, by opcode name; a second handler for one
name fails at import.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from braze.capture.frames.control_signals import BreakRequested
from braze.compat.python.bytecode import Instruction, decode

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# handler(interpreter, frame, instruction) -> True when another frame is on top now.
Handler: TypeAlias = Callable[[Any, Any, Instruction], "bool | None"]
Step: TypeAlias = tuple[Handler, Instruction]

HANDLERS: dict[str, Handler] = {}


def opcode(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for opcodes."""

    def register(handler: Handler) -> Handler:
        for name in names:
            if name in HANDLERS:
                raise RuntimeError(f"two handlers for opcode {name}")
            HANDLERS[name] = handler
        return handler

    return register


@functools.lru_cache(maxsize=8192)
def steps_of(code: types.CodeType) -> tuple[Step, ...]:
    """The steps of a code object."""
    get = HANDLERS.get
    return tuple([(get(i.name, _no_handler), i) for i in decode(code).instructions])


def _no_handler(interpreter: Interpreter, frame: object, instruction: Instruction) -> bool:
    raise BreakRequested("unsupported-opcode", instruction.name)
