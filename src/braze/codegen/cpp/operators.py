"""C++ of each scalar operator, by the kind of its operands.

A form is a template over {0}, {1}, {2}. Functions named `bz_*` are in prelude.cpp and special.cpp.
"""

from __future__ import annotations

import math
import re
import struct

import torch

from braze.compat.torch.float8 import saturates_e4m3
from braze.frozen import frozen
from braze.ir.kernels.loops import SCALAR_OPS, Literal

FLOATS = (torch.float32, torch.float64)
INTEGERS = (
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)


@frozen
class CType:
    """memory: the type behind pointers; value: the type of a variable."""

    memory: str
    value: str


TYPES: dict[torch.dtype, CType] = {
    torch.float32: CType("float", "float"),
    torch.float64: CType("double", "double"),
    torch.float16: CType("u16", "u16"),
    torch.bfloat16: CType("u16", "u16"),
    torch.float8_e4m3fn: CType("u8", "u8"),
    torch.float8_e5m2: CType("u8", "u8"),
    torch.int64: CType("i64", "i64"),
    torch.int32: CType("int", "int"),
    torch.int16: CType("short", "short"),
    torch.int8: CType("signed char", "signed char"),
    torch.uint8: CType("u8", "u8"),
    torch.uint16: CType("u16", "u16"),
    torch.uint32: CType("u32", "u32"),
    torch.uint64: CType("u64", "u64"),
    torch.bool: CType("u8", "bool"),
}

# Floats that are kept as their bits, by what the functions that convert them are called.
_NARROW = {
    torch.float16: "half",
    torch.bfloat16: "bfloat",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
}

_CALLS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc lgamma sqrt rsqrt floor ceil trunc round isnan isinf signbit abs sign "
    "atan2 hypot copysign nextafter pow fmod maximum minimum fmax fmin fma"
).split()

# Functions of special.cpp.
_SPECIAL = (
    "digamma trigamma zeta erfcx erfinv ndtri log_ndtr i0 i0e i1 i1e bessel_j0 bessel_j1 bessel_y0 "
    "bessel_y1 bessel_k0 bessel_k1 bessel_k0e bessel_k1e chebyshev_t chebyshev_u chebyshev_v "
    "chebyshev_w hermite_h hermite_he laguerre_l legendre_p frexp_mantissa frexp_exponent"
).split()
SPECIAL_CALLS = re.compile(rf"\bbz_(?:{'|'.join([*_SPECIAL, 'gcd'])})\(")

_FLOAT_FORMS: dict[str, str] = {
    **{
        op: f"bz_{op}({', '.join(f'{{{i}}}' for i in range(SCALAR_OPS[op].arity))})"
        for op in [*_CALLS, *_SPECIAL]
    },
    "neg": "-{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "truediv": "{0} / {1}",
    "floordiv": "bz_floordiv({0}, {1})",
    "mod": "bz_mod({0}, {1})",
    "truncdiv": "bz_trunc({0} / {1})",
}

_INTEGER_FORMS: dict[str, str] = {
    "neg": "-{0}",
    "abs": "bz_abs({0})",
    "sign": "bz_sign({0})",
    "not": "~{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "floordiv": "bz_floordiv({0}, {1}, bad)",
    "mod": "bz_mod({0}, {1}, bad)",
    "truncdiv": "bz_truncdiv({0}, {1}, bad)",
    "fmod": "bz_fmod({0}, {1}, bad)",
    "pow": "bz_pow({0}, {1})",
    "maximum": "({0} > {1} ? {0} : {1})",
    "minimum": "({0} < {1} ? {0} : {1})",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "gcd": "bz_gcd({0}, {1})",
    "shl": "bz_shl({0}, {1})",
    "shr": "bz_shr({0}, {1})",
}

_BOOL_FORMS: dict[str, str] = {
    "not": "!{0}",
    "and": "(bool)({0} & {1})",
    "or": "(bool)({0} | {1})",
    "xor": "(bool)({0} ^ {1})",
}

_ANY_FORMS: dict[str, str] = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "where": "{0} ? {1} : {2}",
}

# Operators that may set the kernel's fault flag.
MAY_FAULT = frozenset(op for op, form in _INTEGER_FORMS.items() if "bad" in form)


def supports(op: str, dtype: torch.dtype) -> bool:
    """Whether the C++ generator has the scalar operator on operands of the dtype (for `where`,
    operands 1 and 2); also whether it has loads and stores of the dtype at all, for op "",
    and sums of scattered values, for op "scatter_add"."""
    if op == "":
        return dtype in TYPES
    if op == "scatter_add":
        return dtype in TYPES and dtype != torch.bool
    return form(op, dtype) is not None


def form(op: str, dtype: torch.dtype) -> str | None:
    """The C++ template of the operator on operands of the dtype, or None."""
    if dtype not in TYPES:
        return None
    if op in _ANY_FORMS:
        return None if dtype in _NARROW and op != "where" else _ANY_FORMS[op]
    if dtype in FLOATS:
        return _FLOAT_FORMS.get(op)
    if dtype == torch.bool:
        return _BOOL_FORMS.get(op)
    return _INTEGER_FORMS.get(op) if dtype in INTEGERS else None


def literal_text(literal: Literal) -> str:
    """A constant of exactly the literal's type and value."""
    dtype, value = literal.dtype, literal.value
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype in _NARROW:
        width = torch.uint8 if dtype.itemsize == 1 else torch.uint16
        bits = int(torch.tensor(value, dtype=dtype, device="cpu").view(width).item())
        return f"({TYPES[dtype].value}){bits}"
    if dtype.is_floating_point:
        return _float_text(float(value), dtype)
    number = int(value)
    if dtype == torch.int64:
        return "(-9223372036854775807L - 1)" if number == -(2**63) else f"{number}L"
    if dtype == torch.uint64:
        return f"{number}UL"
    return f"({TYPES[dtype].value}){number}" if dtype != torch.int32 else _int_text(number)


def cast_text(operand: str, source: torch.dtype, target: torch.dtype) -> str:
    """`operand` converted as Tensor.to does it."""
    if source == target:
        return operand
    if source in _NARROW:
        widened = f"bz_from_{_NARROW[source]}({operand})"
        return widened if target == torch.float32 else cast_text(widened, torch.float32, target)
    if target in _NARROW:
        name = _NARROW[target]
        if target == torch.float8_e4m3fn and saturates_e4m3():
            name = "e4m3_within"
        return f"bz_to_{name}({cast_text(operand, source, torch.float32)})"
    if target == torch.bool:
        return f"({operand} != 0)"
    if source in FLOATS and target in INTEGERS:
        return f"bz_truncate<{TYPES[target].value}>({operand})"
    if source == torch.bool and target in FLOATS:  # GCC vectorises choices, not this conversion
        one, zero = (_float_text(value, target) for value in (1.0, 0.0))
        return f"({operand} ? {one} : {zero})"
    return f"({TYPES[target].value})({operand})"


# --- private ---------------------------------------------------------------------------------


def _int_text(number: int) -> str:
    return "(-2147483647 - 1)" if number == -(2**31) else str(number)


def _float_text(value: float, dtype: torch.dtype) -> str:
    suffix = "f" if dtype == torch.float32 else ""
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    if dtype == torch.float32:
        try:
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        except OverflowError:
            return _float_text(math.copysign(math.inf, value), dtype)
    text = value.hex() if value != int(value) or abs(value) > 1e15 else repr(value)
    return f"({text}{suffix})" if text.startswith("-") else f"{text}{suffix}"
