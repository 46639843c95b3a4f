"""What can be compiled: functions, methods, modules; and what `braze.api` does with them.

A function becomes one that asks a dispatcher, a module an instance of its own class whose calls
ask one.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, final

import torch

from braze.compat.python.other_compilers import interpreted_as
from braze.compat.torch.functorch import place_of_transformed
from braze.compat.torch.nn_modules import (
    MODULE_CALL,
    MODULE_CALLS,
    compiled_call,
    has_hooks,
    module_call,
    set_compiled_call,
)
from braze.compile_records import CallableStatus
from braze.errors import InternalError, UserError
from braze.interop.backends import Backend, Level
from braze.interop.export import Exported, export_graph, holds_size
from braze.interop.fx_graph import to_fx
from braze.ir.captured.compile_request import CompileRequest, FrameValues, is_left_out
from braze.ir.captured.frame import Return
from braze.ir.graphs.random_ops import drawing_devices
from braze.ir.graphs.run_graph import compile_graph_runner
from braze.locks import make_lock
from braze.marks import MARKS, Mark, orders_of_capture
from braze.options import Options
from braze.pipeline import FrameCompiler, capture_whole, is_answered
from braze.runtime.dispatch.argument_binding import make_binder
from braze.runtime.dispatch.cache_entries import CacheEntry, FrameCache
from braze.runtime.dispatch.callees import compile_callees
from braze.runtime.dispatch.compiled_function import CompiledCallable, CompiledFunctions, Dispatcher
from braze.runtime.dispatch.entry import entry_of
from braze.runtime.dispatch.hooks_outside import call_between_hooks, runs_hooks_outside
from braze.runtime.dispatch.module_wrapper import find_of, is_shielded, original_of, shield
from braze.runtime.dispatch.recent_dispatchers import RECENT
from braze.runtime.dispatch.stance import DEFAULT, EAGER, Stance
from braze.runtime.dispatch.status import status_of
from braze.runtime.guards.evaluate import explain_failure
from braze.runtime.launch.frozen_weights import FROZEN
from braze.runtime.launch.packed_weights import PACKED
from braze.trace import JOURNAL, Journal


@final
class _Dispatchers:
    """Every dispatcher alive in the process, for `reset`, `status` and `set_stance`."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()
        self._stance = DEFAULT
        self._eager_blocks = 0

    def add(self, dispatcher: Dispatcher) -> Dispatcher:
        with self._lock:
            self._dispatchers.add(dispatcher)
            dispatcher.set_stance(self._stance_now())
        return dispatcher

    def set_stance(self, stance: Stance) -> Stance:
        """Have all dispatchers follow a stance, those of later, too. The one before."""
        with self._lock:
            before, self._stance = self._stance, stance
            self._tell()
        return before

    def count_eager_block(self, count: int) -> None:
        """A block begins in which everything runs eagerly, or one ends (-1)."""
        with self._lock:
            self._eager_blocks += count
            self._tell()

    def _stance_now(self) -> Stance:
        return EAGER if self._eager_blocks else self._stance

    def _tell(self) -> None:
        for dispatcher in [*self._dispatchers]:
            dispatcher.set_stance(self._stance_now())

    def reset(self) -> None:
        with self._lock:
            dispatchers = [*self._dispatchers]
        for dispatcher in dispatchers:  # without the lock: each waits for the compile in progress
            dispatcher.reset()

    def status(self) -> tuple[CallableStatus, ...]:
        with self._lock:
            alive = [*self._dispatchers]
        alive.sort(key=lambda dispatcher: dispatcher.number)
        rows = [status_of(dispatcher) for dispatcher in alive]
        return tuple([row for row in rows if row is not None])


_DISPATCHERS = _Dispatchers()
_Made = TypeVar("_Made")


# Backends whose graphs are compiled for calls under transforms of torch.func, too.
_TRANSFORMED = (Level.KERNELS, Level.REWRITTEN_ATEN, Level.ATEN)


