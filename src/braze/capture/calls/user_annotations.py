"""Calls of what users marked: left out, taken as they are, called once, or already compiled."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.calls.concurrency import is_concurrent
from braze.capture.calls.functorch import CompiledHere, Transformed, Whole
from braze.capture.calls.handler_registry import CALL_HANDLERS, answers
from braze.capture.calls.nonstrict import call_nonstrict
from braze.capture.calls.torch_calls import leaf_call
from braze.capture.frames.control_signals import BreakRequested, CannotRebuild
from braze.capture.objects.attribute_load import load_class_attribute
from braze.capture.state.guard_context import TENSORS, is_constant
from braze.compat.python.bytecode import returns_none
from braze.compat.torch.ambient_state import (
    AmbientState,
    ambient_state,
    call_untraced,
    set_ambient_state,
)
from braze.compat.torch.dynamo_interop import is_torch_constant
from braze.compat.torch.higher_order.operators import CALL_REGION
from braze.ir.captured.guard import GuardKind
from braze.ir.captured.source import ObjectSource
from braze.marks import MARKS, Mark, allow_in_graph

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# Parts of Braze whose functions a program can come to: they are run, and never interpreted.
_REACHED = (
    "braze.api",
    "braze.installation",
    "braze.interop.",
    "braze.marks",
    "braze.options",
    "braze.pipeline",
    "braze.report.",
    "braze.runtime.",
    "braze.targets",
    "braze.trace",
)
# Functions and methods in C.
BUILTINS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)
_FACE = "braze.api"
_DRIVER = "braze.runtime.dispatch.compiled_function"  # where the class of compiled functions is
# Where a compiled module's class has the module that it was made from, and what finds its call.
_SHIELD_MODULE = "braze.runtime.dispatch.module_wrapper"
_ORIGINAL = "_braze_original"
_FIND = "_braze_find"
_PART = "_part"
_FORWARD = "_forward.<locals>.forward"
_SHIELD_CALLS = ("_call.<locals>.__call__", _FORWARD)


class Redirect:
    """Call this instead."""

    __slots__ = ("args", "function")

    def __init__(self, function: object, args: tuple[object, ...]) -> None:
        self.function = function
        self.args = args


NOT_MARKED = object()


def is_compiled(function: object) -> bool:
    """Whether an object is a compiled function: `__wrapped__` is the program's."""
    return MARKS.of(function) is Mark.COMPILED or type(function).__module__ == _DRIVER


