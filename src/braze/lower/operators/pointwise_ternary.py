"""Pointwise operators of three operands: clamps, blends and choices."""

from __future__ import annotations

from typing import Any

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Scalar
from braze.ir.kernels.scalars import apply, literal
from braze.lower import formulas
from braze.lower.coordinates import Coordinates
from braze.lower.formulas import divide, where
from braze.lower.lowering import OperatorCall
from braze.lower.operators.pointwise import elementwise, scaled, truth
from braze.lower.rules import Lowered, add_rule, rule


@rule("clamp", takes_numbers=True)
def lower_clamp(call: OperatorCall, self: Value, min: object = None, max: object = None) -> Lowered:
    bounds = [bound for bound in (min, max) if bound is not None]
    if any(isinstance(bound, complex) for bound in bounds):
        return None

    def formula(x: Scalar, *limits: Scalar) -> Scalar:
        rest = list(limits)
        if any(isinstance(bound, Value) for bound in bounds):
            for op in ("maximum",) * (min is not None) + ("minimum",) * (max is not None):
                x = apply(op, x, rest.pop(0))
            return x
        low = rest.pop(0) if min is not None else None
        return formulas.clamped(x, low, rest.pop(0) if max is not None else None)

    return elementwise(call, formula, self, *bounds, rounds_numbers=True)


add_rule("clamp.Tensor", lower_clamp)


@rule("clamp_min", "clamp_min.Tensor", takes_numbers=True)
def lower_clamp_min(call: OperatorCall, self: Value, min: object) -> Lowered:
    return lower_clamp(call, self, min=min)


@rule("clamp_max", "clamp_max.Tensor", takes_numbers=True)
def lower_clamp_max(call: OperatorCall, self: Value, max: object) -> Lowered:
    return lower_clamp(call, self, max=max)


@rule("addcmul", takes_numbers=True)
def lower_addcmul(
    call: OperatorCall, self: Value, tensor1: Value, tensor2: Value, *, value: object = 1
) -> Lowered:
    def formula(x: Scalar, a: Scalar, b: Scalar) -> Scalar:
        return apply("add", x, apply("mul", scaled(a, value, call), b))

    return elementwise(call, formula, self, tensor1, tensor2)


@rule("addcdiv", takes_numbers=True)
def lower_addcdiv(
    call: OperatorCall, self: Value, tensor1: Value, tensor2: Value, *, value: object = 1
) -> Lowered:
    def formula(x: Scalar, a: Scalar, b: Scalar) -> Scalar:
        return apply("add", x, divide(scaled(a, value, call), b))

    return elementwise(call, formula, self, tensor1, tensor2)


@rule("lerp.Scalar", "lerp.Tensor", takes_numbers=True)
def lower_lerp(call: OperatorCall, self: Value, end: Value, weight: object) -> Lowered:
    def formula(start: Scalar, stop: Scalar, part: Scalar) -> Scalar:
        gap = apply("sub", stop, start)
        near = apply("add", start, apply("mul", part, gap))
        far = apply("sub", stop, apply("mul", gap, apply("sub", literal(1, part.dtype), part)))
        return where(apply("lt", apply("abs", part), 0.5), near, far)

    return elementwise(call, formula, self, end, weight)


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", takes_numbers=True)
def lower_where(call: OperatorCall, condition: Value, self: Any, other: Any) -> Lowered:
    dtype = call.output().dtype

    def body(at: Coordinates) -> Scalar:
        chosen, rest = (call.read_as(source, at, dtype, True) for source in (self, other))
        return apply("where", truth(call, condition, at), chosen, rest)

    return body


@rule("masked_fill.Scalar", "masked_fill.Tensor", takes_numbers=True)
def lower_masked_fill(call: OperatorCall, self: Value, mask: Value, value: object) -> Lowered:
    return lower_where(call, mask, value, self)