def make_dispatcher(options: Options, backend: Backend, journal: Journal) -> Dispatcher:
    """The entries, guards and driver of one `braze.compile` call."""
    compiler = functools.partial(FrameCompiler, options, backend, journal)
    transforms = backend.level in _TRANSFORMED and not options.freeze
    dispatcher = Dispatcher(
        compiler(),
        recompile_limit=options.recompile_limit,
        fullgraph=options.fullgraph,
        record=journal.note_left,
        compiler_for=lambda forced: _compiler_for(forced, options, journal),
        leaves_out=functools.partial(is_left_out, options.debug_function),
        under_transforms=compiler if transforms else None,
    )
    compile_callees(dispatcher)
    return _DISPATCHERS.add(dispatcher)


def _known_dispatcher(
    target: object,
    options: Options,
    backend: Backend,
    journal: Journal,
    bound: object = None,
) -> Dispatcher:
    """The entries of an earlier `braze.compile` of the same object by the same compiler, or none
    yet. Whoever looks into compiles by a journal of their own sees all of them.

    bound: the object that a method belongs to: its entries go with it, and a limit counts its own.
    """
    make = functools.partial(make_dispatcher, options, backend, journal)
    if journal is not JOURNAL or getattr(target, "__closure__", None) is not None:
        return make()  # what a function closes over, which may be a model, goes with its last user
    given = (backend.compiler, backend.backward_compiler)  # which may be equal and not the same
    how = (options, backend.name, backend.level, *map(id, (*given, journal)))
    key = (how, orders_of_capture())
    if bound is None:
        return RECENT.find(target, key, make)
    can_be_told = type(bound).__weakrefoffset__ != 0  # that it is gone
    return RECENT.find(bound, (target, *key), make) if can_be_told else make()


def _compiler_for(backend: object, options: Options, journal: Journal) -> FrameCompiler:
    """What compiles under a stance that forces a backend."""
    assert isinstance(backend, Backend)
    return FrameCompiler(dataclasses.replace(options, backend=backend.name), backend, journal)


def is_program(target: object) -> bool:
    """Whether a frame begins with the callable's own code. What a transform of torch.func gave is
    called by one, and so is what capture answers itself (`AveragedModel.update_parameters`)."""
    if not isinstance(target, types.FunctionType) or is_answered(target):
        return False
    return place_of_transformed(target.__code__) is None


def compile_function(
    function: types.FunctionType,
    options: Options,
    backend: Backend,
    journal: Journal,
    *,
    bound: object = None,
) -> Callable[..., Any]:
    """A function that compiles `function` at its first call and at each new kind of input.

    bound: the object whose method it is; None for any other function.
    """
    dispatcher = _known_dispatcher(function, options, backend, journal, bound)
    return _owned(CompiledCallable(function, dispatcher), dispatcher, function, options.name)


def _owned(made: _Made, dispatcher: Dispatcher, function: Any, name: str = "") -> _Made:
    """What is given to the user; a row of `status`, by a name or that of its function or module."""
    if not name:
        is_module = isinstance(made, torch.nn.Module)
        name = type(made).__qualname__ if is_module else function.__qualname__
    return dispatcher.owned_by(made, name, getattr(function, "__code__", None))


def compile_module(
    module: torch.nn.Module, options: Options, backend: Backend, journal: Journal
) -> torch.nn.Module:
    """An instance of the module's own class that shares everything with it and calls compiled."""
    calls = ModuleCalls(_known_dispatcher(module, options, backend, journal))
    remake = functools.partial(_remake, options=options, backend=backend)
    made = shield(module, calls.call, forward=calls.forward, remake=remake)
    function = getattr(type(module), "forward", None)
    return _owned(made, calls.dispatcher, function, options.name)


def compile_in_place(
    module: torch.nn.Module, options: Options, backend: Backend, journal: Journal
) -> None:
    """Have calls of the module itself ask a dispatcher, as `nn.Module.compile` does."""
    call = CallInPlace(module, make_dispatcher(options, backend, journal))
    set_compiled_call(module, call)
    _owned(call, call.dispatcher, type(module), options.name)


def uncompile(module: torch.nn.Module) -> None:
    """Have calls of a module that was compiled in place run as they are written."""
    set_compiled_call(module, None)


