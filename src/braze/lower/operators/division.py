"""Divisions, remainders and powers: where integers and floats part ways."""

from __future__ import annotations

from typing import Any

import torch

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import InRange, Literal, Scalar
from braze.ir.kernels.scalars import apply, cast, compute_dtype, literal
from braze.lower import formulas
from braze.lower.formulas import divide, where
from braze.lower.lowering import OperatorCall
from braze.lower.operators.pointwise import binary_body, elementwise, multiplied
from braze.lower.rules import Lowered, rule


def _divided(call: OperatorCall, op: str, x: Scalar, divisor: Scalar) -> Scalar:
    """An integer or float division. Integer division by zero raises in eager on a CPU: here it
    stops the program, and eager, which runs the call again, raises. A GPU raises nothing."""
    if x.dtype.is_floating_point or isinstance(divisor, Literal):
        return apply(op, x, divisor)
    is_zero = apply("eq", divisor, 0)
    safe = apply(op, x, apply("where", is_zero, literal(1, divisor.dtype), divisor))
    if call.output().device.type != "cpu":
        return apply("where", is_zero, _by_zero(op, x), safe)
    minus_one, zero = literal(-1, torch.int64), literal(0, torch.int64)
    check = InRange(apply("where", is_zero, minus_one, zero), 1)
    return apply("add", safe, cast(check, x.dtype))


def _by_zero(op: str, x: Scalar) -> Scalar:
    """What a GPU gives for x over zero, as quotient and remainder: ones in all bits, of int64 in as
    many as the instruction has that numbers of 32 bits are divided by."""
    result: Scalar = literal(-1, x.dtype)
    if x.dtype == torch.int64:
        is_short = apply("and", apply("ge", x, 0), apply("lt", x, 1 << 32))
        result = apply("where", is_short, literal((1 << 32) - 1, x.dtype), result)
    if op == "floordiv" and x.dtype != torch.uint8:
        result = apply("where", apply("lt", x, 0), literal(-2, x.dtype), result)
    return result


def _divides_by_zero(call: OperatorCall, divisor: object) -> bool:
    """Whether an integer is divided by the number zero, which always raises."""
    return not call.output().dtype.is_floating_point and divisor == 0


@rule("div.Tensor", "div.Scalar", "true_divide.Tensor", takes_numbers=True)
def lower_div(call: OperatorCall, self: object, other: object) -> Lowered:
    return multiplied(call, divide, self, other)


@rule("div.Tensor_mode", "div.Scalar_mode", takes_numbers=True)
def lower_div_mode(
    call: OperatorCall, self: object, other: object, *, rounding_mode: str | None
) -> Lowered:
    if rounding_mode is None:
        return lower_div(call, self, other)
    if _divides_by_zero(call, other):
        return None
    if rounding_mode == "floor":
        return lower_floor_divide(call, self, other)
    if call.output().dtype.is_floating_point:
        return multiplied(call, lambda x, y: apply("trunc", divide(x, y)), self, other)
    return _lower_division(call, "truncdiv", self, other)


@rule("floor_divide", "floor_divide.Scalar", takes_numbers=True)
def lower_floor_divide(call: OperatorCall, self: object, other: object) -> Lowered:
    return _lower_division(call, "floordiv", self, other)


@rule("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", takes_numbers=True)
def lower_remainder(call: OperatorCall, self: object, other: object) -> Lowered:
    return _lower_division(call, "mod", self, other)


@rule("fmod.Tensor", "fmod.Scalar", takes_numbers=True)
def lower_fmod(call: OperatorCall, self: object, other: object) -> Lowered:
    return _lower_division(call, "fmod", self, other)


def _lower_division(call: OperatorCall, op: str, self: object, other: object) -> Lowered:
    if _divides_by_zero(call, other) or call.output().dtype == torch.bool:
        return None
    body = multiplied if op in ("floordiv", "truncdiv") else binary_body
    return body(call, lambda x, y: _divided(call, op, x, y), self, other)


def _power(x: Scalar, exponent: float) -> Scalar:
    """x ** exponent by the shortcuts that ATen takes."""
    if exponent == 2:
        return formulas.square(x)
    if exponent == 3:
        return apply("mul", formulas.square(x), x)
    if x.dtype.is_floating_point:
        if exponent == 0.5:
            return apply("sqrt", x)
        if exponent == -0.5:
            return apply("rsqrt", x)
        if exponent == -1:
            return divide(1.0, x)
        if exponent == -2:
            return divide(1.0, formulas.square(x))
    if exponent == 0:
        return literal(1, x.dtype)
    return x if exponent == 1 else apply("pow", x, exponent)


@rule("pow.Tensor_Scalar", takes_numbers=True)
def lower_pow(call: OperatorCall, self: Value, exponent: Any) -> Lowered:
    dtype = call.output().dtype
    if isinstance(exponent, Value) or dtype == torch.bool:
        return None
    if not dtype.is_floating_point and exponent < 0:
        return None
    if call.rounds_numbers and compute_dtype(dtype) != dtype and type(exponent) is float:
        exponent = float(torch.tensor(exponent, dtype=dtype, device="cpu"))
    return elementwise(call, lambda x: _power(x, exponent), self)


@rule("pow.Tensor_Tensor", "pow.Scalar", takes_numbers=True)
def lower_pow_tensor(call: OperatorCall, self: object, exponent: Value) -> Lowered:
    dtype = call.output().dtype
    if dtype.is_floating_point:
        return binary_body(call, lambda x, y: apply("pow", x, y), self, exponent)
    return None if dtype == torch.bool else elementwise(call, _integer_power, self, exponent)


def _integer_power(x: Scalar, exponent: Scalar) -> Scalar:
    """x ** exponent; a negative exponent gives 1 / x ** -exponent, truncated."""
    power = apply("pow", x, apply("maximum", exponent, 0))
    if exponent.dtype == torch.uint8:
        return power
    is_odd = apply("eq", apply("and", exponent, 1), 1)
    minus_one, one = literal(-1, x.dtype), literal(1, x.dtype)
    of_minus_one = where(is_odd, minus_one, one)
    of_others = where(apply("eq", x, -1), of_minus_one, 0)
    below = where(apply("eq", x, 1), one, of_others)
    return where(apply("lt", exponent, 0), below, power)


@rule("ldexp.Tensor")
def lower_ldexp(call: OperatorCall, self: object, other: object) -> Lowered:
    """self * 2 ** other."""
    return elementwise(call, lambda x, y: apply("mul", x, apply("exp2", y)), self, other)
