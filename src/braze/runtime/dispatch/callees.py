"""Calls that a frame makes after a graph break, compiled in their own right.

A function that could not be inlined is called through the compiler, so that it gets graphs of
its own; so are methods, modules and other objects whose class has a Python `__call__`.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, final

import torch

from braze.compat.python.code_objects import GENERATOR_FLAGS
from braze.compat.python.hidden_frames import hide_frames
from braze.compat.torch.dynamo_interop import is_data_dependent_step
from braze.compat.torch.nn_modules import compiled_call, module_call
from braze.frozen import frozen
from braze.marks import MARKS, Mark
from braze.runtime.dispatch.compiled_function import CompiledCallable, Dispatcher
from braze.runtime.dispatch.module_wrapper import is_shielded

# What these do inside is no program of the user's.
_LIBRARIES = frozenset({"torch", "braze", "numpy", "triton", *sys.stdlib_module_names}) - {
    "__main__"
}
_MODULE_CALL = torch.nn.Module.__call__


def is_worth_compiling(function: types.FunctionType) -> bool:
    """Whether a function called after a break may hold work for graphs of its own."""
    if function.__code__.co_flags & GENERATOR_FLAGS or (
        MARKS.of(function) not in (None, Mark.DISABLE_FRAME)
    ):
        return False
    module = function.__globals__.get("__name__")
    return not isinstance(module, str) or module.partition(".")[0] not in _LIBRARIES


def compile_callees(
    dispatcher: Dispatcher,
    may_compile: Callable[[types.FunctionType], bool] = is_worth_compiling,
) -> None:
    """Make a dispatcher compile what its frames call after a break."""
    dispatcher.compile_callee = _CompiledCallee(weakref.ref(dispatcher), may_compile)


@final
@frozen(eq=False)
class _CompiledCallee:
    """What a frame calls in the place of a callable. dispatcher: which holds this."""

    dispatcher: Callable[[], Dispatcher | None]
    may_compile: Callable[[types.FunctionType], bool]

    def __call__(self, callable: Any) -> Any:
        kind = type(callable)
        if callable is torch.cond:
            return functools.partial(_choose, self)
        if kind is types.FunctionType and is_data_dependent_step(callable):
            return functools.partial(_step, self, callable)
        if kind is types.FunctionType:
            return self._compiled(callable) if self.may_compile(callable) else callable
        if kind is types.MethodType:
            function = self(callable.__func__)
            same = function is callable.__func__
            return callable if same else types.MethodType(function, callable.__self__)
        if kind in _NO_INSTANCES or kind is CompiledCallable or is_shielded(callable):
            return callable
        call = _python_call(kind)
        if call is None or MARKS.of(kind) is Mark.DISABLE:
            return callable
        if call is _MODULE_CALL:
            if compiled_call(callable) is not None:
                return callable
            return types.MethodType(self._compiled(module_call(callable)), callable)
        if not self.may_compile(call):
            return callable
        return types.MethodType(self._compiled(call), callable)

    def _compiled(self, function: types.FunctionType) -> Any:
        dispatcher = self.dispatcher()
        assert dispatcher is not None, "a frame runs whose dispatcher is gone"
        return dispatcher.compiled(function)


def _python_call(kind: type) -> types.FunctionType | None:
    """The Python function that a call of an instance runs; a scripted module's is none."""
    call = getattr(kind, "__call__", None)  # noqa: B004 - callable() does not say what is called
    if type(call) is not types.FunctionType or issubclass(kind, torch.jit.ScriptModule):
        return None
    own = call is _MODULE_CALL or not issubclass(kind, torch.nn.Module)
    return call if own else None


def _choose(
    compiled: Callable[[Any], Any], pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()
) -> object:
    """`torch.cond`, whose own way of running goes through torch's compiler."""
    return compiled(true_fn if pred else false_fn)(*operands)


def _step(compiled: Callable[[Any], Any], step: Any, *args: Any, **kwargs: object) -> object:
    """An optimizer's step, with its closure compiled."""
    given = {name: compiled(value) for name, value in kwargs.items()}
    return step(*args[:1], *map(compiled, args[1:]), **given)


_NO_INSTANCES = (type, types.BuiltinFunctionType, types.MethodWrapperType)


hide_frames(__name__)