@final
class CallInPlace:
    """Calls of a module that was compiled in place. The module holds it, and its copies and pickles
    leave it out; it refers to the module weakly, so that the module goes with its last user."""

    def __init__(self, module: torch.nn.Module, dispatcher: Dispatcher) -> None:
        self._module = weakref.ref(module)
        self.dispatcher = dispatcher
        self._functions = CompiledFunctions(dispatcher)

    @property
    def module(self) -> torch.nn.Module:
        """The module. Raises ReferenceError where it is gone, and only its call was kept."""
        module = self._module()
        if module is None:
            raise ReferenceError("the compiled module is gone: keep the module, not its call")
        return module

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        """The module's call, compiled with the hooks that it has now."""
        module = self.module
        function = _function_below_call(module)
        if function is MODULE_CALL and _is_called_between_hooks(module):
            return _call_between_hooks(module, self._functions, self.dispatcher, args, kwargs)
        return self._functions.compiled(function)(module, *args, **kwargs)


def _call_original(call: CallInPlace, /, *args: object, **kwargs: object) -> Any:
    return module_call(call.module)(call.module, *args, **kwargs)


interpreted_as(CallInPlace.__call__, _call_original)


@final
class ModuleCalls:
    """Finds what calls of a compiled module call, with the original module first."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self._functions = CompiledFunctions(dispatcher)

    def call(self, original: torch.nn.Module) -> Callable[..., Any]:
        """What `compiled(...)` calls."""
        function = call_function(original)
        if function is MODULE_CALL and _is_called_between_hooks(original):
            return self._call_between_hooks
        return self._functions.compiled(function)

    def _call_between_hooks(
        self, original: torch.nn.Module, /, *args: object, **kwargs: object
    ) -> Any:
        return _call_between_hooks(original, self._functions, self.dispatcher, args, kwargs)

    def forward(self, original: torch.nn.Module) -> Callable[..., Any]:
        """What `compiled.forward(...)` calls: the class's own, past the hooks and past what was put
        on the module in its place, which may be what calls it."""
        function = type(original).forward
        if type(function) is types.FunctionType:
            return self._functions.compiled(function)
        return _call_class_forward


def call_function(module: torch.nn.Module) -> Any:
    """The function that a call of a module runs, with the module first."""
    call = type(module).__call__
    if call not in MODULE_CALLS and type(call) is types.FunctionType:
        return call
    return _function_below_call(module)


def _function_below_call(module: torch.nn.Module) -> Any:
    """The function that `nn.Module.__call__` runs: the class's forward, where there is nothing but
    that to do."""
    function, space = type(module).forward, module.__dict__
    call = module_call(module)
    if call is not MODULE_CALL or type(function) is not types.FunctionType:
        return call
    return call if "forward" in space or has_hooks(space) else function


def _is_called_between_hooks(module: torch.nn.Module) -> bool:
    """Whether hooks of a module are called outside of graphs, its class's forward between them."""
    function = type(module).forward
    if type(function) is not types.FunctionType or "forward" in module.__dict__:
        return False
    return runs_hooks_outside(module)


