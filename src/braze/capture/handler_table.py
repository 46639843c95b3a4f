"""The table of callables that capture answers itself instead of interpreting or calling them.

Handlers stand beside the concept they serve and register here; the registry imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

# handler(interpreter, args, kwargs) -> result
CallHandler: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

CALL_HANDLERS: dict[Any, CallHandler] = {}


def answers(*callables: Any) -> Callable[[CallHandler], CallHandler]:
    """Register a handler for callables, each of which may have one."""

    def register(handler: CallHandler) -> CallHandler:
        for function in callables:
            if function in CALL_HANDLERS:
                raise RuntimeError(f"two handlers for {function}")
            CALL_HANDLERS[function] = handler
        return handler

    return register
