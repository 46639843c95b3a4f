"""Torch-level calls whose sizes are symbols: expressions in the place of what programs see."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from braze.ir.captured.frame import TorchCall
from braze.ir.graphs.graph import Value
from braze.ir.graphs.region import RegionOp
from braze.tracing.symbolic.size_rewriter import Expressions

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def kept_calls(interpreter: Interpreter, made: Expressions | None) -> tuple[TorchCall, ...]:
    """The calls that were noted, as they are known at the end of a capture; where sizes are
    symbols, for user backends alone."""
    if made is None:
        return tuple(interpreter.calls)
    if not interpreter.request.keeps_calls:
        return ()
    return tuple([_in_expressions(call, made) for call in interpreter.calls])


def _in_expressions(call: TorchCall, made: Expressions) -> TorchCall:
    target, given = call.target, call.args
    if isinstance(target, RegionOp) and target.is_open:
        target, numbers = made.closed(target)
        given = (given[0], numbers)
    return replace(
        call,
        target=target,
        args=_rewritten(given, made),
        kwargs=tuple([(name, _rewritten(value, made)) for name, value in call.kwargs]),
        result=_rewritten(call.result, made),
    )


def _rewritten(argument: Any, made: Expressions) -> Any:
    cls = type(argument)
    if cls is Value:
        return made.value(argument)
    if cls is slice:
        parts = (argument.start, argument.stop, argument.step)
        return slice(*[_rewritten(part, made) for part in parts])
    if isinstance(argument, dict):
        return {name: _rewritten(item, made) for name, item in argument.items()}
    if isinstance(argument, (tuple, list)):
        items = [_rewritten(item, made) for item in argument]
        if hasattr(argument, "_fields"):
            return type(argument)(*items)
        return items if isinstance(argument, list) else tuple(items)
    return made.size(argument)