def _call_between_hooks(
    module: torch.nn.Module,
    functions: CompiledFunctions,
    dispatcher: Dispatcher,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Any:
    forward = functions.compiled(type(module).forward)
    return call_between_hooks(module, forward, dispatcher.compile_callee, args, kwargs)


def _call_class_forward(module: torch.nn.Module, /, *args: object, **kwargs: object) -> Any:
    """A forward that is no Python function (one that `braze.compile` made, a builtin)."""
    cls = type(module)
    return cls.forward.__get__(module, cls)(*args, **kwargs)


_Call: TypeAlias = "CompiledCallable | ModuleCalls | CallInPlace"


def _call_of(compiled: Any) -> _Call | None:
    """What asks the dispatcher of a compiled function, method or module; None for any other."""
    call = compiled.__func__ if isinstance(compiled, types.MethodType) else compiled
    if isinstance(compiled, torch.nn.Module) and not is_shielded(compiled):
        call = compiled_call(compiled)
    if is_shielded(compiled):
        call = getattr(find_of(compiled), "__self__", None)
    return call if isinstance(call, CompiledCallable | ModuleCalls | CallInPlace) else None


def compiled_with(compiled: object) -> tuple[Options, Backend] | None:
    """The options and the backend that a function, method or module was compiled with; None for
    one that is not compiled."""
    call = _call_of(compiled)
    compiler = None if call is None else call.dispatcher.compile_frame
    return (compiler.options, compiler.backend) if isinstance(compiler, FrameCompiler) else None


def caches_of(compiled: object) -> tuple[FrameCache, ...]:
    """What is compiled of a function, method or module; of one that is not compiled nothing."""
    call = _call_of(compiled)
    return () if call is None else call.dispatcher.caches()


def run_only(compiled: Any) -> Any:
    """A compiled function or module by what is compiled of it already; any other as it is."""
    call = _call_of(compiled)
    if call is None:
        return compiled
    dispatcher = _DISPATCHERS.add(call.dispatcher.without_compiling())
    compile_callees(dispatcher)
    if isinstance(call, CompiledCallable):
        function = call._torchdynamo_orig_callable
        return _owned(CompiledCallable(function, dispatcher), dispatcher, function)  # type: ignore[arg-type]
    calls = ModuleCalls(dispatcher)
    original = original_of(compiled)
    made = shield(original, calls.call, forward=calls.forward)
    return _owned(made, dispatcher, getattr(type(original), "forward", None))


def _remake(module: torch.nn.Module, *, options: Options, backend: Backend) -> torch.nn.Module:
    """The compiled module of a copied or unpickled model."""
    return compile_module(module, options, backend, JOURNAL)


def export_function(
    function: types.FunctionType,
    options: Options,
    bound: tuple[object, ...],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Exported:
    """Call `function(*bound, *args, **kwargs)` once, captured whole, as a module that takes args
    and kwargs. Raises GraphBreakError where one graph cannot hold it."""
    values = FrameValues(make_binder(function)(*bound, *args, **kwargs), (), function.__globals__)
    request = CompileRequest(function.__code__, 0, values, function)
    eagerly = functools.partial(function, *bound, *args, **kwargs)
    captured = capture_whole(request, options, eagerly)
    runner, draws_on = compile_graph_runner(captured.graph), drawing_devices(captured.graph)
    entry = CacheEntry(entry_of(captured, runner, draws_on))
    inputs = entry.check(values)
    if inputs is None:
        raise InternalError("export", explain_failure(entry.memory.tree, values))
    results = entry.run_graph(inputs)
    result = entry.replay(values, results)
    if isinstance(captured.exit, Return) and holds_size(captured.exit.value):
        raise UserError("export: the result holds a size or a number that changes: return tensors.")
    names = tuple(function.__code__.co_varnames[len(bound) : function.__code__.co_argcount])
    module = export_graph(to_fx(captured), inputs, (names, args, kwargs), results, result)
    return Exported(module, captured.guards)


def disable_module(module: torch.nn.Module, reason: str = "") -> torch.nn.Module:
    """A module that shares everything with `module` and is never compiled. reason: shown where a
    graph breaks at it."""

    def call(original: torch.nn.Module, /, *args: object, **kwargs: object) -> Any:
        return original(*args, **kwargs)

    def find(_: torch.nn.Module) -> Callable[..., Any]:
        return call

    MARKS.put(find, Mark.DISABLE, reason)
    return shield(module, find, remake=functools.partial(disable_module, reason=reason))


def original_module(module: torch.nn.Module) -> torch.nn.Module:
    """What a compiled module was made from; any other module itself."""
    return original_of(module)


def reset() -> None:
    """Every compiled function starts afresh."""
    RECENT.clear()
    _DISPATCHERS.reset()


def set_stance(stance: Stance) -> Stance:
    """Have every compiled function follow a stance, those of later, too. The one before."""
    return _DISPATCHERS.set_stance(stance)


def enter_eager_block() -> None:
    """From now on everything compiled runs eagerly, under any stance, until as many blocks are left
    as were entered."""
    _DISPATCHERS.count_eager_block(1)


def leave_eager_block() -> None:
    """Leave one of these blocks."""
    _DISPATCHERS.count_eager_block(-1)


def packed_bytes() -> int:
    """Bytes of weights that are kept in the layout of the CPU's convolutions."""
    return PACKED.bytes()


def frozen_bytes() -> int:
    """Bytes that are held for frozen graphs: copies of weights, and packed ones."""
    return FROZEN.bytes()


def status() -> tuple[CallableStatus, ...]:
    """What became of the calls of each compiled callable, oldest first."""
    return _DISPATCHERS.status()
