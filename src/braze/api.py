"""The face of Braze: `torch.compile`'s signature and what belongs to it.

What is expected of `braze.targets`:
    is_program(target) -> whether it is a function that `compile_function` takes
    compile_function(function, options, backend, journal, bound) -> a plain function, usable as a
        method, with `function`'s name, signature and `__wrapped__`
    compile_module(module, options, backend, journal) -> an instance of the module's own class
    compile_in_place(module, options, backend, journal): the module's own calls; uncompile(module)
    disable_module(module) -> the same, whose call is never compiled
    original_module(module) -> what a compiled module was made from; any other module itself
    reset() -> every compiled function starts afresh
    status() -> the `CallableStatus` of each
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, final, overload

import torch

from braze import targets
from braze.compat.numpy.wrappers import in_place_of_torch_s
from braze.compat.numpy.wrappers import wrap_numpy as wrap_numpy
from braze.compat.private_names import gone_essentials
from braze.compat.python.callables import as_function
from braze.compat.python.other_compilers import hide_from_other_compilers
from braze.compat.torch.dynamo_interop import compiled_by_torch, is_disabled_by_torch
from braze.compile_records import LISTENERS, CompileEvent
from braze.diagnose import Bisection, WrongGuard, bisect_call, find_wrong_guard
from braze.disabled import disable as disable
from braze.errors import InvalidOption, PrivateNameGone, UserError, unknown_name
from braze.frozen import frozen
from braze.interop.backends import BACKENDS, HIDDEN_TAGS, OWN, Backend, GraphCompiler
from braze.interop.backends import aot_backend as aot_backend
from braze.interop.export import Exported
from braze.interop.inductor_options import in_brazes_words
from braze.marks import MARKS, Mark
from braze.marks import allow_in_graph as allow_in_graph
from braze.marks import assume_constant_result as assume_constant_result
from braze.marks import disallow_in_graph as disallow_in_graph
from braze.marks import graph_break as graph_break
from braze.marks import is_compiling as is_compiling
from braze.marks import is_exporting as is_exporting
from braze.marks import mark_dynamic as mark_dynamic
from braze.marks import mark_static as mark_static
from braze.marks import mark_unbacked as mark_unbacked
from braze.marks import maybe_mark_dynamic as maybe_mark_dynamic
from braze.marks import nested_compile_region as nested_compile_region
from braze.marks import nonstrict_trace as nonstrict_trace
from braze.marks import substitute_in_graph as substitute_in_graph
from braze.options import MODES, SETTINGS, Options, config, resolve
from braze.packages import load_compiled_function as load_compiled_function
from braze.packages import load_package as load_package
from braze.packaging import aot_compile
from braze.packaging import package as package
from braze.regions import error_on_graph_break as error_on_graph_break
from braze.report.compile_times import as_csv, print_times, tabulate
from braze.report.explain import Explanation, summarise
from braze.report.guard_text import PrintedGuards
from braze.report.recompile_profile import RecompileProfile
from braze.report.status import Status
from braze.trace import JOURNAL, Journal

_Target = TypeVar("_Target", bound=Callable[..., Any])


@final
@frozen
class _Order:
    """One call of `compile`, resolved. bound: the object whose method is compiled."""

    options: Options
    backend: Backend
    journal: Journal
    bound: object = None


@overload
def compile(
    model: None = None,
    *,
    backend: str | GraphCompiler | Backend = "braze",
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    name: str | None = None,
    recompile_limit: int | None = None,
) -> Callable[[_Target], _Target]: ...


@overload
def compile(
    model: _Target,
    *,
    backend: str | GraphCompiler | Backend = "braze",
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    name: str | None = None,
    recompile_limit: int | None = None,
) -> _Target: ...


def compile(
    model: Any = None,
    *,
    backend: str | GraphCompiler | Backend = "braze",
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    name: str | None = None,
    recompile_limit: int | None = None,
) -> Any:
    """Compile a function or an `nn.Module`; also a decorator, with and without arguments.

    Nothing is compiled before the first call. A call whose guards do not hold (another dtype,
    another value of a Python object that the program read) compiles once more. Compiling the same
    function or module again with the same options finds what was compiled: its entries are shared.

    model: function, method, module, class (its `__call__`), or any other callable.
    backend: "braze"; a name of `list_backends()`; or a function
        `(torch.fx.GraphModule, example_inputs) -> callable`; or an `aot_backend`.
    mode: "default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs"; None: as
        "default", and on a GPU calls are recorded as CUDA graphs where that pays.
    fullgraph: raise where one graph cannot hold the function, instead of breaking it.
    dynamic: True: sizes are symbols; False: every size compiles anew; None: what changes, becomes
        a symbol.
    options: fields of `braze.options.Options` (`list_options`), and those of torch.compile's own
        backend that mean something here; with another backend, its own options too.
    disable: return what was given.
    name: what `status` calls it; None: the function's own name, or the module's class.
    recompile_limit: how many entries are compiled before the function runs eagerly (8).

    Raises InvalidOption and InvalidBackend at once, naming what is valid.
    """
    named = {"name": name, "recompile_limit": recompile_limit}
    order = _resolve_order(backend, mode, fullgraph, dynamic, options, JOURNAL, named)
    if disable or order.options.disable:
        return (lambda target: target) if model is None else model
    if model is None:
        return functools.partial(_compile_target, order=order)
    return _compile_target(model, order)


_Module = TypeVar("_Module", bound=torch.nn.Module)


def compile_in_place(
    module: _Module,
    *,
    backend: str | GraphCompiler | Backend = "braze",
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    name: str | None = None,
    recompile_limit: int | None = None,
) -> _Module:
    """Compile the calls of an `nn.Module` in place, as `nn.Module.compile` does with torch.compile.

    Returns the module itself.

    `module(...)` is compiled, with the hooks that it has at the call; `module.forward(...)` is not.
    There is one object, so what is done to the module afterwards is done to the compiled one:
    sharding (`fully_shard`), wrappers around `forward`, tables that are kept beside modules.
    Copies and pickles of it are not compiled. The arguments are those of `compile`; disable: undo,
    so that its calls run as they are written. Where one is given, the original of what `compile`
    made is compiled in place.
    """
    named = {"name": name, "recompile_limit": recompile_limit}
    order = _resolve_order(backend, mode, fullgraph, dynamic, options, JOURNAL, named)
    if not isinstance(module, torch.nn.Module):
        raise UserError(f"braze.compile_in_place takes a module, not {module!r}.")
    original = targets.original_module(module)
    _check_module(original)
    if disable or order.options.disable:
        targets.uncompile(original)
    else:
        targets.compile_in_place(original, order.options, order.backend, order.journal)
    return module


def original_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that `compile` or `disable` made this one from; any other module itself.

    They share parameters, buffers, hooks and attributes, and `state_dict` keys are equal.
    `_orig_mod` of a compiled module is this, too, for programs that know torch.compile's modules.
    """
    return targets.original_module(module)


