"""Class statements: `class C(Base): ...` inside an interpreted function.

The class is really made, natively, where that runs no code but the making of functions: its body
only defines plain, static and class methods, properties and constants, and its bases' metaclass
does nothing else. Such a class does not leave the frame: `RecipeWriter` has no recipe for it.
"""

from __future__ import annotations

import builtins
import types
from typing import Any

import torch

from braze.capture.handler_table import answers
from braze.capture.signals import BreakRequested
from braze.compat.bytecode import decode

_KNOWN_METACLASSES = frozenset({type, type(torch.autograd.Function)})
_DECORATORS = {"staticmethod": staticmethod, "classmethod": classmethod, "property": property}
_INSTRUCTIONS = frozenset(
    "RESUME NOP CACHE COPY_FREE_VARS MAKE_CELL PUSH_NULL LOAD_CONST LOAD_NAME STORE_NAME "
    "LOAD_CLOSURE LOAD_FAST BUILD_TUPLE BUILD_MAP BUILD_CONST_KEY_MAP MAKE_FUNCTION "
    "SET_FUNCTION_ATTRIBUTE PRECALL CALL COPY STORE_DEREF RETURN_VALUE RETURN_CONST".split()
)


@answers(builtins.__build_class__)  # type: ignore[attr-defined]
def build_class(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make the class; a break where that could run the program's code."""
    body, name, *bases = args
    if kwargs or not _only_defines(body) or not all(map(_makes_plainly, bases)):
        raise BreakRequested("unsupported-function", f"the class statement of {name}")
    made = builtins.__build_class__(body, name, *bases)  # type: ignore[attr-defined]
    world = interpreter.world
    world.fresh[id(made)] = made
    world.made_classes[id(made)] = interpreter.outer_step
    for value in vars(made).values():
        functions = (value, getattr(value, "__func__", None), getattr(value, "fget", None))
        for function in functions:
            if type(function) is types.FunctionType:
                world.fresh[id(function)] = function
    return made


# --- private ---------------------------------------------------------------------------------


def _only_defines(body: types.FunctionType) -> bool:
    """Whether running the body makes functions and nothing else."""
    defined = {"__name__", "__qualname__", "__module__"}
    for instruction in decode(body.__code__).instructions:
        if instruction.name not in _INSTRUCTIONS:
            return False
        if instruction.name == "LOAD_NAME" and instruction.value not in defined:
            name = instruction.value
            if name not in _DECORATORS or name in body.__globals__:
                return False
        if instruction.name == "STORE_NAME":
            defined.add(instruction.value)
            if instruction.value in _DECORATORS:
                return False
    return True


def _makes_plainly(base: Any) -> bool:
    """Whether a subclass is made without code of the program."""
    return (
        isinstance(base, type)
        and type(base) in _KNOWN_METACLASSES
        and all("__init_subclass__" not in vars(cls) for cls in base.__mro__[:-1])
    )
