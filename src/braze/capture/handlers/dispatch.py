"""What a call does: interpret a Python function, make an object, or really call something."""

from __future__ import annotations

import functools
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.arrays.numpy_functions import NUMPY_CALLS, guard_numpys_function
from braze.capture.calls.c_allowlist import identifier
from braze.capture.calls.c_functions import call_builtin, is_bound, way_to_call
from braze.capture.calls.cached_functions import call_cached
from braze.capture.calls.call_cache import KnownFunction, Route, Way
from braze.capture.calls.deferred_calls import call_later, is_reorderable
from braze.capture.calls.functorch import (
    CompiledHere,
    Transformed,
    Whole,
    call_made_outside,
    call_transformed,
)
from braze.capture.calls.handler_registry import CALL_HANDLERS, answer
from braze.capture.calls.kernel_launches import call_launch
from braze.capture.calls.nonstrict import call_nonstrict
from braze.capture.calls.torch_allowlist import may_be_leaf, takes_as_leaf
from braze.capture.calls.torch_calls import leaf_call
from braze.capture.calls.user_annotations import (
    BUILTINS,
    NOT_MARKED,
    Redirect,
    call_compiled_here,
    call_marked,
    call_marked_object,
    call_whole,
    is_compiled,
    is_marked_object,
)
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.frames.dispatch_table import steps_of
from braze.capture.frames.frame import COROUTINE_FLAGS, GENERATOR_FLAGS, CannotBind, Frame, bind
from braze.capture.frames.generators import InlinedGenerator, begin_expression
from braze.capture.handlers.break_regions import call_in_region
from braze.capture.handlers.compiler_calls import ask_compiler
from braze.capture.handlers.custom_ops import call_operator
from braze.capture.handlers.random import call_random_function
from braze.capture.handlers.stdlib import find_implementation
from braze.capture.handlers.tensor_constructor import LEGACY_DTYPES, holds_scalars
from braze.capture.objects.attribute_load import load_attribute, load_method
from braze.capture.objects.getters import GETTERS, call_getter
from braze.capture.objects.module_attributes import has_no_hooks
from braze.capture.objects.weak_references import open_reference
from braze.capture.state.guard_context import NUMBERS, GuardContext
from braze.capture.state.reentrant_calls import code_of
from braze.capture.tensors.subclasses import check_made_plainly, of_class
from braze.compat.numpy.interface import RANDOM_FUNCTION
from braze.compat.private_names import OPERATOR_CLASSES
from braze.compat.python.lru_caches import LRU_CACHE
from braze.compat.python.stdlib import DISPATCH_CODE
from braze.compat.torch.dynamo_interop import (
    SEE_THROUGH_CODES,
    is_compiler_function,
    is_skipped_by_torch,
    python_of_script,
    region_of_compiler,
    replaced_by_compiler,
    traced_whole,
)
from braze.compat.torch.functorch import place_of_transformed
from braze.compat.torch.higher_order.operators import python_of
from braze.compat.torch.nn_modules import CALL_WITH_HOOKS, MODULE_CALL, MODULE_CALLS
from braze.compat.triton.kernels import is_launch, python_of_constexpr
from braze.ir.captured.frame import NULL
from braze.ir.captured.guard import ABSENT, GuardKind
from braze.ir.captured.source import AttributeSource, ClosureSource, ItemSource
from braze.marks import MARKS, SUBSTITUTES, Mark

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# Iterators, generators and callbacks that capture made are themselves, not programs.
_OWN_MODULES = frozenset(
    {
        "braze.capture.arrays.fake_array",
        "braze.capture.handlers.frame_objects",
        "braze.capture.frames.generators",
        "braze.capture.objects.iteration",
        "braze.capture.calls.c_functions",
        "braze.capture.state.lazy_strings",
        "braze.capture.training.wrapper_gradients",
    }
)
Prepared = tuple[Frame | None, Any]
# A `__call__` may be an instance that is called in its turn.
_MAX_INDIRECTIONS = 100
_STORAGES = (torch.UntypedStorage, torch.TypedStorage)


