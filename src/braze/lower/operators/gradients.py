"""The backward formulas that PyTorch's autograd calls as operators of their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Scalar
from braze.ir.kernels.scalars import apply, literal
from braze.lower import formulas
from braze.lower.coordinates import Coordinates, plus
from braze.lower.formulas import divide, where
from braze.lower.lowering import OperatorCall
from braze.lower.operators.pointwise import elementwise
from braze.lower.operators.views import positive
from braze.lower.rules import DONE, Lowered, add_rule, rule


def one_minus(x: Scalar) -> Scalar:
    """1 - x."""
    return apply("sub", literal(1, x.dtype), x)


def product(*factors: Scalar) -> Scalar:
    """The product, left to right."""
    result = factors[0]
    for factor in factors[1:]:
        result = apply("mul", result, factor)
    return result


def _silu(g: Scalar, x: Scalar) -> Scalar:
    s = formulas.sigmoid(x)
    return product(g, s, apply("add", apply("mul", x, one_minus(s)), 1.0))


def _mish(g: Scalar, x: Scalar) -> Scalar:
    s = formulas.sigmoid(x)
    t = apply("tanh", apply("log1p", apply("exp", x)))
    slope = apply("mul", apply("mul", x, s), one_minus(formulas.square(t)))
    return apply("mul", g, apply("add", t, slope))


def _hardswish(g: Scalar, x: Scalar) -> Scalar:
    middle = apply("mul", g, apply("add", divide(x, 3.0), 0.5))
    inside = where(apply("lt", x, 3.0), middle, g)
    return where(apply("le", x, -3.0), 0.0, inside)


def _hardsigmoid(g: Scalar, x: Scalar) -> Scalar:
    inside = apply("and", apply("gt", x, -3.0), apply("lt", x, 3.0))
    return where(inside, apply("mul", g, 1.0 / 6.0), 0.0)


_TWO_OPERANDS: dict[str, Callable[[Scalar, Scalar], Scalar]] = {
    "sigmoid_backward": lambda g, y: product(g, one_minus(y), y),
    "tanh_backward": lambda g, y: apply("mul", g, one_minus(formulas.square(y))),
    "silu_backward": _silu,
    "mish_backward": _mish,
    "hardswish_backward": _hardswish,
    "hardsigmoid_backward": _hardsigmoid,
}


def _register_two_operands() -> None:
    def lowering(formula: Callable[[Scalar, Scalar], Scalar]) -> Any:
        return lambda call, grad, other: elementwise(call, formula, grad, other)

    for name, formula in _TWO_OPERANDS.items():
        add_rule(name, lowering(formula))


_register_two_operands()


@rule("threshold_backward")
def lower_threshold_backward(
    call: OperatorCall, grad_output: Value, self: Value, threshold: float
) -> Lowered:
    return elementwise(call, lambda g, x: where(apply("le", x, threshold), 0, g), grad_output, self)


@rule("hardtanh_backward")
def lower_hardtanh_backward(
    call: OperatorCall, grad_output: Value, self: Value, min_val: float, max_val: float
) -> Lowered:
    def formula(g: Scalar, x: Scalar) -> Scalar:
        outside = apply("or", apply("le", x, min_val), apply("ge", x, max_val))
        return where(outside, 0, g)

    return elementwise(call, formula, grad_output, self)


@rule("leaky_relu_backward")
def lower_leaky_relu_backward(
    call: OperatorCall,
    grad_output: Value,
    self: Value,
    negative_slope: float,
    self_is_result: bool,
) -> Lowered:
    def formula(g: Scalar, x: Scalar) -> Scalar:
        return where(apply("gt", x, 0.0), g, apply("mul", g, negative_slope))

    return elementwise(call, formula, grad_output, self)


@rule("elu_backward")
def lower_elu_backward(
    call: OperatorCall,
    grad_output: Value,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    self_or_result: Value,
) -> Lowered:
    below = alpha * scale

    def formula(g: Scalar, x: Scalar) -> Scalar:
        if is_result:
            slope = apply("mul", apply("add", x, below), input_scale)
        else:
            slope = apply("mul", apply("exp", apply("mul", x, input_scale)), below * input_scale)
        return where(apply("le", x, 0.0), apply("mul", g, slope), apply("mul", g, scale))

    return elementwise(call, formula, grad_output, self_or_result)


@rule("softplus_backward")
def lower_softplus_backward(
    call: OperatorCall, grad_output: Value, self: Value, beta: float, threshold: float
) -> Lowered:
    def formula(g: Scalar, x: Scalar) -> Scalar:
        scaled = apply("mul", x, beta)
        return where(apply("gt", scaled, threshold), g, apply("mul", g, formulas.sigmoid(scaled)))

    return elementwise(call, formula, grad_output, self)


@rule("log_sigmoid_backward")
def lower_log_sigmoid_backward(
    call: OperatorCall, grad_output: Value, self: Value, buffer: Value
) -> Lowered:
    return elementwise(
        call,
        lambda g, x: apply("mul", g, formulas.sigmoid(apply("neg", x))),
        grad_output,
        self,
    )


@rule("gelu_backward")
def lower_gelu_backward(
    call: OperatorCall, grad_output: Value, self: Value, *, approximate: str = "none"
) -> Lowered:
    def exact(g: Scalar, x: Scalar) -> Scalar:
        below = apply("add", apply("erf", apply("mul", x, formulas.SQRT_HALF)), 1.0)
        density = apply("exp", apply("mul", formulas.square(x), -0.5))
        slope = product(x, apply("mul", density, 1.0 / math.sqrt(2.0 * math.pi)))
        return apply("mul", g, apply("add", apply("mul", below, 0.5), slope))

    def by_tanh(g: Scalar, x: Scalar) -> Scalar:
        t = apply("tanh", formulas.gelu_inner(x))
        inner = apply("add", apply("mul", formulas.square(x), 3.0 * formulas.GELU_KAPPA), 1.0)
        slope = product(one_minus(formulas.square(t)), apply("mul", inner, formulas.GELU_BETA))
        right = product(apply("mul", x, 0.5), slope)
        return apply("mul", g, apply("add", apply("mul", apply("add", t, 1.0), 0.5), right))

    return elementwise(call, exact if approximate == "none" else by_tanh, grad_output, self)


@rule("_prelu_kernel_backward", exact=False)
def lower_prelu_backward(
    call: OperatorCall, grad_output: Value, self: Value, weight: Value
) -> Lowered:
    """(gradient of the input, gradient of the weight before it is summed to the weight's shape)."""

    def to_input(g: Scalar, x: Scalar, w: Scalar) -> Scalar:
        return where(apply("gt", x, 0.0), g, apply("mul", w, g))

    def to_weight(g: Scalar, x: Scalar, w: Scalar) -> Scalar:
        return where(apply("gt", x, 0.0), 0.0, apply("mul", x, g))

    for position, formula in enumerate((to_input, to_weight)):
        if call.is_used(position):
            call.result(position, elementwise(call, formula, grad_output, self, weight))
    return DONE


@rule("glu_backward", exact=False)
def lower_glu_backward(call: OperatorCall, grad_output: Value, self: Value, dim: int) -> Lowered:
    """The first half gets g * s, the second g * a * s * (1 - s), where s = sigmoid(gate)."""
    shape = call.shape_of(self)
    dim = positive(dim, len(shape))
    half = call.shape_of(grad_output)[dim]
    dtype = call.output().dtype

    def second(at: Coordinates) -> Coordinates:
        return (*at[:dim], plus(at[dim], half), *at[dim + 1 :])

    def to_value(at: Coordinates) -> Scalar:
        gate = formulas.sigmoid(call.read_as(self, second(at), dtype))
        return apply("mul", call.read_as(grad_output, at, dtype), gate)

    def to_gate(at: Coordinates) -> Scalar:
        gate = formulas.sigmoid(call.read_as(self, second(at), dtype))
        value = product(call.read_as(grad_output, at, dtype), call.read_as(self, at, dtype))
        return product(value, gate, one_minus(gate))

    region = call.shape_of(grad_output)
    call.regions([(region, lambda at: at, to_value), (region, second, to_gate)])
    return DONE


@rule("huber_loss_backward")
def lower_huber_loss_backward(
    call: OperatorCall,
    grad_output: Value,
    self: Value,
    target: Value,
    reduction: int,
    delta: float,
) -> Lowered:
    factor = _mean_factor(call, self, reduction)
    if factor is None:
        return None

    def formula(g: Scalar, x: Scalar, y: Scalar) -> Scalar:
        slope = formulas.clamped(apply("sub", x, y), -delta, delta)
        return product(apply("mul", slope, factor), g)

    return elementwise(call, formula, grad_output, self, target)


@rule("native_dropout_backward")
def lower_dropout_backward(
    call: OperatorCall, grad_output: Value, mask: Value, scale: float
) -> Lowered:
    return elementwise(call, lambda g, m: product(g, apply("mul", m, scale)), grad_output, mask)


def _mean_factor(call: OperatorCall, self: Value, reduction: int) -> float | None:
    """1 / count for a mean, 1 otherwise, None where the count is not known."""
    if reduction != 1:
        return 1.0
    total = 1
    for size in call.shape_of(self):
        if not isinstance(size, int):
            return None
        total *= size
    return 1.0 / total if total else 1.0


@rule("mse_loss_backward")
def lower_mse_loss_backward(
    call: OperatorCall, grad_output: Value, self: Value, target: Value, reduction: int
) -> Lowered:
    factor = _mean_factor(call, self, reduction)
    if factor is None:
        return None

    def formula(g: Scalar, x: Scalar, y: Scalar) -> Scalar:
        return product(apply("mul", apply("sub", x, y), 2.0 * factor), g)

    return elementwise(call, formula, grad_output, self, target)


@rule("smooth_l1_loss_backward")
def lower_smooth_l1_loss_backward(
    call: OperatorCall,
    grad_output: Value,
    self: Value,
    target: Value,
    reduction: int,
    beta: float,
) -> Lowered:
    factor = _mean_factor(call, self, reduction)
    if factor is None:
        return None

    def formula(g: Scalar, x: Scalar, y: Scalar) -> Scalar:
        gap = apply("sub", x, y)
        slope = apply("sign", gap)
        if beta > 0:
            near = apply("lt", apply("abs", gap), beta)
            slope = where(near, divide(gap, beta), slope)
        return product(apply("mul", slope, factor), g)

    return elementwise(call, formula, grad_output, self, target)
