"""Scalar formulas that several rules share: activations and their numerically safe forms."""

from __future__ import annotations

import math

import torch

from braze.ir.kernels.loops import Scalar
from braze.ir.kernels.scalars import apply, literal
from braze.shapes.expr import Expr

NUMBERS = (bool, int, float, Expr)
SQRT_HALF = math.sqrt(0.5)
GELU_BETA = math.sqrt(2.0 / math.pi)
GELU_KAPPA = 0.044715


def where(condition: Scalar, chosen: Scalar | float, other: Scalar | float) -> Scalar:
    """`chosen` where the condition holds, else `other`; numbers take the other side's dtype."""
    typed = chosen if not isinstance(chosen, NUMBERS) else other
    assert not isinstance(typed, NUMBERS)
    chosen = literal(chosen, typed.dtype) if isinstance(chosen, NUMBERS) else chosen
    other = literal(other, typed.dtype) if isinstance(other, NUMBERS) else other
    return apply("where", condition, chosen, other)


def less(a: Scalar, b: Scalar | float) -> Scalar:
    """a < b."""
    return apply("lt", a, b)


def greater(a: Scalar, b: Scalar | float) -> Scalar:
    """a > b."""
    return apply("gt", a, b)


def divide(a: Scalar | float, b: Scalar | float) -> Scalar:
    """a / b of floats."""
    return apply("truediv", a, b)


def square(x: Scalar) -> Scalar:
    """x * x."""
    return apply("mul", x, x)


def clamped(x: Scalar, low: Scalar | float | None, high: Scalar | float | None) -> Scalar:
    """x kept in [low, high]; NaN stays NaN; `high` wins where the bounds cross. A zero keeps its
    sign where a bound is zero: of two that are equal the second operand is the result."""
    if low is not None:
        x = apply("maximum", low, x)
    return x if high is None else apply("minimum", high, x)


def sigmoid(x: Scalar) -> Scalar:
    """1 / (1 + exp(-x))."""
    return divide(1.0, apply("add", apply("exp", apply("neg", x)), 1.0))


def silu(x: Scalar) -> Scalar:
    """x * sigmoid(x)."""
    return divide(x, apply("add", apply("exp", apply("neg", x)), 1.0))


def gelu(x: Scalar, approximate: str) -> Scalar:
    """Gaussian error linear unit, exact or by tanh."""
    half = apply("mul", x, 0.5)
    if approximate == "none":
        return apply("mul", half, apply("add", apply("erf", apply("mul", x, SQRT_HALF)), 1.0))
    return apply("mul", half, apply("add", apply("tanh", gelu_inner(x)), 1.0))


def gelu_inner(x: Scalar) -> Scalar:
    """The argument of tanh in the approximate form."""
    cubic = apply("mul", apply("mul", square(x), x), GELU_KAPPA)
    return apply("mul", apply("add", x, cubic), GELU_BETA)


def softplus(x: Scalar, beta: float, threshold: float) -> Scalar:
    """log(1 + exp(beta * x)) / beta, linear above the threshold."""
    scaled = apply("mul", x, beta)
    soft = divide(apply("log1p", apply("exp", scaled)), beta)
    return where(greater(scaled, threshold), x, soft)


def mish(x: Scalar) -> Scalar:
    """x * tanh(log(1 + exp(x)))."""
    return apply("mul", x, apply("tanh", apply("log1p", apply("exp", x))))


def elu(x: Scalar, alpha: float, scale: float, input_scale: float) -> Scalar:
    """Exponential linear unit."""
    below = apply("mul", apply("expm1", apply("mul", x, input_scale)), alpha * scale)
    return where(apply("lt", x, 0.0), below, apply("mul", x, scale))


def log_add(a: Scalar, b: Scalar, exponential: str, logarithm: str) -> Scalar:
    """log(exp(a) + exp(b)), infinities included."""
    high, gap = apply("maximum", a, b), apply("abs", apply("sub", a, b))
    small = apply(exponential, apply("neg", gap))
    rest = (
        apply("log1p", small)
        if logarithm == "log1p"
        else apply(logarithm, apply("add", small, 1.0))
    )
    same_infinity = apply("and", apply("isinf", a), apply("eq", a, b))
    return where(same_infinity, a, apply("add", high, rest))


def times_log(x: Scalar, y: Scalar, logarithm: str) -> Scalar:
    """x * log(y), zero where x is zero, NaN where y is."""
    product = apply("mul", x, apply(logarithm, y))
    zero = where(apply("eq", x, 0.0), 0.0, product)
    return where(apply("isnan", y), math.nan, zero)


def entropy(x: Scalar) -> Scalar:
    """-x * log(x); 0 at 0; -inf below."""
    inner = where(apply("eq", x, 0.0), 0.0, literal(-math.inf, x.dtype))
    positive = apply("mul", apply("neg", x), apply("log", x))
    return where(apply("isnan", x), x, where(greater(x, 0.0), positive, inner))


def is_infinite(x: Scalar, sign: float) -> Scalar:
    """Whether x is the infinity of the sign."""
    if not x.dtype.is_floating_point:
        return literal(False, torch.bool)
    return apply("eq", x, sign * math.inf)


def least_common_multiple(x: Scalar, y: Scalar) -> Scalar:
    """Of two integers; 0 where both are."""
    divisor = apply("gcd", x, y)
    is_zero = apply("eq", divisor, 0)
    part = apply("truncdiv", x, where(is_zero, 1, divisor))
    if x.dtype in (torch.int8, torch.int16):
        # C++ multiplies these as int: eager takes the magnitude first, and wraps it then.
        return where(is_zero, 0, apply("mul", apply("abs", part), apply("abs", y)))
    return where(is_zero, 0, apply("abs", apply("mul", part, y)))