def _resolve_order(
    backend: str | GraphCompiler | Backend,
    mode: str | None,
    fullgraph: bool,
    dynamic: bool | None,
    options: Mapping[str, Any] | None,
    journal: Journal,
    named: Mapping[str, Any] | None = None,
    defaults: Options | None = None,
) -> _Order:
    """Check the arguments, and split the options between us and a foreign backend. named: options
    that were given as arguments of their own; None for one that was not. defaults: instead of those
    of the process."""
    if options is not None and not isinstance(options, Mapping):
        raise InvalidOption(f"options is a dict, not {options!r}.")
    is_ours = isinstance(backend, str) and backend in OWN
    theirs = {} if is_ours else {k: v for k, v in (options or {}).items() if k not in SETTINGS}
    ours = None if options is None else {k: v for k, v in options.items() if k not in theirs}
    if is_ours and ours:
        ours = in_brazes_words(ours)
    given = {name: value for name, value in (named or {}).items() if value is not None}
    base = replace(defaults or config.snapshot(), **given)
    resolved = resolve(base, mode=mode, fullgraph=fullgraph, dynamic=dynamic, options=ours)
    found = BACKENDS.find(backend, mode=mode, options=theirs, dynamic=dynamic)
    if gone_essentials():
        if resolved.fullgraph:
            raise _nothing_is_compiled()
        resolved = replace(resolved, disable=True)  # the warning at import said so
    return _Order(replace(resolved, backend=found.name), found, journal)


