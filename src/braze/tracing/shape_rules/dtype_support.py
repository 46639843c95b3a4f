"""Dtypes that an operator's kernel rejects although its meta kernel accepts them.

Nobody but the kernel checks them. A graph would raise where the operator runs, or not at all where
its result is not used; the frame must not get so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from braze.compat.torch.aten import aten, named_operators
from braze.compat.torch.versions import LACKED_DTYPES
from braze.ir.types import MASKS, TensorType
from braze.tracing.shape_rules.strides import Operand
from braze.tracing.shape_rules.type_promotion import promoted

_BOOL = frozenset({torch.bool})
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_WHOLE = _INTEGERS | _BOOL
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

# What the kernels for CPUs lack.
_LACKS: tuple[tuple[frozenset[torch.dtype], str], ...] = (
    (
        _WHOLE,
        "celu bernoulli softplus gelu elu hardshrink hardsigmoid hardswish leaky_relu _softmax "
        "_log_softmax log_sigmoid_forward mish silu softshrink frac var.correction std.correction "
        "var_mean.correction std_mean.correction mse_loss smooth_l1_loss huber_loss glu "
        "lerp.Scalar lerp.Tensor addcdiv logcumsumexp nll_loss_forward rand_like randn_like "
        "normal_functional uniform poisson exponential multinomial",
    ),
    (
        _BOOL,
        "abs neg ceil floor round trunc relu hardtanh argmax argmin median mm addmm bmm baddbmm "
        "dot mv addmv topk trace threshold addcmul",
    ),
    (_FLOATS, "bitwise_not"),
)
# Their kernels are chosen by the dtype that all operands have together.
_PROMOTING = frozenset(named_operators("addcmul addcdiv mse_loss smooth_l1_loss").values())
# Of numbers that have an order; not of complex ones, whichever operand it is.
_REAL_ONLY = (
    "_log_softmax _softmax amax amin argmax argmin atan2 bernoulli bernoulli.p bitwise_not ceil "
    "celu clamp clamp_max clamp_min copysign.Tensor digamma elu erf erfc erfinv floor "
    "floor_divide.Scalar floor_divide fmax fmin fmod.Scalar fmod.Tensor frac gcd ge.Scalar "
    "ge.Tensor gelu gt.Scalar gt.Tensor hardshrink hardsigmoid hardswish hardtanh huber_loss hypot "
    "i0 isneginf isposinf lcm le.Scalar le.Tensor leaky_relu lgamma logaddexp2 lt.Scalar lt.Tensor "
    "max max.dim maximum min min.dim minimum mish mse_loss relu remainder.Scalar remainder.Tensor "
    "round sign signbit smooth_l1_loss softplus softshrink special_entr special_erfcx special_i0e "
    "special_log_ndtr special_ndtri special_xlog1py threshold topk trunc xlogy.Tensor"
)


def _rows() -> Iterator[tuple[object, frozenset[torch.dtype]]]:
    for dtypes, names in _LACKS:
        for name, operator in named_operators(names).items():
            yield operator, dtypes | LACKED_DTYPES.get(name, frozenset())


_REFUSED = dict(_rows())
_ORDERED = frozenset(named_operators(_REAL_ONLY).values())

# These look at the dtype themselves, before a kernel is chosen by it.
_CHECKED = frozenset({aten.exponential.default, aten.multinomial.default})
# Where the parameters of a normalisation are among its arguments.
_PARAMETERS: dict[Any, slice] = {
    aten.native_layer_norm.default: slice(2, 4),
    aten.native_group_norm.default: slice(1, 3),
    aten._native_batch_norm_legit.default: slice(1, 5),
    aten._native_batch_norm_legit.no_stats: slice(1, 3),
    aten._native_batch_norm_legit_functional.default: slice(1, 5),
    aten._native_batch_norm_legit_no_training.default: slice(1, 5),
}
_HALVES = frozenset({torch.float16, torch.bfloat16})
_POWER = aten.pow.Tensor_Scalar
_INDEX_PUT = aten.index_put.default


# Of each operator that is looked at: whether it is of ordered numbers, the dtypes that its kernel
# lacks, and where its parameters are.
_CHECKS = {
    op: (op in _ORDERED, _REFUSED.get(op), _PARAMETERS.get(op))
    for op in (*_ORDERED, *_REFUSED, *_PARAMETERS, _POWER, _INDEX_PUT)
}


def check_dtypes(op: object, args: Sequence[Any], kwargs: dict[str, object]) -> None:
    """Raise as the operator's kernel does for a dtype that it lacks."""
    found = _CHECKS.get(op)
    if found is None:
        return
    is_ordered, refused, parameters = found
    if is_ordered:
        for argument in args:
            if type(argument) is TensorType and argument.dtype.is_complex:
                raise NotImplementedError(f"{op} is not implemented for {argument.dtype}")
    if refused is not None and not isinstance(kwargs.get("dtype"), torch.dtype):
        _check_kernel(op, args, refused)
    elif parameters is not None:
        _check_parameters(args[0], args[parameters])
    elif op is _POWER and type(args[1]) is int and args[1] < 0 and args[0].dtype in _WHOLE:
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    elif op is _INDEX_PUT:
        _check_values(*args[:3])


def _check_kernel(op: object, args: Sequence[object], refused: frozenset[torch.dtype]) -> None:
    first = args[0]
    if type(first) is not TensorType:
        return
    dtype = promoted(tuple(args[: _operands(op)])) if op in _PROMOTING else first.dtype
    # Of a tensor without elements no kernel is asked.
    if dtype in refused and first.device.type == "cpu" and 0 not in first.shape:
        error = RuntimeError if op in _CHECKED else NotImplementedError
        raise error(f"{op} is not implemented for {dtype}")


def _operands(op: Any) -> int:
    """How many of the operator's first arguments are tensors."""
    return sum(str(argument.type) == "Tensor" for argument in op._schema.arguments)


def _check_parameters(image: Operand, parameters: Sequence[object]) -> None:
    """The kernels for CPUs take parameters in the image's dtype, or float32 ones beside halves."""
    found = {parameter.dtype for parameter in parameters if type(parameter) is TensorType}
    if found <= {image.dtype} or image.device.type != "cpu" or 0 in image.shape:
        return
    if image.dtype not in _HALVES or found != {torch.float32}:
        raise RuntimeError(f"mixed dtype (CPU): {image.dtype} with parameters of {found}")


def _check_values(x: Operand, indices: Sequence[object], values: Operand) -> None:
    """What is written has the dtype of what it is written to; one number under a mask may have
    another."""
    is_fill = all(size == 1 for size in values.shape) and any(
        type(index) is TensorType and index.dtype in MASKS for index in indices
    )
    if x.dtype is not values.dtype and not is_fill:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{x.dtype} for the destination and {values.dtype} for the source."
        )
