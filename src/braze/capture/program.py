"""Code objects as steps: each decoded instruction beside the handler that carries it out.

Families of instructions register their handlers here, by opcode name; a second handler for one
name fails at import.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeAlias

from braze.compat.bytecode import Instruction, decode

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


def steps_of(
    code: types.CodeType, cache: dict[types.CodeType, tuple[Step, ...]], missing: Handler
) -> tuple[Step, ...]:
    """The steps of a code object; `missing` serves opcodes without a handler."""
    steps = cache.get(code)
    if steps is None:
        get = HANDLERS.get
        steps = tuple((get(i.name, missing), i) for i in decode(code).instructions)
        cache[code] = steps
    return steps
