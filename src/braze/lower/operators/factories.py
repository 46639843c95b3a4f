"""Operators that make values from numbers and positions: folded into whoever reads them."""

from __future__ import annotations

from typing import Any

import torch

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Scalar
from braze.ir.kernels.scalars import apply, cast, compute_dtype, index, literal, stored_number
from braze.lower.coordinates import Coordinates, as_scalar, minus
from braze.lower.formulas import NUMBERS, where
from braze.lower.lowering import OperatorCall
from braze.lower.rules import Folded, Lowered, add_rule, rule
from braze.shapes.expr import Expr


def _constant(call: OperatorCall, value: object) -> Lowered:
    dtype = call.output().dtype
    if isinstance(value, NUMBERS):
        scalar = cast(stored_number(value, dtype), dtype)
        return Folded(lambda at: scalar)
    if isinstance(value, Value):
        return lambda at: call.read(value, ())
    return None


def _register_constants() -> None:
    for name, value in (("zeros", 0), ("ones", 1), ("empty", 0)):
        forms = (
            f"{name}_like",
            f"new_{name}",
            f"{name}.memory_format" if name == "empty" else name,
        )
        for form in forms:
            add_rule(form, lambda call, *_, value=value, **__: _constant(call, value))
    for form in ("empty_strided", "new_empty_strided", "_efficientzerotensor"):
        add_rule(form, lambda call, *_, **__: _constant(call, 0))
    for form in ("full_like", "fill.Scalar", "fill.Tensor", "full"):
        add_rule(
            form, lambda call, _, fill_value, **__: _constant(call, fill_value), takes_numbers=True
        )


_register_constants()


@rule("new_full", takes_numbers=True)
def lower_new_full(
    call: OperatorCall, self: Value, size: object, fill_value: object, **_: object
) -> Lowered:
    return _constant(call, fill_value)


@rule("scalar_tensor", takes_numbers=True)
def lower_scalar_tensor(call: OperatorCall, s: object, **_: object) -> Lowered:
    return _constant(call, s)


@rule("arange")
def lower_arange(call: OperatorCall, end: object, **_: object) -> Lowered:
    return lower_arange_step(call, 0, end)


@rule("arange.start")
def lower_arange_start(call: OperatorCall, start: object, end: object, **_: object) -> Lowered:
    return lower_arange_step(call, start, end)


@rule("arange.start_step")
def lower_arange_step(
    call: OperatorCall, start: Any, end: object, step: Any = 1, **_: object
) -> Lowered:
    """start + step * position, computed in the accumulation type: float64 for floats."""
    if any(isinstance(number, Value) for number in (start, end, step)):
        return None
    dtype = call.output().dtype
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    if wide == torch.int64:
        start, step = (n if isinstance(n, Expr) else int(n) for n in (start, step))

    def body(at: Coordinates) -> Scalar:
        scaled = apply("mul", cast(as_scalar(at[0]), wide), step)
        total = scaled if start == 0 else apply("add", scaled, start)
        return cast(total, dtype)

    return Folded(body)


@rule("linspace")
def lower_linspace(call: OperatorCall, start: Any, end: Any, steps: Any, **_: object) -> Lowered:
    """From both ends to the middle, as ATen does it."""
    dtype = call.output().dtype
    if not all(isinstance(n, (int, float)) for n in (start, end, steps)):
        return None
    if not dtype.is_floating_point:
        return None
    wide = compute_dtype(dtype)
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    if wide == torch.float32:
        single = torch.tensor([start, end], dtype=wide, device="cpu")
        step = float((single[1] - single[0]) / (steps - 1)) if steps > 1 else 0.0

    def body(at: Coordinates) -> Scalar:
        place = as_scalar(at[0])
        up = apply("add", apply("mul", cast(place, wide), step), float(start))
        back = cast(as_scalar(minus(steps - 1, at[0])), wide)
        down = apply("sub", literal(float(end), wide), apply("mul", back, step))
        if steps == 1:
            return cast(up, dtype)
        return cast(where(apply("lt", place, steps // 2), up, down), dtype)

    return Folded(body)


def _eye(call: OperatorCall, *_: object, **__: object) -> Lowered:
    dtype = call.output().dtype
    wide = compute_dtype(dtype)

    def body(at: Coordinates) -> Scalar:
        same = apply("eq", as_scalar(at[0]), as_scalar(at[1]))
        return cast(where(same, literal(1, wide), literal(0, wide)), dtype)

    return Folded(body)


add_rule("eye", _eye)
add_rule("eye.m", _eye)


def _triangle(op: str) -> Any:
    def lower(call: OperatorCall, self: Value, diagonal: int = 0) -> Lowered:
        dtype = call.output().dtype

        def body(at: Coordinates) -> Scalar:
            gap = as_scalar(minus(at[-1], at[-2]))
            kept = call.read_as(self, at, dtype)
            return where(apply(op, gap, index(diagonal)), kept, literal(0, kept.dtype))

        return body

    return lower


add_rule("tril", _triangle("le"))
add_rule("triu", _triangle("ge"))
