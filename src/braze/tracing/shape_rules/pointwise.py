"""Elementwise operators: broadcasting, dtype promotion and eager's strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from braze.compat.torch.aten import aten, named_operators
from braze.compat.torch.registered_ops import PYTHON_FUNCTIONS, overwritten, with_data
from braze.ir.types import TensorType
from braze.tracing.shape_rules.meta_fallback import explicit_device
from braze.tracing.shape_rules.registry import RULES, rule
from braze.tracing.shape_rules.strides import (
    Operand,
    contiguous,
    pointwise_layout,
    preserved_stride,
    stride_in_format,
    tensor_type,
)
from braze.tracing.shape_rules.type_promotion import common_device, floating, promoted, real_of

if TYPE_CHECKING:
    from braze.shapes.expr import Expr

_NUMBER = ((), ())


def pointwise(operands: tuple[Any, ...], dtype: torch.dtype, kept: int = 0) -> TensorType:
    """The result of a pointwise kernel on tensors and numbers, in the kernel's operand order. kept:
    how many operands, of the first, stay of their dtype."""
    first = operands[0]
    if len(operands) == 1:
        shape, stride = pointwise_layout((first.shape, first.stride))
        return tensor_type(dtype, shape, stride, first.device)
    layouts = [(o.shape, o.stride) if type(o) is TensorType else _NUMBER for o in operands]
    if any(type(o) is TensorType and _is_expanded(o) for o in operands[kept:]):
        layouts[kept:] = _converted(operands[kept:], dtype, layouts[kept:])
    shape, stride = pointwise_layout(*layouts)
    return tensor_type(dtype, shape, stride, common_device(operands))


def _is_expanded(operand: TensorType) -> bool:
    return any(type(step) is int and step == 0 for step in operand.stride)


def _converted(
    operands: tuple[object, ...],
    dtype: torch.dtype,
    layouts: list[tuple[tuple[int | Expr, ...], tuple[int | Expr, ...]]],
) -> list[tuple[Any, Any]]:
    """Layouts in a kernel for CPUs, which converts operands of another dtype than the common one
    first: an expanded one is dense from then on, and has an order of dimensions."""
    tensors = [o for o in operands if type(o) is TensorType]
    if any(o.device.type != "cpu" for o in tensors):
        return layouts
    common = promoted(operands) if dtype is torch.bool else dtype
    return [
        (o.shape, preserved_stride(o.shape, o.stride))
        if type(o) is TensorType and o.dtype is not common
        else layout
        for o, layout in zip(operands, layouts)
    ]


def _overloads(packets: str) -> list[object]:
    return list(named_operators(packets).values())


# --- one tensor -------------------------------------------------------------------------------


@rule(
    *_overloads(
        "neg relu sign sgn floor ceil trunc round round.decimals silu gelu hardtanh hardswish "
        "hardsigmoid leaky_relu elu softplus mish threshold bitwise_not nan_to_num celu "
        "softshrink hardshrink frac"
    )
)
def _unary(x: Operand, *parameters: Any, **options: Any) -> TensorType:
    return pointwise((x,), x.dtype)


@rule(
    *_overloads(
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh "
        "asinh acosh atanh sigmoid erf erfc erfinv reciprocal lgamma digamma sinc i0 "
        "special_ndtri special_log_ndtr special_erfcx special_i0e special_entr"
    ),
    *PYTHON_FUNCTIONS.values(),
)
def _floating_unary(x: Operand) -> TensorType:
    return pointwise((x,), floating(x.dtype))


@rule(*_overloads("logical_not signbit isposinf isneginf isnan isinf"))
def _predicate(x: Operand) -> TensorType:
    return pointwise((x,), torch.bool)


@rule(aten.abs.default)
def _abs(x: Operand) -> TensorType:
    return pointwise((x,), real_of(x.dtype))


@rule(*_overloads("clamp clamp_min clamp_max"))
def _clamp(x: Operand, *limits: Any, **named: Any) -> Any:
    given = [limit for limit in (*limits, *named.values()) if limit is not None]
    return pointwise((x,), promoted((x, *given))) if given else NotImplemented


@rule(aten.pow.Tensor_Scalar)
def _pow_scalar(x: Operand, exponent: object) -> TensorType:
    return pointwise((x,), promoted((x, exponent)))


# --- two tensors, or a tensor and a number ------------------------------------------------------


def _register(names: str, dtype_of: Callable[[tuple[object, ...]], torch.dtype]) -> None:
    def binary(a: object, b: object, *alpha: object, **options: object) -> TensorType:
        dtype = dtype_of((a, b))
        for factor in (*alpha, *options.values()):
            _check_alpha(dtype, factor)
        if type(a) is TensorType and a is b:
            return pointwise((a,), dtype)
        return pointwise((a, b), dtype)

    for op in _overloads(names):
        if op in RULES:
            raise ValueError(f"two shape rules for {op}")
        RULES[op] = binary


def _check_alpha(dtype: torch.dtype, alpha: object) -> None:
    """Raise where ATen's `add` and `sub` refuse the factor of their second operand."""
    kind = type(alpha)
    if kind is bool and dtype is not torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if kind in (float, complex) and not (dtype.is_floating_point or dtype.is_complex):
        message = "For integral input tensors, argument alpha must not be a floating point number."
        raise RuntimeError(message)
    if kind is complex and not dtype.is_complex:
        message = "For non-complex input tensors, argument alpha must not be a complex number."
        raise RuntimeError(message)


def _floating_promoted(operands: tuple[object, ...]) -> torch.dtype:
    return floating(promoted(operands))


def _bool(operands: tuple[object, ...]) -> torch.dtype:
    return torch.bool