def _nothing_is_compiled() -> PrivateNameGone:
    """What is raised where a compile is asked for, and this PyTorch lacks what each one needs."""
    return PrivateNameGone("; ".join(map(str, gone_essentials())))


def _compile_target(target: Any, order: _Order) -> Any:
    """Compile by the kind of thing that was given; of what is compiled already, the original."""
    arguments = (order.options, order.backend, order.journal)
    if isinstance(target, torch.nn.Module):
        _check_module(target)
        original = targets.original_module(target)
        compiled = targets.compile_module(original, *arguments)
        forward: Any = type(compiled).forward
        if type(type(original).forward) is types.FunctionType:
            forward.aot_compile = _ahead(type(original).forward, (original,), order)
        return compiled
    if isinstance(target, type):
        return _compile_class(target, order)
    if isinstance(target, types.MethodType) and isinstance(target.__func__, types.FunctionType):
        compiled = _compile_target(target.__func__, replace(order, bound=target.__self__))
        return types.MethodType(compiled, target.__self__)
    if MARKS.of(target) is Mark.COMPILED:
        target = target.__wrapped__
    target = in_place_of_torch_s(target) or target
    if targets.is_program(target):
        return _compile_function(target, order)
    if callable(target):
        return _compile_function(as_function(target), order)
    raise UserError(f"braze.compile takes a function or a module, not {target!r}.")


def _check_module(module: torch.nn.Module) -> None:
    """Raise UserError for a module whose calls no Python code makes."""
    if isinstance(module, torch.jit.ScriptModule):
        raise UserError(
            f"{module.original_name} is a module of TorchScript, which compiled it: compile the "
            "Python module that it was made from."
        )


def _compile_function(function: types.FunctionType, order: _Order) -> Any:
    mark = MARKS.of(function)
    if mark is Mark.DISABLE or is_disabled_by_torch(function):
        return function
    original = compiled_by_torch(function)
    if type(original) is types.FunctionType:
        function = original
    arguments = (order.options, order.backend, order.journal)
    compiled: Any = targets.compile_function(function, *arguments, bound=order.bound)
    compiled.aot_compile = _ahead(function, () if order.bound is None else (order.bound,), order)
    MARKS.put(compiled, Mark.COMPILED)
    return compiled


def _ahead(function: Any, bound: tuple[Any, ...], order: _Order) -> Any:
    """`aot_compile` of what is compiled of a function."""
    make = functools.partial(targets.make_dispatcher, order.options, order.backend, order.journal)
    return functools.partial(
        aot_compile,
        function=function,
        bound=bound,
        options=order.options,
        backend=order.backend,
        make_dispatcher=make,
    )


def _compile_class(cls: type, order: _Order) -> type:
    """As torch.compile does with a decorated class: its instances' calls are compiled."""
    spaces = (base.__dict__ for base in cls.__mro__)
    call = next((space["__call__"] for space in spaces if "__call__" in space), None)
    if not isinstance(call, types.FunctionType):
        raise UserError(f"instances of {cls.__qualname__} cannot be called: nothing to compile.")
    setattr(cls, "__call__", _compile_function(call, order))  # noqa: B010 - mypy refuses the other
    return cls


# --- looking at compiles -----------------------------------------------------------------------


