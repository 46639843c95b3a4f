"""Operators that compute one element from the elements at the same place of their operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Scalar
from braze.ir.kernels.scalars import apply, cast, compute_dtype, literal, stored_number
from braze.lower import formulas
from braze.lower.coordinates import Coordinates
from braze.lower.dtypes import result_dtype
from braze.lower.formulas import divide, where
from braze.lower.lowering import OperatorCall
from braze.lower.rules import DONE, Body, Folded, Lowered, View, add_rule, rule


def elementwise(
    call: OperatorCall,
    formula: Callable[..., Scalar],
    *operands: Any,
    dtype: torch.dtype | None = None,
    rounds_numbers: bool = False,
) -> Body:
    """A body that applies the formula to operands broadcast and promoted to `dtype` (by default
    that of the first result). rounds_numbers: numbers among them are what a tensor holds."""
    promoted = dtype or call.output().dtype

    def body(at: Coordinates) -> Scalar:
        read = (call.read_as(operand, at, promoted, rounds_numbers) for operand in operands)
        return formula(*read)

    return body


# --- one operand -----------------------------------------------------------------------------

# Operators that are one scalar operator on the result's dtype: ATen name -> SCALAR_OPS name.
_SAME_NAME = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf erfc erfinv lgamma digamma floor ceil trunc round neg abs"
)
_SPECIAL = "i0e i1 i1e ndtri log_ndtr erfcx bessel_j0 bessel_j1 bessel_y0 bessel_y1"


def _bessel_quotient(x: Scalar) -> Scalar:
    """sin(x) / x, by its series near zero."""
    y = formulas.square(x)
    series = literal(-1.0 / 39916800, x.dtype)
    for term in (1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1.0):
        series = apply("add", apply("mul", series, y), term)
    far = where(apply("isinf", x), 0.0, divide(apply("sin", x), x))
    return where(apply("lt", apply("abs", x), 0.5), series, far)


def _angle(x: Scalar) -> Scalar:
    return where(apply("isnan", x), x, where(apply("lt", x, 0.0), math.pi, literal(0, x.dtype)))


_UNARY: dict[str, Callable[[Scalar], Scalar]] = {
    "reciprocal": lambda x: divide(1.0, x),
    "sigmoid": formulas.sigmoid,
    "silu": formulas.silu,
    "mish": formulas.mish,
    "hardsigmoid": lambda x: divide(formulas.clamped(apply("add", x, 3.0), 0.0, 6.0), 6.0),
    "hardswish": lambda x: divide(
        apply("mul", x, formulas.clamped(apply("add", x, 3.0), 0.0, 6.0)), 6.0
    ),
    "frac": lambda x: apply("sub", x, apply("trunc", x)),
    "deg2rad": lambda x: apply("mul", x, math.pi / 180.0),
    "rad2deg": lambda x: apply("mul", x, 180.0 / math.pi),
    "special_entr": formulas.entropy,
    "square": formulas.square,
    "angle": _angle,
    "special_spherical_bessel_j0": _bessel_quotient,
    "special_modified_bessel_i0": lambda x: apply("i0", x),
    "special_modified_bessel_i1": lambda x: apply("i1", x),
    "special_modified_bessel_k0": lambda x: apply("bessel_k0", x),
    "special_modified_bessel_k1": lambda x: apply("bessel_k1", x),
    "special_scaled_modified_bessel_k0": lambda x: apply("bessel_k0e", x),
    "special_scaled_modified_bessel_k1": lambda x: apply("bessel_k1e", x),
    "sign": lambda x: x if x.dtype == torch.bool else apply("sign", x),
    "positive": lambda x: x,
    "relu": lambda x: formulas.clamped(x, 0, None),
    "bitwise_not": lambda x: apply("not", x),
    "lift_fresh_copy": lambda x: x,
    "alias_copy": lambda x: x,
    "detach_copy": lambda x: x,
}

# Formulas that keep integers as they are.
_IDENTITY_ON_INTEGERS = {"floor", "ceil", "trunc", "round"}


def _register_unary() -> None:
    def unary(formula: Callable[[Scalar], Scalar]) -> Any:
        return lambda call, self: elementwise(call, formula, self)

    def named(op: str) -> Callable[[Scalar], Scalar]:
        if op in _IDENTITY_ON_INTEGERS:
            return lambda x: apply(op, x) if x.dtype.is_floating_point else x
        if op == "abs":
            return lambda x: x if x.dtype == torch.bool else apply("abs", x)
        return lambda x: apply(op, x)

    for name in _SAME_NAME.split():
        add_rule(name, unary(named(name)))
    add_rule("i0", unary(named("i0")))
    add_rule("sgn", unary(_UNARY["sign"]))
    for name in _SPECIAL.split():
        add_rule(f"special_{name}", unary(named(name)))
    for name, formula in _UNARY.items():
        add_rule(name, unary(formula))


_register_unary()


def _tests() -> dict[str, Callable[[Scalar], Scalar]]:
    def if_float(op: str) -> Callable[[Scalar], Scalar]:
        return lambda x: apply(op, x) if x.dtype.is_floating_point else literal(False, torch.bool)

    return {
        "isnan": if_float("isnan"),
        "isinf": if_float("isinf"),
        "isposinf": lambda x: formulas.is_infinite(x, 1.0),
        "isneginf": lambda x: formulas.is_infinite(x, -1.0),
        "logical_not": lambda x: apply("eq", x, 0),
        "signbit": lambda x: (
            apply("signbit", x)
            if x.dtype.is_floating_point
            else literal(False, torch.bool)
            if x.dtype == torch.bool
            else apply("lt", x, 0)
        ),
    }


def _register_tests() -> None:
    def test(formula: Callable[[Scalar], Scalar]) -> Any:
        return lambda call, self: elementwise(call, formula, self, dtype=call.dtype_of(self))

    for name, formula in _tests().items():
        add_rule(name, test(formula))


_register_tests()


@rule("round.decimals")
def lower_round(call: OperatorCall, self: Value, *, decimals: int) -> Lowered:
    """Round to a number of decimals, as ATen does: scale, round to even, scale back."""
    if not call.output().dtype.is_floating_point:
        return None
    scale = 10.0 ** abs(decimals)
    first, second = ("mul", "truediv") if decimals >= 0 else ("truediv", "mul")
    return elementwise(
        call, lambda x: apply(second, apply("round", apply(first, x, scale)), scale), self
    )


@rule("polygamma")
def lower_polygamma(call: OperatorCall, n: int, self: Value) -> Lowered:
    """Derivatives of digamma; beyond the first by the zeta function (DLMF 5.15.1, 25.11.12)."""
    if n < 2:
        return elementwise(call, lambda x: apply(("digamma", "trigamma")[n], x), self)
    factor = (1.0 if n % 2 else -1.0) * math.exp(math.lgamma(n + 1))

    def formula(x: Scalar) -> Scalar:
        return apply("mul", apply("zeta", literal(n + 1, x.dtype), x), factor)

    return elementwise(call, formula, self)


@rule("frexp.Tensor")
def lower_frexp(call: OperatorCall, self: Value) -> Lowered:
    """x = mantissa * 2 ** exponent, the mantissa's magnitude in [1/2, 1) or zero."""
    dtype = call.dtype_of(self)
    for position, op in enumerate(("frexp_mantissa", "frexp_exponent")):
        if call.is_used(position):
            call.result(
                position, elementwise(call, lambda x, op=op: apply(op, x), self, dtype=dtype)
            )
    return DONE