def call_marked(
    interpreter: Interpreter, function: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    """The result of calling a marked function, a Redirect, or NOT_MARKED."""
    mark = MARKS.of(function) or _torch_mark(function)
    if mark is None:
        module = getattr(function, "__module__", None)
        if is_concurrent(module) and function not in CALL_HANDLERS:
            name = getattr(function, "__qualname__", None) or type(function).__qualname__
            raise BreakRequested("concurrency", f"{module}.{name}")
        return _call_ours(interpreter, function, args, kwargs)
    if mark is Mark.DISABLE_FRAME:
        return NOT_MARKED
    name = getattr(function, "__qualname__", None) or repr(type(function))
    if mark is Mark.COMPILED:
        return Redirect(function.__wrapped__, args)
    if mark is Mark.IS_COMPILING:
        return True
    if mark is Mark.ALLOW_IN_GRAPH:
        if _is_procedure(function, args, kwargs):
            return _call_procedure(interpreter, function, args, name)
        return leaf_call(interpreter, function, args, kwargs)
    if mark is Mark.NONSTRICT_TRACE:
        return call_nonstrict(interpreter, function, args, kwargs)
    if mark is Mark.ASSUME_CONSTANT:
        return _call_once(interpreter, function, args, kwargs, name)
    note = MARKS.note_of(function)
    if mark is Mark.GRAPH_BREAK:
        note = next((said for said in (*args, *kwargs.values()) if type(said) is str), "")
    raise BreakRequested(_BREAKS[mark], f"{name}: {note}" if note else name)


def is_marked_object(value: object) -> bool:
    """Whether the program marked an object with a `__call__`: a partial, a module, an instance of
    a class of its own. Functions in C and classes have marks of their own."""
    return MARKS.of(value) in _OF_OBJECTS and not issubclass(type(value), (type, *BUILTINS))


def call_marked_object(
    interpreter: Interpreter, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """The result of calling it. The mark is of this object, so another one in its place is another
    program."""
    guard_context = interpreter.guard_context
    source = guard_context.source_of(function)
    if source is not None:
        guard_context.guard(source, GuardKind.ID_MATCH, function)
    return call_marked(interpreter, function, args, kwargs)


@final
class Procedure:
    """A function that is called behind the graph for its effects. step: of the call; state: that
    it is called under, None for that of the frame's entry."""

    def __init__(self, function: types.FunctionType, step: int, state: AmbientState | None) -> None:
        self.function = function
        self.step = step
        self.state = state

    def __call__(self, *args: object) -> None:
        if self.state is None:
            self.function(*args)
            return
        before = ambient_state()
        set_ambient_state(self.state.with_modes_of(before), 0)
        try:
            self.function(*args)
        finally:
            set_ambient_state(before, 0)


def _is_procedure(function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether a function is called for its effects alone: it gets no tensor, and gives None."""
    if type(function) is not types.FunctionType or kwargs or not all(map(is_constant, args)):
        return False
    return returns_none(function)


def _call_procedure(
    interpreter: Interpreter, function: types.FunctionType, args: tuple[object, ...], name: str
) -> None:
    """A call that the user lets into the graph, which has no place for it: it comes when the graph
    ran, at each call, under the modes that it has in the frame. It breaks instead where a break is
    allowed, and of a function whose cells the frame writes to: it would be seen that it is late."""
    options = interpreter.request.options
    cells = interpreter.side_effects.cells
    seen = any(
        id(cell) in cells or id(cell) in interpreter.guard_context.fresh
        for cell in _cells(function)
    )
    late = options is not None and options.fullgraph and not seen
    if not late:
        raise BreakRequested("input-output", f"{name}(), which is called for its effects alone")
    now, entered = ambient_state(), interpreter.entered_state
    state = None if now.with_modes_of(entered) == entered else now
    interpreter.deferred_calls.append((Procedure(function, interpreter.outer_step, state), args))


def _cells(function: types.FunctionType) -> tuple[types.CellType, ...]:
    return function.__closure__ or ()


def check_procedures(interpreter: Interpreter) -> None:
    """CannotRebuild where the frame read or wrote what a call changes that came late."""
    side_effects, reads = interpreter.side_effects, interpreter.guard_context.reads
    late = [call for call, _ in interpreter.deferred_calls if type(call) is Procedure]
    for procedure in late:
        for cell in _cells(procedure.function):
            if id(cell) in side_effects.cells or (id(cell), "cell_contents") in reads:
                name = procedure.function.__qualname__
                raise CannotRebuild(f"a variable of {name}(), whose call is late", procedure.step)


def _call_ours(
    interpreter: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """NOT_MARKED for a function that is none of Braze's own; a break at one that is, since Braze
    does not interpret itself, and a Redirect where it stands for the program's."""
    space = getattr(function, "__globals__", None)
    module = space.get("__name__") if space is not None else None
    if type(module) is not str or not module.startswith(_REACHED):
        return NOT_MARKED
    if module == _SHIELD_MODULE:
        code = function.__code__.co_qualname
        if code == _PART:  # of which all else there is made
            return load_class_attribute(interpreter, type(args[0]), args[1])
        return _call_shielded(interpreter, code, args) if code in _SHIELD_CALLS else NOT_MARKED
    if module == _FACE and function.__name__ == "compile":
        return _compile_here(interpreter, function, args, kwargs)
    raise BreakRequested("not-inlined", f"{function.__qualname__}, a part of Braze")


def _compile_here(
    interpreter: Interpreter,
    compile: types.FunctionType,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> types.FunctionType | CompiledHere:
    """`braze.compile(function)` in the frame. Its calls here are calls of the function; where it
    leaves the frame, each call of the frame makes it, as eagerly.

    It is made once here, too, for the errors of options that mean nothing."""
    if len(args) != 1 or type(args[0]) is not types.FunctionType:
        raise BreakRequested("not-inlined", "compile() of what is no function, a part of Braze")
    options = {name: value for name, value in kwargs.items() if not is_constant(value)}
    if options.keys() - {"backend"} or any(map(_is_made_here(interpreter), options.values())):
        raise BreakRequested("not-inlined", "compile() with options made here, a part of Braze")
    made = interpreter.native(compile, *args, **kwargs)
    if made is args[0]:  # it is disabled
        return made
    return CompiledHere(args[0], (compile, args, kwargs))


def _is_made_here(interpreter: Interpreter) -> Callable[[object], bool]:
    return lambda value: id(value) in interpreter.guard_context.fresh


def call_compiled_here(
    interpreter: Interpreter,
    compiled: CompiledHere,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """A function that the frame compiled is part of the frame's own graph."""
    return interpreter.call(compiled._function, *args, **kwargs)


@answers(CompiledHere.__getattr__)
def ask_compiled_here(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """An attribute of what `braze.compile` gave."""
    raise BreakRequested("not-inlined", f"compile(...).{args[1]}, a part of Braze")


def _torch_mark(function: object) -> Mark | None:
    return Mark.ASSUME_CONSTANT if is_torch_constant(function) else None


_OF_OBJECTS = frozenset({Mark.ALLOW_IN_GRAPH, Mark.ASSUME_CONSTANT, Mark.DISALLOW_IN_GRAPH})
_BREAKS = {
    Mark.DISABLE: "disabled",
    Mark.DISALLOW_IN_GRAPH: "disallowed",
    Mark.GRAPH_BREAK: "explicit",
}


def _call_shielded(interpreter: Interpreter, code: str, args: tuple[object, ...]) -> Redirect:
    """A compiled module inside of a compiled program is the module that it was made from; its
    `forward` is that of the model's class, whatever the model has in its dict, which may be what
    calls it."""
    cls = type(args[0])
    original = load_class_attribute(interpreter, cls, _ORIGINAL)
    find = load_class_attribute(interpreter, cls, _FIND)
    if MARKS.of(find) is Mark.DISABLE:
        name, note = f"the module {cls.__qualname__}", MARKS.note_of(find)
        raise BreakRequested("disabled", f"{name}: {note}" if note else name)
    if code != _FORWARD:
        return Redirect(original, args[1:])
    forward = load_class_attribute(interpreter, type(original), "forward")
    return Redirect(forward, (original, *args[1:]))


@answers(allow_in_graph, torch.compiler.allow_in_graph)
def allow_here(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """As the program itself would mark it; what a transform of torch.func gave is traced whole
    as it is."""
    (function,) = args
    if type(function) is Transformed or type(function) is Whole:
        return function
    if isinstance(function, (list, tuple)):
        return [allow_here(interpreter, (each,), kwargs) for each in function]
    if type(function) is types.FunctionType:
        return interpreter.native(allow_in_graph, function)
    if not callable(function):
        return interpreter.native(allow_in_graph, function)
    return Whole(function)


@answers(CALL_REGION)
def call_region(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    """A function marked by torch.compiler.nested_compile_region is part of its caller's graph."""
    return interpreter.call(args[0], *args[1:], **kwargs)


def call_whole(
    interpreter: Interpreter, whole: Whole, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Call it on fake tensors, without looking into its Python code."""
    return leaf_call(interpreter, whole.function, args, kwargs)


def _call_once(
    interpreter: Interpreter,
    function: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    name: str,
) -> object:
    if any(type(value) in TENSORS for value in (*args, *kwargs.values())):
        raise BreakRequested("explicit", f"{name} is assumed constant but takes a tensor")
    key = (id(function), "constant", args, tuple(kwargs.items()))
    guard_context = interpreter.guard_context
    try:
        if key in guard_context.reads:
            return guard_context.reads[key]
    except TypeError:
        raise BreakRequested("explicit", f"{name} takes unhashable arguments") from None
    result = interpreter.native(call_untraced, function, args, kwargs)
    if isinstance(result, torch.Tensor):
        made = interpreter.tracer.add_constant(result)
    else:
        made = guard_context.track(result, ObjectSource(f"{name}()", result))
    guard_context.reads[key] = made
    return made