def explain(
    function: Callable[..., Any],
    /,
    *args: Any,
    backend: str | GraphCompiler | Backend | None = None,
    mode: str | None = None,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Compile a function afresh, call it once, and report what happened, as an `Explanation`.

    `explain(f)(*args, **kwargs)` and, with arguments, `explain(f, *args, **kwargs)` do the same.
    backend, mode, dynamic, options: as of `compile`; where one is not given, what the function was
    compiled with, but for `fullgraph`: breaks are reported, not raised.

    The result prints graphs, breaks with the user's lines, what they cost and what to do about
    them, operators, kernels, memory, sizes that may change, guards and times; its attributes hold
    the same as data.
    """
    journal = Journal(detailed=True)
    before = targets.compiled_with(function)
    if before is None:
        order = _resolve_order(backend or "braze", mode, False, dynamic, options, journal)
    else:
        own = replace(before[0], fullgraph=False)
        found = backend or (before[1].name if before[1].name in OWN else before[1])
        order = _resolve_order(found, mode, False, dynamic, options, journal, defaults=own)
    if gone_essentials():
        raise _nothing_is_compiled()
    compiled = _compile_target(function, order)
    name = getattr(function, "__qualname__", type(function).__qualname__)

    def explainer(*args: Any, **kwargs: Any) -> Explanation:
        journal.clear()
        return summarise(name, journal, compiled(*args, **kwargs))

    return explainer(*args, **kwargs) if args or kwargs else explainer


def bisect(
    function: Callable[..., Any],
    /,
    *,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    scripts: bool = True,
    times: bool = False,
) -> Callable[..., Bisection]:
    """Find which stage of the compiler is wrong about a call: `bisect(f)(*args, **kwargs)`.

    For a crash or a wrong value: the call runs by eager, as captured, and each of its graphs behind
    every pass and kernel. The result names the first of them that is wrong, the operators and the
    lines of the program, and the script that shows it, shrunk to a few operators; one is written to
    the folder `braze_repros` unless scripts is false. Arguments stay as they are. A function that
    is compiled already is asked by its entries too, whose guards may hold where they should not:
    the guard is named, and the script is the smallest program that has one like it.
    times: also for a slow-down: where all is right, what makes a graph, or the call, take half as
    long again as eager is named: a graph pass, fusion, a kernel, starting kernels, or the guards.
    """
    order = _resolve_order("braze", None, False, dynamic, options, JOURNAL)
    order = replace(order, options=replace(order.options, suppress_errors=False, check=0.0))
    if gone_essentials():
        raise _nothing_is_compiled()
    is_compiled = MARKS.of(function) is Mark.COMPILED
    original = function
    if is_compiled and hasattr(function, "__wrapped__"):
        original = function.__wrapped__
    if isinstance(function, torch.nn.Module):
        original = targets.original_module(function)
        is_compiled = original is not function

    def compile_by(target: Any, backend: Backend) -> Any:
        return _compile_target(target, replace(order, backend=backend))

    def find_wrong(served: object, fresh: object) -> WrongGuard | None:
        return find_wrong_guard(targets.caches_of(served), targets.caches_of(fresh))

    def bisector(*args: Any, **kwargs: Any) -> Bisection:
        before = function if is_compiled else None
        return bisect_call(
            original, compile_by, order.options, before, args, kwargs, scripts, times, find_wrong
        )

    return bisector


def on_event(listener: Callable[[CompileEvent], object]) -> Callable[[], None]:
    """Have a function told of every compile of this process, as it begins and as it ends.

    It is called with a `CompileEvent` in the thread that compiles; one that raises is warned of.
    Returns a function that ends it.
    """
    if not callable(listener):
        raise UserError(f"braze.on_event takes a function, not {listener!r}.")
    return LISTENERS.add(listener)


def status() -> Status:
    """Report what became of the calls of all compiled callables: a table, and its rows as data.

    There is a row for each function and each way to compile it, of `braze.compile` and of
    `torch.compile(backend="braze")`, while a result of these is alive: calls, calls left to eager
    and why, graphs, entries, graph breaks, recompiles and why the last one was. Counts begin when
    it is made, and again at `braze.reset()`.
    """
    return Status(targets.status(), targets.packed_bytes(), targets.frozen_bytes())


def profile_recompiles() -> RecompileProfile:
    """Gather who is compiled again in a `with` block, how often, at what cost, and what changed.

        with braze.profile_recompiles() as profile:
            train()
        print(profile)          # or profile.functions, as data

    Of each function it says which values made it compile again, how they differed, and what to do
    about it. Programs run as they do without it. `BRAZE_LOGS=recompile_profile` prints the same at
    the end of a process.
    """
    return RecompileProfile()


def compile_times(repr: str = "str", aggregate: bool = False) -> str:
    """Return the seconds that compiles of this process took, by function and stage, as text.

    repr: "str": a table; "csv": comma-separated values. aggregate: one number for all compiles of
    a function, not one each. Times are wall time, and begin again at `braze.reset()`.
    """
    if repr not in ("str", "csv"):
        raise InvalidOption(unknown_name("repr", repr, ("str", "csv")))
    rows = tabulate(JOURNAL.records(), aggregate=aggregate)
    return as_csv(rows) if repr == "csv" else print_times(rows)


def run(compiled: Any = None) -> Any:
    """Return a version of a compiled function or module that compiles nothing more.

    Calls that fit what is compiled already run by that, all others run eagerly. A function that was
    never compiled is returned as it is. Also a decorator, with and without arguments.
    """
    if compiled is None:
        return run
    if isinstance(compiled, types.MethodType):
        return types.MethodType(run(compiled.__func__), compiled.__self__)
    found = targets.run_only(compiled)
    if found is not compiled and not isinstance(compiled, torch.nn.Module):
        MARKS.put(found, Mark.COMPILED)
    return found


def export(
    function: Callable[..., Any],
    /,
    *args: Any,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Capture a function as one graph, and return the graph and its guards, as an `Exported`.

    `export(f)(*args, **kwargs)` and, with arguments, `export(f, *args, **kwargs)` do the same; `f`
    is called once. The graph is a `torch.fx.GraphModule` of torch-level calls that takes what `f`
    takes and returns what `f` returns. It is right while the guards hold, which it does not check.
    The guards are data, and print as a tree. With sizes that were marked, or `dynamic=True`, the
    graph serves other sizes and holds ATen operators. Raises GraphBreakError, which prints what was
    captured, where one graph cannot hold `f`.
    """
    order = _resolve_order("braze", None, True, dynamic, options, JOURNAL)
    target, bound = _frame_of(function)

    def exporter(*args: Any, **kwargs: Any) -> Exported:
        exported = targets.export_function(target, order.options, bound, args, kwargs)
        return exported._replace(guards=PrintedGuards(exported.guards))

    return exporter(*args, **kwargs) if args or kwargs else exporter


def _frame_of(function: Any) -> tuple[Any, tuple[Any, ...]]:
    """The Python function behind a callable, and the arguments that it has already."""
    if isinstance(function, torch.nn.Module):
        original = targets.original_module(function)
        return targets.call_function(original), (original,)
    if isinstance(function, types.MethodType) and targets.is_program(function.__func__):
        return function.__func__, (function.__self__,)
    if MARKS.of(function) is Mark.COMPILED:
        function = function.__wrapped__
    if targets.is_program(function):
        return function, ()
    if not callable(function):
        raise UserError(f"braze.export takes a function or a module, not {function!r}.")
    return as_function(function), ()


def reset() -> None:
    """Forget everything that was compiled in this process, and the records of it."""
    targets.reset()
    JOURNAL.clear()


# --- options and backends ----------------------------------------------------------------------


def list_options() -> list[str]:
    """Return the names that `options=` takes, and `config` has as attributes."""
    return sorted(SETTINGS)


def list_mode_options(
    mode: str | None = None, dynamic: bool | None = None
) -> dict[str, dict[str, Any]]:
    """Return, by the name of each mode (or of one), the options that mean the same as `mode=`.

    dynamic: another option that they get. Raises InvalidOption for an unknown mode."""
    if mode is not None and mode not in MODES:
        raise InvalidOption(unknown_name("mode", mode, MODES))
    more = {} if dynamic is None else {"dynamic": dynamic}
    return {name: {"mode": name, **more} for name in ((mode,) if mode else MODES)}


def list_backends(exclude_tags: Iterable[str] = HIDDEN_TAGS) -> list[str]:
    """Return the names that `backend=` takes, without those for debugging.

    `exclude_tags=()` includes these.
    PyTorch's own are among them; to list those for debugging takes a second the first time.
    """
    return BACKENDS.names(exclude_tags)


def register_backend(
    compiler: GraphCompiler | None = None, name: str | None = None, tags: Iterable[str] = ()
) -> Any:
    """Register a backend under a name; also a decorator, with and without arguments.

    compiler: `(torch.fx.GraphModule, example_inputs) -> callable`.
    name: the name; the compiler's `__name__` if None.
    tags: "debug" and "experimental" leave it out of `list_backends()`.
    """
    if compiler is None:
        return functools.partial(BACKENDS.register, name=name, tags=tags)
    return BACKENDS.register(compiler, name, tags)


hide_from_other_compilers((compile, compile_in_place, disable, explain, export, reset, run, status))
hide_from_other_compilers((compile_times,))