@rule("mvlgamma")
def lower_mvlgamma(call: OperatorCall, self: Value, p: int) -> Lowered:
    """The logarithm of the multivariate gamma function: a sum of p terms."""

    def formula(x: Scalar) -> Scalar:
        total = literal(p * (p - 1) / 4.0 * math.log(math.pi), x.dtype)
        for n in range(p):
            total = apply("add", total, apply("lgamma", apply("sub", x, n / 2.0)))
        return total

    return elementwise(call, formula, self)


@rule("gelu")
def lower_gelu(call: OperatorCall, self: Value, *, approximate: str = "none") -> Lowered:
    return elementwise(call, lambda x: formulas.gelu(x, approximate), self)


@rule("softplus")
def lower_softplus(
    call: OperatorCall, self: Value, beta: float = 1, threshold: float = 20
) -> Lowered:
    return elementwise(call, lambda x: formulas.softplus(x, beta, threshold), self)


@rule("elu")
def lower_elu(
    call: OperatorCall, self: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Lowered:
    return elementwise(call, lambda x: formulas.elu(x, alpha, scale, input_scale), self)


@rule("celu")
def lower_celu(call: OperatorCall, self: Value, alpha: float = 1.0) -> Lowered:
    return elementwise(call, lambda x: formulas.elu(x, alpha, 1.0, 1.0 / alpha), self)


@rule("selu")
def lower_selu(call: OperatorCall, self: Value) -> Lowered:
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return elementwise(call, lambda x: formulas.elu(x, alpha, scale, 1.0), self)


@rule("leaky_relu", takes_numbers=True)
def lower_leaky_relu(call: OperatorCall, self: Value, negative_slope: float = 0.01) -> Lowered:
    return elementwise(
        call,
        lambda x, slope: where(apply("gt", x, 0), x, apply("mul", x, slope)),
        self,
        negative_slope,
    )


@rule("_prelu_kernel")
def lower_prelu(call: OperatorCall, self: Value, weight: Value) -> Lowered:
    return elementwise(
        call, lambda x, w: where(apply("gt", x, 0.0), x, apply("mul", w, x)), self, weight
    )


@rule("hardtanh")
def lower_hardtanh(
    call: OperatorCall, self: Value, min_val: float = -1, max_val: float = 1
) -> Lowered:
    return elementwise(call, lambda x: formulas.clamped(x, min_val, max_val), self)


@rule("relu6")
def lower_relu6(call: OperatorCall, self: Value) -> Lowered:
    return elementwise(call, lambda x: formulas.clamped(x, 0, 6), self)


@rule("threshold", takes_numbers=True)
def lower_threshold(call: OperatorCall, self: Value, threshold: float, value: float) -> Lowered:
    return elementwise(
        call, lambda x, least, other: where(apply("le", x, least), other, x), self, threshold, value
    )


@rule("softshrink")
def lower_softshrink(call: OperatorCall, self: Value, lambd: float = 0.5) -> Lowered:
    def formula(x: Scalar) -> Scalar:
        inside = where(apply("lt", x, -lambd), apply("add", x, lambd), apply("mul", x, 0.0))
        return where(apply("gt", x, lambd), apply("sub", x, lambd), inside)

    return elementwise(call, formula, self)


@rule("hardshrink")
def lower_hardshrink(call: OperatorCall, self: Value, lambd: float = 0.5) -> Lowered:
    def formula(x: Scalar, least: Scalar, most: Scalar) -> Scalar:
        inside = apply("and", apply("ge", x, least), apply("le", x, most))
        return where(inside, 0.0, x)

    rounds = call.rounds_numbers
    return elementwise(call, formula, self, -lambd, lambd, rounds_numbers=rounds)


@rule("logit")
def lower_logit(call: OperatorCall, self: Value, eps: float | None = None) -> Lowered:
    def formula(x: Scalar) -> Scalar:
        if eps is None:
            inside = x
        elif eps <= 0.5:
            inside = formulas.clamped(x, eps, 1.0 - eps)
        else:  # the lower bound is asked first
            above = where(apply("gt", x, 1.0 - eps), 1.0 - eps, x)
            inside = where(apply("lt", x, eps), eps, above)
        return apply("log", divide(inside, apply("sub", literal(1.0, x.dtype), inside)))

    return elementwise(call, formula, self)


@rule("sinc")
def lower_sinc(call: OperatorCall, self: Value) -> Lowered:
    def formula(x: Scalar) -> Scalar:
        scaled = apply("mul", x, math.pi)
        return where(apply("eq", x, 0.0), 1.0, divide(apply("sin", scaled), scaled))

    return elementwise(call, formula, self)


@rule("log_sigmoid_forward", exact=False)
def lower_log_sigmoid(call: OperatorCall, self: Value) -> Lowered:
    """The result, and exp(-|x|), which the backward reads."""
    if call.is_used(1) and call.output(1).shape != call.output().shape:
        return None

    def small(x: Scalar) -> Scalar:
        return apply("exp", apply("neg", apply("abs", x)))

    def formula(x: Scalar) -> Scalar:
        return apply("sub", apply("minimum", x, 0.0), apply("log1p", small(x)))

    from_input = elementwise(call, formula, self)
    call.result(0, from_input)
    if call.is_used(1):
        call.result(1, elementwise(call, small, self))
    return DONE


@rule("nan_to_num")
def lower_nan_to_num(
    call: OperatorCall,
    self: Value,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Lowered:
    dtype = call.output().dtype
    if not dtype.is_floating_point:
        return elementwise(call, lambda x: x, self)
    finite = torch.finfo(dtype)
    high = finite.max if posinf is None else posinf
    low = finite.min if neginf is None else neginf

    def formula(x: Scalar) -> Scalar:
        finite_x = where(formulas.is_infinite(x, -1.0), low, x)
        finite_x = where(formulas.is_infinite(x, 1.0), high, finite_x)
        return where(apply("isnan", x), nan or 0.0, finite_x)

    return elementwise(call, formula, self)


# --- conversions and copies ------------------------------------------------------------------


@rule("_to_copy")
def lower_to_copy(call: OperatorCall, self: Value, **_: object) -> Lowered:
    if call.device_of(self) != call.output().device:
        return None
    return lambda at: call.read(self, at)


@rule("_local_scalar_dense")
def lower_number(call: OperatorCall, self: Value) -> Lowered:
    """The number that a tensor holds, in double precision."""
    if call.device_of(self).type != "cpu" or not call.dtype_of(self).is_floating_point:
        return None
    if call.dtype_of(self) == torch.float64:  # a call of ATen reads it where it is: on the CPU
        return View(self, lambda at: ())
    return Folded(lambda at: call.read(self, (), torch.float64))


@rule("clone")
def lower_clone(call: OperatorCall, self: Value, *, memory_format: object = None) -> Lowered:
    return lambda at: call.read(self, at)


@rule("copy")
def lower_copy(call: OperatorCall, self: Value, src: Value, non_blocking: bool = False) -> Lowered:
    if call.device_of(src) != call.output().device:
        return None
    return lambda at: call.read(src, call.broadcast(src, at))


# --- two operands ----------------------------------------------------------------------------


def binary_body(
    call: OperatorCall,
    formula: Callable[[Scalar, Scalar], Scalar],
    self: object,
    other: object,
    dtype: torch.dtype | None = None,
) -> Body:
    """A formula of two operands one of which may be a number, rounded where ATen rounds it."""
    rounds = call.rounds_numbers
    return elementwise(call, formula, self, other, dtype=dtype, rounds_numbers=rounds)


def multiplied(
    call: OperatorCall, formula: Callable[[Scalar, Scalar], Scalar], self: Any, other: Any
) -> Body:
    """A product or a quotient, of which ATen's kernels take a number as it is."""
    dtype = call.output().dtype
    return lambda at: formula(call.read_as(self, at, dtype), call.read_factor(other, at, dtype))


def _times_alpha(x: Scalar, alpha: Any, call: OperatorCall) -> Scalar:
    """x * alpha where ATen rounds the number to the dtype of the result on CPUs."""
    if alpha == 1 or isinstance(alpha, Value) or not call.rounds_numbers:
        return scaled(x, alpha, call)
    return apply("mul", x, stored_number(alpha, call.output().dtype))


def scaled(x: Scalar, alpha: Any, call: OperatorCall) -> Scalar:
    """x * alpha, a number or a scalar that the graph computes."""
    if isinstance(alpha, Value):
        return apply("mul", x, cast(call.read(alpha, ()), x.dtype))
    return x if alpha == 1 else apply("mul", x, alpha)


@rule("add.Tensor", "add.Scalar", takes_numbers=True)
def lower_add(call: OperatorCall, self: object, other: object, alpha: object = 1) -> Lowered:
    return binary_body(
        call, lambda x, y: apply("add", x, _times_alpha(y, alpha, call)), self, other
    )


@rule("sub.Tensor", "sub.Scalar", takes_numbers=True)
def lower_sub(call: OperatorCall, self: object, other: object, alpha: object = 1) -> Lowered:
    return binary_body(
        call, lambda x, y: apply("sub", x, _times_alpha(y, alpha, call)), self, other
    )


@rule("rsub.Tensor", "rsub.Scalar", takes_numbers=True)
def lower_rsub(call: OperatorCall, self: object, other: object, alpha: object = 1) -> Lowered:
    return binary_body(
        call, lambda x, y: apply("sub", y, _times_alpha(x, alpha, call)), self, other
    )


@rule("mul.Tensor", "mul.Scalar", takes_numbers=True)
def lower_mul(call: OperatorCall, self: object, other: object) -> Lowered:
    return multiplied(call, lambda x, y: apply("mul", x, y), self, other)


@rule("nextafter")
def lower_nextafter(call: OperatorCall, self: Value, other: Value) -> Lowered:
    """Half types have neighbours of their own, which arithmetic of float32 does not find."""
    if compute_dtype(call.output().dtype) != call.output().dtype:
        return None
    return binary_body(call, lambda x, y: apply("nextafter", x, y), self, other)


@rule("heaviside")
def lower_heaviside(call: OperatorCall, self: Value, other: Value) -> Lowered:
    """ATen takes operands of one dtype only, and its kernel says so."""
    if call.dtype_of(self) != call.dtype_of(other):
        return None

    def formula(x: Scalar, y: Scalar) -> Scalar:
        return where(apply("eq", x, 0), y, where(apply("gt", x, 0), literal(1, y.dtype), 0))

    return elementwise(call, formula, self, other)


_Formula: TypeAlias = Callable[[Scalar, Scalar], Scalar]


def _plain(op: str) -> _Formula:
    return lambda x, y: apply(op, x, y)


def _of_shifted(op: str) -> _Formula:
    """A Chebyshev polynomial on [0, 1]."""
    return lambda x, n: apply(op, apply("sub", apply("mul", x, 2.0), 1.0), n)


def _times_log(logarithm: str) -> _Formula:
    return lambda x, y: formulas.times_log(x, y, logarithm)


def _forms(name: str, forms: str) -> list[str]:
    return [f"{name}.{form}" for form in forms.split()]


_SPECIAL_FORMS = ("", "self_scalar", "other_scalar")
_POLYNOMIALS = """
    chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
    hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p
""".split()
# Operators of ATen that one scalar operator computes.
_ONE_OPERATOR: dict[str, Sequence[str]] = {
    **{name: [name] for name in "maximum minimum atan2 hypot gcd".split()},
    "copysign": _forms("copysign", "Tensor Scalar"),
    "shl": [
        *_forms("bitwise_left_shift", "Tensor Tensor_Scalar"),
        *_forms("__lshift__", "Scalar Tensor"),
    ],
    "shr": [
        *_forms("bitwise_right_shift", "Tensor Tensor_Scalar"),
        *_forms("__rshift__", "Scalar Tensor"),
    ],
    **{
        op: [
            *_forms(f"bitwise_{op}", "Tensor Scalar Scalar_Tensor"),
            *_forms(f"__{op}__", "Tensor Scalar"),
        ]
        for op in ("and", "or", "xor")
    },
    "zeta": [f"special_zeta.{form}".rstrip(".") for form in _SPECIAL_FORMS],
}
_BINARY: dict[str, _Formula] = {
    **{name: _plain(op) for op, names in _ONE_OPERATOR.items() for name in names},
    "fmax": lambda x, y: apply("fmax" if x.dtype.is_floating_point else "maximum", x, y),
    "fmin": lambda x, y: apply("fmin" if x.dtype.is_floating_point else "minimum", x, y),
    "lcm": formulas.least_common_multiple,
    "logaddexp": lambda x, y: formulas.log_add(x, y, "exp", "log1p"),
    "logaddexp2": lambda x, y: formulas.log_add(x, y, "exp2", "log2"),
    **{name: _times_log("log") for name in _forms("xlogy", "Tensor Scalar_Self Scalar_Other")},
    **{f"special_xlog1py.{form}".rstrip("."): _times_log("log1p") for form in _SPECIAL_FORMS},
}
for _name in _POLYNOMIALS:
    _op = _name.replace("_polynomial", "")
    for _form in ("", ".x_scalar", ".n_scalar"):
        _BINARY[f"special_{_name}{_form}"] = _plain(_op)
        if "chebyshev" in _name:
            _BINARY[f"special_shifted_{_name}{_form}"] = _of_shifted(_op)


def _register_binary() -> None:
    def binary(formula: Callable[[Scalar, Scalar], Scalar]) -> Any:
        return lambda call, self, other: binary_body(call, formula, self, other)

    def comparison(op: str) -> Any:
        return lambda call, self, other: binary_body(
            call, lambda x, y: apply(op, x, y), self, other, result_dtype(self, other)
        )

    def logical(op: str) -> Any:
        def lower(call: OperatorCall, self: object, other: object) -> Body:
            return lambda at: apply(op, truth(call, self, at), truth(call, other, at))

        return lower

    for name, formula in _BINARY.items():
        add_rule(name, binary(formula), takes_numbers=True)
    for op in ("eq", "ne", "lt", "le", "gt", "ge"):
        for form in ("Tensor", "Scalar"):
            add_rule(f"{op}.{form}", comparison(op), takes_numbers=True)
    for op in ("and", "or", "xor"):
        add_rule(f"logical_{op}", logical(op))


def truth(call: OperatorCall, source: Any, at: Coordinates) -> Scalar:
    """Whether the element is not zero."""
    return call.read(source, call.broadcast(source, at), torch.bool)


_register_binary()
