"""NumPy's functions of each element, on tensors: operands are converted to what NumPy says that its
loop takes (`ufunc.resolve_dtypes`), and the result to what the loop gives."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from braze.capture.arrays.fake_array import FakeArray, refusal
from braze.capture.arrays.values import Arrays, computes
from braze.compat.numpy.interface import TENSOR_DTYPES, UFUNC, numpy

_PYTHON_NUMBERS = (int, float, complex)


def operands_of(
    arrays: Arrays, ufunc: Any, args: tuple[object, ...], dtype: object = None
) -> tuple[list[Any], Any]:
    """The operands as tensors, or Python's numbers, of the types of the loop; and the result's."""
    values = [arrays.constant(numpy.array(v)) if type(v) in (list, tuple) else v for v in args]
    kinds = [type(v) if type(v) in _PYTHON_NUMBERS else _dtype_of(v) for v in values]
    given = (*kinds, *[None] * ufunc.nout)
    signature = (*[None] * ufunc.nin, None if dtype is None else numpy.dtype(dtype))
    options = {} if dtype is None else {"signature": signature}
    loop = ufunc.resolve_dtypes(given, **options)
    return [_as(arrays, v, kind) for v, kind in zip(values, loop)], loop[ufunc.nin]


def _dtype_of(value: object) -> object:
    return value.like.dtype if type(value) is FakeArray else numpy.dtype(type(value))


def _as(arrays: Arrays, value: Any, dtype: Any) -> object:
    if dtype not in TENSOR_DTYPES:
        raise refusal(f"computing in {dtype}")
    if type(value) is not FakeArray:
        return dtype.type(value).item()
    return arrays.leaf(torch.Tensor.to, arrays.tensor(value), TENSOR_DTYPES[dtype])


def _with_tensors(arrays: Arrays, values: list[object], dtype: object) -> list[object]:
    """Numbers as tensors of no dimension, too."""
    known: list[Any] = [v.dtype for v in values if isinstance(v, torch.Tensor)]
    return [
        value
        if isinstance(value, torch.Tensor)
        else arrays.full(value, known[0] if known else dtype)
        for value in values
    ]


def computed(
    arrays: Arrays, name: str, values: list[object], dtype: object, function: Callable[..., object]
) -> Any:
    """A function of operands that are converted, its result of the loop's type."""
    if function not in _TAKES_NUMBERS:
        values = _with_tensors(arrays, values, TENSOR_DTYPES.get(dtype))
    found = arrays.leaf(function, *values)
    wanted = TENSOR_DTYPES.get(dtype)
    if wanted is None:
        raise refusal(f"{name} gives {dtype}")
    return found if found.dtype is wanted else arrays.leaf(torch.Tensor.to, found, wanted)


_TAKES_NUMBERS = frozenset(
    getattr(operator, name) for name in "add sub mul truediv lt le eq ne gt ge and_ or_ xor".split()
)
# The loop's operands as tensors -> its result.
_DIRECT: dict[str, Any] = {
    **{
        name: getattr(operator, python)
        for name, python in {
            "add": "add",
            "subtract": "sub",
            "multiply": "mul",
            "divide": "truediv",
            "less": "lt",
            "less_equal": "le",
            "equal": "eq",
            "not_equal": "ne",
            "greater": "gt",
            "greater_equal": "ge",
            "bitwise_and": "and_",
            "bitwise_or": "or_",
            "bitwise_xor": "xor",
        }.items()
    },
    **{
        name: getattr(torch, name)
        for name in (
            "arccos arccosh arcsin arcsinh arctan arctanh arctan2 ceil copysign cos cosh deg2rad "
            "exp exp2 expm1 floor fmax fmin gcd heaviside hypot isfinite isinf isnan lcm log log10 "
            "log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor "
            "maximum minimum negative nextafter rad2deg reciprocal signbit sin sinh sqrt square "
            "tan tanh trunc bitwise_not"
        ).split()
        if hasattr(torch, name)
    },
    "positive": torch.clone,
    "fabs": torch.abs,
    "absolute": torch.abs,
    "rint": torch.round,
    "degrees": torch.rad2deg,
    "radians": torch.deg2rad,
    "conjugate": torch.conj_physical,
    "float_power": torch.pow,
    "invert": torch.bitwise_not,
    "matmul": torch.matmul,
}
# Only of real numbers, or floats: complex ones NumPy treats otherwise.
_NOT_OF_COMPLEX = frozenset("rint sign heaviside maximum minimum fmax fmin reciprocal".split())
_SAME_NAMES = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "asinh": "arcsinh",
    "acosh": "arccosh", "atanh": "arctanh", "abs": "absolute", "conj": "conjugate",
    "mod": "remainder", "pow": "power", "true_divide": "divide",
    "bitwise_invert": "invert", "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
}  # fmt: skip


def _divided(function: Any) -> Callable[..., object]:
    """A division of integers by zero is zero in NumPy, and an error in PyTorch."""

    def divide(left: Any, right: Any) -> object:
        if right.dtype.is_floating_point or right.dtype.is_complex:
            return function(left, right)
        is_zero = right == 0
        found = function(left, torch.where(is_zero, 1, right))
        return torch.where(is_zero, 0, found)

    divide.__name__ = divide.__qualname__ = function.__name__
    return divide


