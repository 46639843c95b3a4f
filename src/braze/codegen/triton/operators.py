"""Triton text of each scalar operator, by the kind of its operands.

A form is a template over {0}, {1}, {2}. Functions named `bz_*` are in functions.py; libdevice is
NVIDIA's library of mathematical functions, which eager's kernels call as well. Operators that it
lacks, or has with other accuracy than eager's own code, are not supported: such ATen operators
keep their kernels. Division of integers by zero gives what the device gives, as in eager.
"""

from __future__ import annotations

import math

import torch

from braze.compat.torch.float8 import saturates_e4m3
from braze.ir.kernels.loops import Literal

FLOATS = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)
# Floats of a byte, by what the functions that convert them are called.
BYTES = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}

# Triton's name of each dtype, in memory and as a value.
TYPES: dict[torch.dtype, str] = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.bool: "int1",
    torch.float8_e4m3fn: "uint8",  # their bits: the device's own conversion does not round alike
    torch.float8_e5m2: "uint8",
}

# Triton's type of a pointer to each dtype, in a signature.
POINTERS: dict[torch.dtype, str] = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.uint16: "*u16",
    torch.uint32: "*u32",
    torch.uint64: "*u64",
    torch.bool: "*i1",
    torch.float8_e4m3fn: "*u8",
    torch.float8_e5m2: "*u8",
}

INTEGERS = tuple(dtype for dtype in TYPES if not dtype.is_floating_point and dtype != torch.bool)

# What memory adds by itself; eager adds smaller integers by comparing and swapping words.
ATOMIC_SUMS = (*HALVES, *FLOATS, torch.int32, torch.int64)

_LIBRARY_1 = (
    "exp exp2 expm1 log log2 log10 log1p rsqrt sin cos tan asin acos atan sinh cosh tanh asinh "
    "acosh atanh erf erfc erfinv lgamma floor ceil trunc"
).split()
_LIBRARY_2 = "atan2 hypot copysign nextafter pow fmod".split()

_FLOAT_FORMS: dict[str, str] = {
    **{op: f"libdevice.{op}({{0}})" for op in _LIBRARY_1},
    **{op: f"libdevice.{op}({{0}}, {{1}})" for op in _LIBRARY_2},
    "sqrt": "libdevice.sqrt_rn({0})",
    "round": "libdevice.rint({0})",
    "isnan": "({0} != {0})",
    "isinf": "(tl.abs({0}) == float('inf'))",
    "signbit": "bz_signbit({0})",
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "sign": "bz_sign({0})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "truediv": "libdevice.div_rn({0}, {1})",
    "truncdiv": "libdevice.trunc(libdevice.div_rn({0}, {1}))",
    "floordiv": "bz_float_floordiv({0}, {1})",
    "mod": "bz_float_mod({0}, {1})",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "fmax": "bz_fmax({0}, {1})",
    "fmin": "bz_fmin({0}, {1})",
    "fma": "libdevice.fma({0}, {1}, {2})",
}

# Of values that are rounded to a half type before anything else sees them: a few units in the
# last place of float32 more, for a fraction of the instructions.
RELAXED_FORMS: dict[str, str] = {
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
    "truediv": "{0} / {1}",
    "erf": "bz_short_erf({0})",
    "tanh": "bz_short_tanh({0})",
}

# Where every rounding of eager is kept: a product and a sum are not contracted to one operation.
EXACT_FORMS: dict[str, str] = {
    "add": "libdevice.add_rn({0}, {1})",
    "sub": "libdevice.sub_rn({0}, {1})",
    "mul": "libdevice.mul_rn({0}, {1})",
}

_INTEGER_FORMS: dict[str, str] = {
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "sign": "bz_sign({0})",
    "not": "bz_not({0})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "floordiv": "bz_floordiv({0}, {1})",
    "mod": "bz_mod({0}, {1})",
    "truncdiv": "{0} // {1}",
    "fmod": "{0} % {1}",
    "pow": "bz_power({0}, {1})",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "shl": "bz_shl({0}, {1})",
    "shr": "bz_shr({0}, {1})",
}

_BOOL_FORMS: dict[str, str] = {
    "not": "~{0}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
}

_ANY_FORMS: dict[str, str] = {
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "where": "tl.where({0}, {1}, {2})",
}


def supports(op: str, dtype: torch.dtype) -> bool:
    """Whether the Triton generator has the scalar operator on operands of the dtype (for `where`,
    operands 1 and 2); also whether it has loads and stores of the dtype at all, for op "",
    and atomic sums, for op "scatter_add"."""
    if op == "":
        return dtype in TYPES
    if op == "scatter_add":
        return dtype in ATOMIC_SUMS
    return form(op, dtype) is not None


def form(op: str, dtype: torch.dtype) -> str | None:
    """The Triton template of the operator on operands of the dtype, or None."""
    if dtype not in TYPES:
        return None
    if op in _ANY_FORMS:
        return None if dtype in (*HALVES, *BYTES) and op != "where" else _ANY_FORMS[op]
    if dtype in FLOATS:
        return _FLOAT_FORMS.get(op)
    if dtype == torch.bool:
        return _BOOL_FORMS.get(op)
    return _INTEGER_FORMS.get(op) if dtype in INTEGERS else None


def literal_text(literal: Literal) -> str:
    """A scalar of exactly the literal's type and value."""
    if literal.dtype in HALVES:
        return (
            f"tl.full((), {number_text(literal.value)}, tl.float32).to(tl.{TYPES[literal.dtype]})"
        )
    value = literal.value
    if literal.dtype in BYTES:
        value = int(torch.tensor(value, dtype=literal.dtype, device="cpu").view(torch.uint8).item())
    return f"tl.full((), {number_text(value)}, tl.{TYPES[literal.dtype]})"


def number_text(value: bool | int | float) -> str:
    """A number as Triton's compiler reads it."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def cast_text(operand: str, source: torch.dtype, target: torch.dtype) -> str:
    """`operand` converted as Tensor.to does it on the device."""
    if source == target:
        return operand
    if source in BYTES:
        return cast_text(f"bz_from_{BYTES[source]}({operand})", torch.float32, target)
    if target in BYTES:
        name = BYTES[target]
        if target == torch.float8_e4m3fn and saturates_e4m3():
            name = "e4m3_within"
        return f"bz_to_{name}({cast_text(operand, source, torch.float32)})"
    if target == torch.bool:
        return f"({operand} != 0)"
    for step in _steps(source, target):
        operand = f"{operand}.to(tl.{TYPES[step]})"
    return operand


# --- private ---------------------------------------------------------------------------------


def _steps(source: torch.dtype, target: torch.dtype) -> tuple[torch.dtype, ...]:
    """The types that a conversion goes through: eager's go to half types by float32, and to small
    integers by larger ones, which wrap."""
    if target in HALVES and source != torch.float32:
        return (torch.float32, target)
    if source in HALVES and target != torch.float32:
        return (torch.float32, *_steps(torch.float32, target))
    if source.is_floating_point and target in INTEGERS and target.itemsize < 4:
        wide = torch.int32 if target.is_signed else torch.int64
        return (wide, target)
    return (target,)
