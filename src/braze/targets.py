"""What can be compiled: functions, methods, modules; and what `braze.api` does with them.

A function becomes one that asks a dispatcher, a module an instance of its own class whose calls
ask one.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, final

import torch

from braze.compat.modules import MODULE_CALLS, has_hooks
from braze.compat.transforms import place_of_transformed
from braze.errors import InternalError, UserError
from braze.interop.backends import Backend
from braze.interop.export import Exported, export_graph, holds_size
from braze.interop.fx_graph import to_fx
from braze.ir.entry import CompileRequest, FrameValues
from braze.ir.frame import Return
from braze.ir.random_ops import drawing_devices
from braze.ir.run_graph import compile_graph_runner
from braze.locks import make_lock
from braze.marks import MARKS, Mark
from braze.options import Options
from braze.pipeline import FrameCompiler, capture_whole, entry_of, is_answered
from braze.runtime.binding import make_binder
from braze.runtime.callees import compile_callees
from braze.runtime.driver import CompiledCallable, Dispatcher
from braze.runtime.entries import Entry
from braze.runtime.guards import explain_failure
from braze.runtime.module_shield import find_of, is_shielded, original_of, shield
from braze.trace import JOURNAL, Journal


@final
class _Dispatchers:
    """Every dispatcher alive in the process, so that `reset` finds them."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()

    def add(self, dispatcher: Dispatcher) -> Dispatcher:
        with self._lock:
            self._dispatchers.add(dispatcher)
        return dispatcher

    def reset(self) -> None:
        with self._lock:
            dispatchers = list(self._dispatchers)
        for dispatcher in dispatchers:  # without the lock: each waits for the compile in progress
            dispatcher.reset()


_DISPATCHERS = _Dispatchers()


def make_dispatcher(options: Options, backend: Backend, journal: Journal) -> Dispatcher:
    """The entries, guards and driver of one `braze.compile` call."""

    def observe(event: str, detail: str) -> None:
        if event == "fault":
            journal.note_fallback(f"a compiled graph failed: {detail}")
        elif event == "idle":
            journal.note_fallback(f"the rest of a frame runs natively: {detail}")
        elif event == "unraised":
            journal.note_fallback(f"run eagerly, where it does not raise: {detail}")

    dispatcher = Dispatcher(
        FrameCompiler(options, backend, journal),
        recompile_limit=options.recompile_limit,
        fullgraph=options.fullgraph,
        observe=observe,
    )
    compile_callees(dispatcher)
    return _DISPATCHERS.add(dispatcher)


def is_program(target: Any) -> bool:
    """Whether a frame begins with the callable's own code. What a transform of torch.func gave is
    called by one, and so is what capture answers itself (`AveragedModel.update_parameters`)."""
    if not isinstance(target, types.FunctionType) or is_answered(target):
        return False
    return place_of_transformed(target.__code__) is None


def compile_function(
    function: types.FunctionType, options: Options, backend: Backend, journal: Journal
) -> Callable[..., Any]:
    """A function that compiles `function` at its first call and at each new kind of input."""
    return CompiledCallable(function, make_dispatcher(options, backend, journal))


def compile_module(
    module: torch.nn.Module, options: Options, backend: Backend, journal: Journal
) -> torch.nn.Module:
    """An instance of the module's own class that shares everything with it and calls compiled."""
    calls = ModuleCalls(make_dispatcher(options, backend, journal))
    remake = functools.partial(_remake, options=options, backend=backend)
    return shield(module, calls.call, forward=calls.forward, remake=remake)


@final
class ModuleCalls:
    """Finds what calls of a compiled module call, with the original module first."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher

    def call(self, original: torch.nn.Module) -> CompiledCallable:
        """What `compiled(...)` calls."""
        return self.dispatcher.compiled(call_function(original))

    def forward(self, original: torch.nn.Module) -> CompiledCallable:
        """What `compiled.forward(...)` calls, past the hooks."""
        return self.dispatcher.compiled(_forward_function(original))


def call_function(module: torch.nn.Module) -> Any:
    """The function that a call of a module runs, with the module first."""
    call = type(module).__call__
    if call not in MODULE_CALLS and type(call) is types.FunctionType:
        return call
    return torch.nn.Module.__call__ if has_hooks(module.__dict__) else _forward_function(module)


def _forward_function(module: torch.nn.Module) -> Any:
    function = type(module).forward
    plain = type(function) is types.FunctionType and "forward" not in module.__dict__
    return function if plain else torch.nn.Module.__call__


def run_only(compiled: Any) -> Any:
    """A compiled function or module by what is compiled of it already; any other as it is."""
    call = compiled
    if is_shielded(compiled):
        call = getattr(find_of(compiled), "__self__", None)
    if not isinstance(call, CompiledCallable | ModuleCalls):
        return compiled
    dispatcher = call.dispatcher.without_compiling()
    compile_callees(dispatcher)
    if isinstance(call, CompiledCallable):
        return CompiledCallable(call.__wrapped__, dispatcher)  # type: ignore[attr-defined]
    calls = ModuleCalls(dispatcher)
    return shield(original_of(compiled), calls.call, forward=calls.forward)


def _remake(module: torch.nn.Module, *, options: Options, backend: Backend) -> torch.nn.Module:
    """The compiled module of a copied or unpickled model."""
    return compile_module(module, options, backend, JOURNAL)


def export_function(
    function: types.FunctionType,
    options: Options,
    bound: tuple[Any, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Exported:
    """Call `function(*bound, *args, **kwargs)` once, captured whole, as a module that takes args
    and kwargs. Raises GraphBreakError where one graph cannot hold it."""
    values = FrameValues(make_binder(function)(*bound, *args, **kwargs), (), function.__globals__)
    request = CompileRequest(function.__code__, 0, values, function)
    eagerly = functools.partial(function, *bound, *args, **kwargs)
    captured = capture_whole(request, options, eagerly)
    runner, draws_on = compile_graph_runner(captured.graph), drawing_devices(captured.graph)
    entry = Entry(entry_of(captured, runner, draws_on))
    inputs = entry.check(values)
    if inputs is None:
        raise InternalError("export", explain_failure(captured.guards, values))
    results = entry.run_graph(inputs)
    result = entry.replay(values, results)
    if isinstance(captured.exit, Return) and holds_size(captured.exit.value):
        raise UserError("export: the result holds a size or a number that changes: return tensors.")
    names = tuple(function.__code__.co_varnames[len(bound) : function.__code__.co_argcount])
    module = export_graph(to_fx(captured), inputs, (names, args, kwargs), results, result)
    return Exported(module, captured.guards)


def disable_module(module: torch.nn.Module) -> torch.nn.Module:
    """A module that shares everything with `module` and is never compiled."""

    def call(original: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    def find(_: torch.nn.Module) -> Callable[..., Any]:
        return call

    MARKS.put(find, Mark.DISABLE)
    return shield(module, find, remake=disable_module)


def original_module(module: torch.nn.Module) -> torch.nn.Module:
    """What a compiled module was made from; any other module itself."""
    return original_of(module)


def reset() -> None:
    """Every compiled function starts afresh."""
    _DISPATCHERS.reset()
