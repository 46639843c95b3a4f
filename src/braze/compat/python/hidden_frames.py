"""Functions whose frames no program sees: neither `sys._getframe`, tracebacks nor warnings do.

    hide_frames(__name__)       # at the end of a module

CPython leaves a frame out that waits before the first RESUME of its code: it counts as not begun
(`_PyFrame_IsIncomplete`, which `sys._getframe`, `frame.f_back`, `warnings.warn`, tracebacks and C
code ask). So the code of a hidden function has no RESUME:

    RESUME              NOP
    body                body

or, on Python 3.11, one at its end. There RESUME specializes the code, and a profiler that is told
of a return must have been told of the call:

    RESUME              JUMP_FORWARD end
    body                body
                  end:  RESUME
                        JUMP_BACKWARD body

Tools that trace lines step over hidden functions. A hidden function may not ask for its own frame,
as `locals()`, `globals()` and `super()` without arguments do. Generators stay as they are.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Iterable, Iterator

from braze.compat.python.bytecode_versions import BYTECODE
from braze.compat.python.code_objects import (
    GENERATOR_FLAGS,
    UNIT,
    Handler,
    Position,
    caches_after,
    encode,
    entry_offset,
    read_handlers,
    write_handlers,
    write_locations,
)


def hide_frames(module: str, functions: Iterable[object] = ()) -> None:
    """Hide the frames of the functions and methods that are written in a module, and of others that
    are given."""
    space = vars(sys.modules[module])
    for function in {*_functions_in(space, module), *_functions_of(functions)}:
        function.__code__ = hidden_code(function.__code__)


def hidden_code(code: types.CodeType) -> types.CodeType:
    """The same code without a frame that is seen; so are functions that it makes."""
    constants = [
        hidden_code(one) if isinstance(one, types.CodeType) else one for one in code.co_consts
    ]
    code = code.replace(co_consts=tuple(constants))
    if code.co_flags & GENERATOR_FLAGS or is_hidden(code):
        return code
    start = entry_offset(code)
    length = UNIT * (1 + caches_after("RESUME"))
    body = code.co_code[:start] + encode("NOP") * (length // UNIT) + code.co_code[start + length :]
    if not BYTECODE.resume_specializes:
        return code.replace(co_code=body)
    return _resumed_at_the_end(code, body)


def is_hidden(code: types.CodeType) -> bool:
    """Whether the frames of a code object are hidden."""
    if dis.opmap["RESUME"] not in code.co_code[::UNIT]:
        return True
    first = next(one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG")
    return first.opname == "JUMP_FORWARD"


def stand_in_code(code: types.CodeType, line: int | None) -> types.CodeType:
    """Code of a function that stands in for a frame which Braze holds, to go on with it later: it
    calls the next of an iterator of functions with that iterator. `is_stand_in` knows it."""
    return placed_code(_call_next.__code__.replace(co_varnames=(_STAND_IN,)), code, line)


def is_stand_in(code: types.CodeType) -> bool:
    """Whether a frame with this code is one that stands in for another."""
    return code.co_varnames[:1] == (_STAND_IN,)


def placed_code(calling: types.CodeType, code: types.CodeType, line: int | None) -> types.CodeType:
    """Code whose body is the line behind its first, with names and at a line of other code."""
    line = code.co_firstlineno if line is None else line
    return calling.replace(
        co_filename=code.co_filename,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_firstlineno=line - 1,
    )


# --- private ---------------------------------------------------------------------------------


def _resumed_at_the_end(code: types.CodeType, body: bytes) -> types.CodeType:
    ahead = encode("JUMP_FORWARD", len(body) // UNIT)
    end = encode("RESUME", 0)
    back = b""
    # A jump is counted from behind itself, with the prefixes that a longer one has.
    while len(back) != len(back := encode("JUMP_BACKWARD", len(body + end + back) // UNIT)):
        pass
    units = len(ahead) // UNIT
    handlers = [
        Handler(h.start + units, h.end + units, h.target + units, h.depth, h.push_offset)
        for h in read_handlers(code.co_exceptiontable)
    ]
    position: Position = (code.co_firstlineno, None, None, None)
    return code.replace(
        co_code=ahead + body + end + back,
        co_exceptiontable=write_handlers(handlers),
        co_linetable=write_locations(units - 1, position, code.co_firstlineno)
        + code.co_linetable
        + write_locations(len(end + back) // UNIT - 1, (None, None, None, None), 0),
    )


def _functions_in(space: dict[str, object], module: str) -> Iterator[types.FunctionType]:
    """Those in a module's variables and its classes that are written in its file."""
    file = space["__file__"]
    for value in list(space.values()):
        if getattr(value, "__module__", None) != module:
            continue
        found = [value, *(vars(value).values() if isinstance(value, type) else ())]
        for function in _functions_of(found):
            if function.__code__.co_filename == file:
                yield function


def _functions_of(values: Iterable[object]) -> Iterator[types.FunctionType]:
    for value in values:
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, types.FunctionType):
            yield value


def _call_next(functions: Iterator[Callable[..., object]]) -> object:
    return next(functions)(functions)


_STAND_IN = ".called"  # no identifier, so that no function of the program has it