def prepare(
    interpreter: Interpreter, function: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> Prepared:
    """(a frame to run, None), or (None, the call's result) where there is nothing to interpret."""
    if interpreter.reorders and is_reorderable(interpreter, function):
        call_later(interpreter, function, args, kwargs)
        return None, None
    known = interpreter.known_calls
    if known.marks != MARKS.changes:
        known.forget()
    for _ in range(_MAX_INDIRECTIONS):
        cls = type(function)
        if cls is types.FunctionType:
            route: Route = known.routes.get(function, _prepare_function)
            return route(interpreter, function, args, kwargs)
        if id(function) in MARKS.entries and is_marked_object(function):
            return None, call_marked_object(interpreter, function, args, kwargs)
        if cls in known.instances:
            function, args = known.instances[cls], (function, *args)
            continue
        if cls is types.MethodType:
            if id(function) in interpreter.guard_context.known:
                args = (load_attribute(interpreter, function, "__self__"), *args)
                function = load_attribute(interpreter, function, "__func__")
            elif type(function.__self__) in NUMBERS:
                return None, interpreter.native(function, *args, **kwargs)
            else:
                args = (function.__self__, *args)
                function = function.__func__
                interpreter.guard_context.source_of_function(function)
            continue
        if issubclass(cls, BUILTINS):
            if SUBSTITUTES and function in SUBSTITUTES:
                function = SUBSTITUTES[function]
                interpreter.guard_context.source_of_function(function)
                continue
            way: Way = known.ways.get(function, _call_unknown)
            return None, way(interpreter, function, args, kwargs)
        if issubclass(type(function), type):
            return None, _call_class(interpreter, function, args, kwargs)
        if cls is functools.partial or _is_partial(interpreter, cls):
            function, args, kwargs = _open_partial(interpreter, function, args, kwargs)
            continue
        special = _CALLED_OBJECTS.get(cls)
        if special is not None:
            return None, special(interpreter, function, args, kwargs)
        function, args = _open_instance(interpreter, function, args)
    raise BreakRequested("recursion", f"{type(function).__qualname__}.__call__")


def _call_unknown(
    interpreter: Interpreter, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A builtin function, method or slot that the capture has not called yet."""
    marked = call_marked(interpreter, function, args, kwargs)
    if marked is not NOT_MARKED:
        return marked
    way = way_to_call(function)
    if not is_bound(function):
        interpreter.known_calls.ways[function] = way
    return way(interpreter, function, args, kwargs)


def call_script(
    interpreter: Interpreter, script: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """TorchScript's own interpreter runs the function on fake tensors: its operators come here as
    ever. What its optimiser would make of them is left out."""
    python = python_of_script(script)
    if python is not None:
        interpreter.guard_context.source_of_function(python)
        return interpreter.call(python, *args, **kwargs)
    try:
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return leaf_call(interpreter, script, args, kwargs)
    except ProgramRaised as raised:
        name = getattr(script, "qualified_name", "a scripted function")
        problem = f"{name}: {str(raised.exception).strip().splitlines()[-1:]}"
    raise BreakRequested("unseen-callable", problem)


_CALLED_OBJECTS: dict[type, Any] = {
    **NUMPY_CALLS,
    **dict.fromkeys(OPERATOR_CLASSES, call_operator),
    torch.jit.ScriptFunction: call_script,
    RANDOM_FUNCTION: call_random_function,
    LRU_CACHE: call_cached,
    weakref.ReferenceType: open_reference,
    Transformed: call_transformed,
    Whole: call_whole,
    CompiledHere: call_compiled_here,
    **dict.fromkeys(GETTERS, call_getter),
}


def _open_instance(
    interpreter: Interpreter, function: Any, args: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """`instance(...)` is its class's `__call__` with the instance first."""
    if is_compiled(function):
        return function.__wrapped__, args
    if issubclass(type(function), torch.jit.ScriptModule):
        raise BreakRequested("unseen-callable", f"{function.original_name}, a scripted module")
    python = python_of(function) or python_of_constexpr(function)
    if python is not None:
        interpreter.guard_context.source_of_function(function)
        return python, args
    cls = interpreter.guard_context.type_of(function)
    method = interpreter.guard_context.lookup(cls, "__call__")
    if method is ABSENT:
        message = f"{interpreter.guard_context.type_of(function).__name__!r} object is not callable"
        raise ProgramRaised(TypeError(message))
    if type(method) is types.FunctionType:
        if (
            issubclass(cls, torch.nn.Module)
            and id(cls) not in interpreter.guard_context.made_classes
        ):
            interpreter.known_calls.instances[cls] = method
        return method, (function, *args)
    if type(method) is staticmethod and type(method.__func__) is types.FunctionType:
        return method.__func__, args
    if issubclass(type(method), (staticmethod, classmethod)):
        raise BreakRequested("unseen-callable", f"{type(function).__qualname__}.__call__")
    if type(method) is types.WrapperDescriptorType:
        if id(function) in interpreter.guard_context.known:
            guard_numpys_function(interpreter, function)
        return method, (function, *args)
    if interpreter.guard_context.lookup(type(method), "__get__") is ABSENT:
        return method, args
    return method.__get__(function, type(function)), args


def _is_partial(interpreter: Interpreter, cls: type) -> bool:
    """Whether calls of instances are those of a partial: of a subclass, or of a second module."""
    method = interpreter.guard_context.lookup(cls, "__call__")
    owner = getattr(method, "__objclass__", None)
    return owner is not None and identifier(owner) == ("functools", "partial")


def _open_partial(
    interpreter: Interpreter, partial: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    if id(partial) not in interpreter.guard_context.known:
        return partial.func, (*partial.args, *args), {**partial.keywords, **kwargs}
    native = interpreter.side_effects.contents
    function = load_attribute(interpreter, partial, "func")
    first = native(load_attribute(interpreter, partial, "args"))
    keywords = native(load_attribute(interpreter, partial, "keywords"))
    return function, (*first, *args), {**keywords, **kwargs}


# --- Python functions ----------------------------------------------------------------------------


def _prepare_function(
    interpreter: Interpreter,
    function: types.FunctionType,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Prepared:
    if function in CALL_HANDLERS:
        return _first(_answer, interpreter, function, args, kwargs)
    if is_launch(function):
        return _first(call_launch, interpreter, function, args, kwargs)
    marked = call_marked(interpreter, function, args, kwargs)
    if type(marked) is Redirect:
        return prepare(interpreter, marked.function, marked.args, kwargs)
    if marked is not NOT_MARKED:
        return None, marked
    if function in MODULE_CALLS:
        return _first(_call_module, interpreter, function, args, kwargs)
    if is_compiler_function(function):
        if region_of_compiler(function) is not None:
            return None, call_in_region(interpreter, function, args, kwargs)
        if (whole := traced_whole(function)) is not None:
            return None, call_nonstrict(interpreter, whole, args, kwargs)
        if (replaced := replaced_by_compiler(function)) is None:
            return None, ask_compiler(interpreter, function, args, kwargs)
        interpreter.guard_context.source_of_function(replaced)
        return prepare(interpreter, replaced, args, kwargs)
    if code_of(function) is DISPATCH_CODE and id(function) not in interpreter.guard_context.fresh:
        return None, find_implementation(interpreter, function, args)
    place = place_of_transformed(code_of(function))
    if place is not None:
        return None, call_made_outside(interpreter, function, place, args, kwargs)
    if function.__module__ in _OWN_MODULES:
        return None, interpreter.native(function, *args, **kwargs)
    if code_of(function) in SEE_THROUGH_CODES and hasattr(function, "__wrapped__"):
        interpreter.guard_context.source_of_function(function.__wrapped__)
        return prepare(interpreter, function.__wrapped__, args, kwargs)
    refuses = interpreter.request.must_not_inline
    if refuses is not None and refuses(function):
        if may_be_leaf(function) and takes_as_leaf(args, kwargs):
            return None, leaf_call(interpreter, function, args, kwargs)
        raise BreakRequested("not-inlined", function.__qualname__)
    route = _call_leaf if may_be_leaf(function) else make_frame
    return _first(route, interpreter, function, args, kwargs)


def _first(
    route: Route,
    interpreter: Interpreter,
    function: types.FunctionType,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Prepared:
    """Call a function by a route that its next calls will take, unless the program made it."""
    if id(function) not in interpreter.guard_context.fresh:
        interpreter.known_calls.routes[function] = route
    return route(interpreter, function, args, kwargs)


def _answer(
    interpreter: Interpreter, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> Prepared:
    return None, answer(interpreter, function, CALL_HANDLERS[function], args, kwargs)


def _call_leaf(
    interpreter: Interpreter, function: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> Prepared:
    """A function of torch's: called whole where its arguments are plain."""
    if takes_as_leaf(args, kwargs):
        return None, leaf_call(interpreter, function, args, kwargs)
    return make_frame(interpreter, function, args, kwargs)


def _call_module(
    interpreter: Interpreter, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> Prepared:
    """`nn.Module.__call__`: the module's `forward`, where there are no hooks."""
    if args and function is not MODULE_CALL:
        called = interpreter.guard_context.lookup(type(args[0]), CALL_WITH_HOOKS)
        if called is not MODULE_CALL:
            return prepare(interpreter, called, args, kwargs)
    if kwargs.get("self") or not has_no_hooks(interpreter, args[0]):
        return make_frame(interpreter, MODULE_CALL, args, kwargs)  # however it is compiled in place
    method, owner = load_method(interpreter, args[0], "forward")
    rest = args[1:] if owner is NULL else (owner, *args[1:])
    frame, result = prepare(interpreter, method, rest, kwargs)
    if frame is not None:
        frame.of_module = True
    return frame, result


def make_frame(
    interpreter: Interpreter,
    function: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Prepared:
    """The frame of a call, its arguments bound; a generator function's call is its generator."""
    known = interpreter.known_calls.functions.get(function)
    if known is None:
        known = known_function(interpreter, function)
    code = known.code
    if len(args) == known.count and not kwargs:
        bound = dict(zip(code.co_varnames, args))
    else:
        try:
            bound = bind(code, args, kwargs, known.defaults, known.keyword_defaults)
        except CannotBind:
            raise ProgramRaised(_binding_error(function, args, kwargs)) from None
    frame = Frame(code, function.__globals__, known.steps, function)
    frame.locals = bound
    frame.runs_eagerly = known.runs_eagerly or interpreter.request.leaves_out
    if function.__closure__:
        open_closure(interpreter, function, frame)
    if code.co_flags & GENERATOR_FLAGS:
        begin_expression(interpreter, frame)
        return None, InlinedGenerator(interpreter, frame, (function, args, kwargs))
    return frame, None


def known_function(interpreter: Interpreter, function: types.FunctionType) -> KnownFunction:
    """What calls of a function have in common; kept of those from outside guarded by identity."""
    code = code_of(function)
    if code.co_flags & COROUTINE_FLAGS:
        raise BreakRequested("unsupported-function", f"the coroutine {function.__qualname__}")
    guard_context = interpreter.guard_context
    fresh = id(function) in guard_context.fresh
    if fresh:
        defaults = function.__defaults__ or ()
        keyword_defaults = function.__kwdefaults__ or {}
    else:
        defaults, keyword_defaults = _known_defaults(guard_context, function)
    eager = MARKS.of(function) is Mark.DISABLE_FRAME or is_skipped_by_torch(function)
    known = KnownFunction(code, steps_of(code), defaults, keyword_defaults, eager)
    if not fresh and not guard_context.is_by_code(function):
        interpreter.known_calls.functions[function] = known
    return known


def _known_defaults(
    guard_context: GuardContext, function: types.FunctionType
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Defaults of a function from outside: guarded as a whole, their entries known. Those of
    keywords are a dict, which the program may write to: its entries are guarded too, and all of
    them for a function that is guarded by its code."""
    source = guard_context.source_of_function(function)
    if guard_context.is_by_code(function):
        return _read_defaults(guard_context, function, source)
    guard_context.guard_function(function)
    defaults = function.__defaults__ or ()
    keyword_defaults = function.__kwdefaults__ or {}
    if defaults:
        base = AttributeSource(source, "__defaults__")
        defaults = tuple(
            [guard_context.track(value, ItemSource(base, i)) for i, value in enumerate(defaults)]
        )
    if keyword_defaults:
        code, label = code_of(function), f"{function.__qualname__}.__kwdefaults__"
        first = code.co_argcount
        for name in code.co_varnames[first : first + code.co_kwonlyargcount]:
            value = keyword_defaults.get(name, ABSENT)
            guard_context.guard_namespace(keyword_defaults, name, value, label)
        base = AttributeSource(source, "__kwdefaults__")
        keyword_defaults = {
            name: guard_context.track(value, ItemSource(base, name))
            for name, value in keyword_defaults.items()
        }
    return defaults, keyword_defaults


def _read_defaults(
    guard_context: GuardContext, function: types.FunctionType, source: Any
) -> tuple[tuple[object, ...], dict[str, object]]:
    positional, keyword = function.__defaults__, function.__kwdefaults__
    first, second = [AttributeSource(source, n) for n in ("__defaults__", "__kwdefaults__")]
    if positional:
        guard_context.guard(first, GuardKind.LENGTH, len(positional))
    else:
        guard_context.guard(first, GuardKind.EQUALS_MATCH, positional)
    if keyword:
        guard_context.guard(second, GuardKind.DICT_KEYS, tuple(keyword))
    else:
        guard_context.guard(second, GuardKind.EQUALS_MATCH, keyword)
    return (
        tuple(
            [
                guard_context.wrap_value(v, ItemSource(first, i))
                for i, v in enumerate(positional or ())
            ]
        ),
        {
            name: guard_context.wrap_value(v, ItemSource(second, name))
            for name, v in (keyword or {}).items()
        },
    )


def open_closure(interpreter: Interpreter, function: types.FunctionType, frame: Frame) -> None:
    """Give a frame the cells of its function."""
    side_effects = interpreter.side_effects
    fresh = interpreter.guard_context.fresh
    is_fresh = id(function) in fresh
    cells = function.__closure__ or ()
    for index, (name, cell) in enumerate(zip(frame.code.co_freevars, cells)):
        frame.cells[name] = cell
        if is_fresh or id(cell) in fresh:
            continue
        source = interpreter.guard_context.source_of_function(function)
        if id(cell) in side_effects.cell_sources:
            _guard_shared_cell(interpreter, function, cell, source, index)
            continue
        side_effects.cell_sources[id(cell)] = ClosureSource(source, index)
        side_effects.cell_objects[id(cell)] = ItemSource(
            AttributeSource(source, "__closure__"), index
        )
        interpreter.guard_context.known.setdefault(
            id(cell), (cell, side_effects.cell_objects[id(cell)])
        )


def _guard_shared_cell(
    interpreter: Interpreter, function: types.FunctionType, cell: object, source: Any, index: int
) -> None:
    """A cell that is known already stays the same one, where the function may be another."""
    guard_context = interpreter.guard_context
    here = ItemSource(AttributeSource(source, "__closure__"), index)
    known = guard_context.source_of(cell)
    if guard_context.is_by_code(function) and known is not None and known != here:
        guard_context.guard(here, GuardKind.SAME_OBJECT, known)


def _binding_error(
    function: types.FunctionType, args: tuple[object, ...], kwargs: dict[str, object]
) -> BaseException:
    """CPython's own message: the call fails before any code of the function runs."""
    try:
        function(*args, **kwargs)
    except TypeError as error:
        return error
    raise RuntimeError(f"{function.__qualname__} accepts what bind() refused")


# --- classes -------------------------------------------------------------------------------------


def _call_class(
    interpreter: Interpreter, cls: type, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    handler = CALL_HANDLERS.get(cls)
    if handler is not None:
        return answer(interpreter, cls, handler, args, kwargs)
    if MARKS.of(cls) is not None:
        raise BreakRequested("not-inlined", cls.__qualname__)
    return construct(interpreter, cls, args, kwargs)


def construct(
    interpreter: Interpreter, cls: type, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`cls(...)`: the metaclass's `__call__`, else `type.__call__`."""
    meta_call = interpreter.guard_context.lookup(type(cls), "__call__")
    if type(meta_call) is types.FunctionType:
        handler = CALL_HANDLERS.get(meta_call)
        if handler is not None:
            return handler(interpreter, (cls, *args), kwargs)
        return interpreter.call(meta_call, cls, *args, **kwargs)
    return make_instance(interpreter, cls, args, kwargs)


def make_instance(
    interpreter: Interpreter, cls: type, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`type.__call__`: `__new__` and `__init__`."""
    guard_context = interpreter.guard_context
    if issubclass(cls, _STORAGES):
        raise BreakRequested("unsupported-tensor", f"making a {cls.__qualname__}")
    refuse_finalizer(guard_context, cls)
    guard_context.source_of_function(cls)
    new = guard_context.lookup(cls, "__new__")
    new = new.__func__ if isinstance(new, staticmethod) else new
    init = guard_context.lookup(cls, "__init__")
    made = _new_instance(interpreter, cls, new, init, args, kwargs)
    if not issubclass(guard_context.type_of(made), cls):
        return made
    if type(init) is types.FunctionType:
        given = interpreter.call(init, made, *args, **kwargs)
        if given is not None:
            message = f"__init__() should return None, not {type(given).__name__!r}"
            raise ProgramRaised(TypeError(message))
    elif init is not object.__init__:
        call_builtin(interpreter, init, (made, *args), kwargs)
    elif new is object.__new__ and (args or kwargs):
        interpreter.native(object.__new__, cls, *args, **kwargs)
    return made


def refuse_finalizer(guard_context: GuardContext, cls: type) -> None:
    """Break where an object would be made that notices when nobody refers to it any longer."""
    if type(guard_context.lookup(cls, "__del__")) is types.FunctionType:
        raise BreakRequested("unbuildable-object", f"a {cls.__qualname__}, which has a __del__")


def _new_instance(
    interpreter: Interpreter,
    cls: type,
    new: object,
    init: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    if type(new) is types.FunctionType:
        return interpreter.call(new, cls, *args, **kwargs)
    if new is object.__new__:
        if vars(cls).get("__abstractmethods__"):
            return interpreter.native(cls, *args, **kwargs)
        return interpreter.native(object.__new__, cls)
    if new is torch.Tensor.__new__:
        check_made_plainly(interpreter, cls, args)
        made = call_builtin(interpreter, new, (torch.Tensor, *args), kwargs)
        return made if cls is torch.Tensor else of_class(interpreter, made, cls, args)
    dtype = LEGACY_DTYPES.get(cls)
    if dtype is not None and len(args) == 1 and not kwargs and holds_scalars(args[0]):
        return interpreter.call(torch.tensor, args[0], dtype=dtype)
    return call_builtin(interpreter, new, (cls, *args), kwargs)