def _bits(operands: tuple[object, ...]) -> torch.dtype:
    """Kernels refuse floating dtypes only when they run; the frame must not get so far."""
    dtype = promoted(operands)
    if dtype.is_floating_point or dtype.is_complex:
        raise NotImplementedError(f"bitwise operators are not implemented for {dtype}")
    return dtype


def _difference(operands: tuple[object, ...]) -> torch.dtype:
    if any(getattr(o, "dtype", type(o)) in (torch.bool, bool) for o in operands):
        raise RuntimeError("Subtraction, the `-` operator, with a bool tensor is not supported.")
    return promoted(operands)


_register(
    "add.Tensor mul.Tensor add.Scalar mul.Scalar remainder.Tensor "
    "remainder.Scalar fmod.Tensor fmod.Scalar maximum minimum fmax fmin pow.Tensor_Tensor "
    "floor_divide floor_divide.Scalar hypot gcd lcm",
    promoted,
)
_register(
    "bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_and.Scalar "
    "bitwise_or.Scalar bitwise_xor.Scalar bitwise_left_shift.Tensor bitwise_right_shift.Tensor "
    "__lshift__.Scalar __rshift__.Scalar __lshift__.Tensor __rshift__.Tensor",
    _bits,
)
_register("sub.Tensor sub.Scalar", _difference)
_register(
    "div.Tensor div.Scalar atan2 xlogy.Tensor logaddexp logaddexp2 copysign.Tensor special_xlog1py",
    _floating_promoted,
)
_register(
    " ".join(
        f"{name}.{kind}" for name in "eq ne lt le gt ge".split() for kind in ("Tensor", "Scalar")
    )
    + " logical_and logical_or logical_xor",
    _bool,
)


@rule(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(a: object, b: object, alpha: object = 1) -> TensorType:
    dtype = _difference((a, b))
    _check_alpha(dtype, alpha)
    return pointwise((b, a), dtype)


@rule(aten.pow.Scalar)
def _scalar_pow(a: object, b: Operand) -> TensorType:
    return contiguous(promoted((a, b)), b.shape, b.device)


@rule(aten.ldexp.Tensor)
def _ldexp(x: Operand, exponent: Operand) -> TensorType:
    """A product with a power of two, which lies row by row."""
    factor = _scalar_pow(2.0, exponent)
    return pointwise((x, factor), promoted((x, factor)))


@rule(aten.heaviside.default)
def _heaviside(x: Operand, values: Operand) -> object:
    if x.dtype is not values.dtype or x.dtype.is_complex:
        return NotImplemented
    return pointwise((x, values), x.dtype)


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(a: object, b: object, *, rounding_mode: str | None = None) -> TensorType:
    dtype = promoted((a, b))
    return pointwise((a, b), floating(dtype) if rounding_mode is None else dtype)


@rule(
    *_overloads(
        "sigmoid_backward tanh_backward silu_backward gelu_backward hardswish_backward "
        "hardsigmoid_backward mish_backward hardtanh_backward elu_backward softplus_backward"
    )
)
def _gradient_first(gradient: Operand, x: Operand, *rest: Any, **options: Any) -> TensorType:
    return pointwise((gradient, x), promoted((gradient, x)))


@rule(*_overloads("threshold_backward leaky_relu_backward"))
def _gradient_second(gradient: Operand, x: Operand, *rest: Any) -> TensorType:
    return pointwise((x, gradient), promoted((gradient, x)))


# --- three tensors --------------------------------------------------------------------------------


@rule(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def _where(condition: Operand, a: object, b: object) -> object:
    if type(a) is not TensorType or type(b) is not TensorType:
        return NotImplemented
    return pointwise((condition, a, b), promoted((a, b)), kept=1)


@rule(aten.addcmul.default, aten.addcdiv.default)
def _addc(x: Operand, a: Operand, b: Operand, *, value: object = 1) -> TensorType:
    return pointwise((x, a, b), promoted((x, a, b)))


@rule(aten.lerp.Scalar, aten.lerp.Tensor)
def _lerp(a: Operand, b: Operand, weight: object) -> TensorType:
    operands = (a, b, weight) if type(weight) is TensorType else (a, b)
    return pointwise(operands, a.dtype)


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(x: Operand, mask: Operand, value: object) -> TensorType:
    shape, _ = pointwise_layout((x.shape, x.stride), (mask.shape, mask.stride))
    return contiguous(x.dtype, shape, common_device((x, mask)))


# --- copies and fills -----------------------------------------------------------------------------


@rule(aten.clone.default)
def _clone(x: Operand, *, memory_format: torch.memory_format | None = None) -> Any:
    stride = stride_in_format(x.shape, x.stride, memory_format)
    return NotImplemented if stride is None else tensor_type(x.dtype, x.shape, stride, x.device)


@rule(with_data, overwritten)
def _with_data(history: Operand, data: Operand) -> TensorType:
    made: TensorType = _clone(data)
    return made


@rule(aten.fill.Scalar, aten.fill.Tensor, aten.zero.default)
def _fill(x: Operand, *value: object) -> TensorType:
    stride = stride_in_format(x.shape, x.stride, None)
    return tensor_type(x.dtype, x.shape, stride, x.device)


@rule(
    aten._to_copy.default,
    aten.empty_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.rand_like.default,
    aten.randn_like.default,
)
def _like(
    x: Operand,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: object = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> object:
    stride = stride_in_format(x.shape, x.stride, memory_format)
    if stride is None or layout not in (None, torch.strided):
        return NotImplemented
    where = x.device if device is None else explicit_device(device)
    return tensor_type(dtype or x.dtype, x.shape, stride, where)


@rule(aten.full_like.default)
def _full_like(x: Operand, value: object, **options: Any) -> object:
    return _like(x, **options)
