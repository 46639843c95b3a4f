"""CPython's intrinsics (from Python 3.12): what makes type variables, generic classes and aliases
has no name that a program could call, only an instruction."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable

# Number -> name, of CALL_INTRINSIC_1 and CALL_INTRINSIC_2; empty before Python 3.12.
ONE_OPERAND: tuple[str, ...] = tuple(getattr(dis, "_intrinsic_1_descs", ()))
TWO_OPERANDS: tuple[str, ...] = tuple(getattr(dis, "_intrinsic_2_descs", ()))


def native_intrinsic(name: str, space: dict[str, object]) -> Callable[..., object]:
    """An intrinsic as a function; `space`: the globals of the module that uses it."""
    return types.FunctionType(_code_of(name), space)


@functools.cache
def _code_of(name: str) -> types.CodeType:
    """A function whose only work is the intrinsic, in the place of an operator."""
    if name in ONE_OPERAND:
        template, replaced = (lambda a: -a).__code__, "UNARY_NEGATIVE"
        opname, number = "CALL_INTRINSIC_1", ONE_OPERAND.index(name)
    else:
        template, replaced = (lambda a, b: a + b).__code__, "BINARY_OP"
        opname, number = "CALL_INTRINSIC_2", TWO_OPERANDS.index(name)
    code = bytearray(template.co_code)
    at = next(i.offset for i in dis.get_instructions(template) if i.opname == replaced)
    code[at : at + 2] = bytes((dis.opmap[opname], number))
    while code[at + 2] == dis.opmap["CACHE"]:
        at += 2
        code[at : at + 2] = bytes((dis.opmap["NOP"], 0))
    return template.replace(co_code=bytes(code), co_name=name, co_qualname=name)
