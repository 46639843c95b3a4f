"""Class statements, and classes made by calling a metaclass.

The body is interpreted, and so are `__prepare__`, a metaclass's own methods, `__set_name__` and
`__init_subclass__`. The class itself is a real one. It does not leave the frame: `Reconstructor`
has no recipe for it, so the frame is left before it is made. That of a named tuple leaves: it is
made anew, by `collections.namedtuple`, from its fields.
"""

from __future__ import annotations

import builtins
import collections
import types
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.handlers.dispatch import make_frame
from braze.capture.objects.attribute_load import load_super_attribute
from braze.capture.objects.items import store_item
from braze.capture.state.namedtuples import NamedTuple
from braze.capture.state.reentrant_calls import redirect
from braze.capture.state.special_methods import own_special_functions
from braze.compat.python.bytecode_versions import BYTECODE
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.capture.state.guard_context import GuardContext


@answers(builtins.__build_class__)
def build_class(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """`class name(*bases, **keywords): body`."""
    body, name, *given = args
    keywords = dict(kwargs)
    bases = _resolved_bases(interpreter, tuple(given))
    metaclass = _metaclass(interpreter, bases, keywords)
    space = _prepared(interpreter, metaclass, name, bases, keywords)
    cell = _run_body(interpreter, body, space)
    if bases != tuple(given):
        store_item(interpreter, space, "__orig_bases__", tuple(given))
    made = interpreter.call(metaclass, name, bases, space, **keywords)
    if type(cell) is types.CellType and isinstance(made, type):
        _check_cell(name, made, cell)
    return made


def _check_cell(name: str, made: type, cell: types.CellType) -> None:
    """A metaclass that loses `__classcell__` is told so."""
    try:
        found = cell.cell_contents
    except ValueError:
        message = (
            f"__class__ not set defining {name!r} as {made!r}. Was __classcell__ propagated to "
            "type.__new__?"
        )
        raise ProgramRaised(RuntimeError(message)) from None
    if found is not made:
        message = f"__class__ set to {found!r} defining {name!r} as {made!r}"
        raise ProgramRaised(TypeError(message))


def _resolved_bases(interpreter: Interpreter, given: tuple[object, ...]) -> tuple[object, ...]:
    """What the bases are that are no classes (`list[int]`): `__mro_entries__` says."""
    bases: list[Any] = []
    for base in given:
        if issubclass(type(base), type):
            bases.append(base)
            continue
        try:
            entries = interpreter.attribute(base, "__mro_entries__")
        except ProgramRaised as raised:
            if not isinstance(raised.exception, AttributeError):
                raise
            bases.append(base)
            continue
        found = interpreter.call(entries, given)
        if not isinstance(found, tuple):
            raise ProgramRaised(TypeError("__mro_entries__ must return a tuple"))
        bases += found
    return tuple(bases)


def _metaclass(
    interpreter: Interpreter, bases: tuple[Any, ...], keywords: dict[str, Any]
) -> object:
    """The most derived metaclass."""
    metaclass = keywords.pop("metaclass", None)
    if metaclass is None:
        metaclass = interpreter.guard_context.type_of(bases[0]) if bases else type
    if not issubclass(type(metaclass), type):
        return metaclass
    for base in bases:
        other = interpreter.guard_context.type_of(base)
        if issubclass(metaclass, other):
            continue
        if not issubclass(other, metaclass):
            message = (
                "metaclass conflict: the metaclass of a derived class must be a (non-strict) "
                "subclass of the metaclasses of all its bases"
            )
            raise ProgramRaised(TypeError(message))
        metaclass = other
    return metaclass


def _prepared(
    interpreter: Interpreter,
    metaclass: object,
    name: str,
    bases: tuple[object, ...],
    keywords: dict[str, object],
) -> object:
    """The namespace in which the body runs."""
    try:
        prepare = interpreter.attribute(metaclass, "__prepare__")
    except ProgramRaised as raised:
        if not isinstance(raised.exception, AttributeError):
            raise
        return {}
    if prepare == type.__prepare__:
        return {}
    space = interpreter.call(prepare, name, bases, **keywords)
    if interpreter.guard_context.lookup(type(space), "__getitem__") is ABSENT:
        owner = metaclass.__name__ if isinstance(metaclass, type) else "<metaclass>"
        message = f"{owner}.__prepare__() must return a mapping, not {type(space).__name__}"
        raise ProgramRaised(TypeError(message))
    return space


def _run_body(interpreter: Interpreter, body: types.FunctionType, space: object) -> object:
    frame, _ = make_frame(interpreter, body, (), {})
    assert frame is not None, "the body of a class is no generator"
    frame.names = space
    return interpreter.run(frame)


# --- type.__new__ --------------------------------------------------------------------------------


class _Quiet:
    """First among the bases while a class is made: its `__init_subclass__` hides theirs, which
    are interpreted afterwards. Its instances are laid out as those of a class without slots."""

    @classmethod
    def __init_subclass__(cls) -> None:
        """Nothing."""


class _QuietSlots:
    """The same, for bases whose instances have no `__dict__`."""

    __slots__ = ()

    @classmethod
    def __init_subclass__(cls) -> None:
        """Nothing."""


@answers(type.__new__)
def new_class(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    """A real class; what making it calls in the program is interpreted."""
    if len(args) != 4 or not isinstance(args[2], tuple) or not isinstance(args[3], dict):
        return interpreter.native(type.__new__, *args, **kwargs)
    metaclass, name, bases, space = args
    guard_context = interpreter.guard_context
    if isinstance(guard_context.lookup(metaclass, "mro"), types.FunctionType):
        raise BreakRequested("unsupported-function", f"the mro() of {metaclass.__qualname__}")
    contents = dict(interpreter.side_effects.contents(space))
    named = {
        key: value
        for key, value in contents.items()
        if isinstance(guard_context.lookup(type(value), "__set_name__"), types.FunctionType)
    }
    contents.update(dict.fromkeys(named))
    contents.setdefault("__module__", interpreter.frames[-1].globals.get("__name__"))
    quiet = any(_has_hook(guard_context, base) for base in bases)
    if quiet:
        first = _Quiet if any(base.__dictoffset__ for base in bases) else _QuietSlots
        made = interpreter.native(type.__new__, metaclass, name, (first, *bases), contents)
        interpreter.native(type.__setattr__, made, "__bases__", bases)
    else:
        made = interpreter.native(type.__new__, metaclass, name, bases, contents, **kwargs)
    guard_context.note_class(made, interpreter.outer_step)
    redirect(interpreter, _made_here(guard_context, made), [])
    for key, value in named.items():
        type.__setattr__(made, key, value)
    for key, value in named.items():
        _set_name(interpreter, value, made, key)
    if quiet:
        hook = load_super_attribute(interpreter, super(made, made), "__init_subclass__")
        interpreter.call(hook, **kwargs)
    return made


def _made_here(guard_context: GuardContext, made: type) -> list[types.FunctionType]:
    """A new class's special methods whose functions the program made in this frame."""
    return [
        function for function in own_special_functions(made) if id(function) in guard_context.fresh
    ]


def _has_hook(guard_context: GuardContext, base: Any) -> bool:
    """Whether subclasses of a class are told to Python code of the program."""
    if not issubclass(type(base), type):
        return False
    hook = guard_context.lookup(base, "__init_subclass__")
    return isinstance(getattr(hook, "__func__", None), types.FunctionType)


def _set_name(interpreter: Interpreter, value: object, owner: type, name: str) -> None:
    method = interpreter.guard_context.lookup(type(value), "__set_name__")
    try:
        interpreter.call(method, value, owner, name)
    except ProgramRaised as raised:
        note_failed_name(raised, value, owner, name)
        raise


def note_failed_name(raised: ProgramRaised, value: object, owner: type, name: str) -> None:
    """What Python says of an exception that `__set_name__` raised: until 3.11 another error."""
    what = f"Error calling __set_name__ on {type(value).__name__!r} instance {name!r} in "
    if BYTECODE.set_name_adds_note:
        raised.exception.add_note(what + repr(owner.__name__))
        return
    error = RuntimeError(what + repr(owner.__name__))
    error.__cause__ = raised.exception
    raised.exception = error


@answers(collections.namedtuple)
def make_named_tuple(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`collections.namedtuple(...)`, interpreted."""
    made = interpreter.call_python(collections.namedtuple, args, kwargs)
    interpreter.guard_context.named_tuples[id(made)] = NamedTuple(made)
    return made


@answers(type(torch.autograd.Function).__init__)
def make_autograd_function(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """torch's metaclass numbers the class and makes one for its backward."""
    return interpreter.native(type(torch.autograd.Function).__init__, *args, **kwargs)