def _sign(value: Any) -> torch.Tensor:
    found = torch.sign(value)
    return torch.where(torch.isnan(value), value, found) if value.is_floating_point() else found


_DIRECT["floor_divide"] = _divided(torch.floor_divide)
_DIRECT["remainder"] = _divided(torch.remainder)
_DIRECT["fmod"] = _divided(torch.fmod)
_DIRECT["sign"] = _sign


def _apply(arrays: Arrays, name: str, args: tuple[object, ...], dtype: object = None) -> object:
    """A function of each element of arrays and numbers."""
    ufunc = getattr(numpy, name)
    values, result = operands_of(arrays, ufunc, args, dtype)
    is_complex = any(isinstance(v, complex) or getattr(v, "is_complex", bool)() for v in values)
    if is_complex and name in _NOT_OF_COMPLEX:
        raise refusal(f"numpy.{name} of complex numbers")
    if name == "power":
        return _power(arrays, values, result)
    if name in ("left_shift", "right_shift"):
        return _shift(arrays, name, values, result)
    if name == "matmul" and result.kind == "b":
        raise refusal("numpy.matmul of truths")
    return computed(arrays, name, values, result, _DIRECT[name])


def _power(arrays: Arrays, values: list[object], result: Any) -> Any:
    exponent = values[1]
    if result.kind in "iu" and not (type(exponent) is int and exponent >= 0):
        raise refusal("a power of integers that the program computes")
    if isinstance(exponent, torch.Tensor):
        return computed(arrays, "power", values, result, torch.pow)
    found = arrays.leaf(torch.pow, *_with_tensors(arrays, values[:1], None), exponent)
    return found if found.dtype is TENSOR_DTYPES[result] else found.to(TENSOR_DTYPES[result])


def _shift(arrays: Arrays, name: str, values: list[object], result: Any) -> object:
    count = values[1]
    if type(count) is not int or not 0 <= count < result.itemsize * 8:
        raise refusal("shifting by a number that the program computes")
    function = operator.lshift if name == "left_shift" else operator.rshift
    return arrays.leaf(function, *values)


def _take_options(
    name: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[Any, Any, Any]:
    """(operands, the array that is written to, the dtype that is asked for)."""
    ufunc = getattr(numpy, name)
    rest = dict(kwargs)
    out, dtype = rest.pop("out", None), rest.pop("dtype", None)
    if rest.pop("where", True) is not True or rest.pop("casting", "same_kind") != "same_kind":
        raise refusal(f"numpy.{name} with where or casting")
    if rest:
        raise refusal(f"numpy.{name} with {', '.join(rest)}")
    if len(args) > ufunc.nin:
        out = args[ufunc.nin]
    if type(out) is tuple:
        (out,) = out
    return args[: ufunc.nin], out, dtype


def _register(name: str) -> None:
    own = _SAME_NAMES.get(name, name)

    @computes(name)
    def run(
        arrays: Arrays, found: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Any:
        operands, out, dtype = _take_options(own, args, kwargs)
        value = _apply(arrays, own, operands, dtype)
        return value if out is None else write(arrays, out, value)


@computes("fix")
def _fix(
    arrays: Arrays, found: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if len(args) != 1 or kwargs or type(args[0]) is not FakeArray:
        raise refusal("numpy.fix with out")
    return arrays.leaf(torch.trunc, arrays.tensor(args[0]))


def write(arrays: Arrays, target: FakeArray, value: object) -> object:
    """Give an array's memory new values; its tensor."""
    tensor = arrays.written(target)
    arrays.leaf(torch.Tensor.copy_, tensor, value)
    return tensor


if numpy is not None:
    for _name in {*_DIRECT, "power", "left_shift", "right_shift"}:
        if isinstance(getattr(numpy, _name, None), UFUNC):
            _register(_name)
    for _name, _own in _SAME_NAMES.items():
        if _name not in _DIRECT and hasattr(numpy, _name):
            _register(_name)

# --- operators -----------------------------------------------------------------------------------

_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "power", "matmul": "matmul",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift",
    "rshift": "right_shift", "lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal",
    "gt": "greater", "ge": "greater_equal",
}  # fmt: skip
_UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}


def _register_operator(name: str, ufunc: str) -> None:
    @computes(f"__{name}__")
    def run(
        arrays: Arrays, found: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        return _apply(arrays, ufunc, args[: getattr(numpy, ufunc).nin])

    if name in ("lt", "le", "eq", "ne", "gt", "ge", *_UNARY):
        return

    @computes(f"__i{name}__")
    def run_in_place(
        arrays: Arrays, found: object, args: tuple[Any, ...], kwargs: dict[str, object]
    ) -> object:
        value = _apply(arrays, ufunc, args)
        target = args[0]
        is_array = type(target) is FakeArray and not target.is_scalar
        return write(arrays, target, value) if is_array else value


for _name, _ufunc in {**_OPERATORS, **_UNARY}.items():
    _register_operator(_name, _ufunc)
