"""NumPy's reductions and cumulative sums, on tensors: along the axes and in the type that NumPy
says."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from braze.capture.arrays.fake_array import FakeArray, refusal
from braze.capture.arrays.ufuncs import write
from braze.capture.arrays.values import Arrays, computes
from braze.compat.numpy.interface import TENSOR_DTYPES, numpy

_NO_VALUE = None if numpy is None else inspect.signature(numpy.sum).parameters["keepdims"].default
_ALIASES = {"amax": "max", "amin": "min"}
_REFUSED = {"initial": _NO_VALUE, "where": _NO_VALUE, "mean": _NO_VALUE, "correction": _NO_VALUE}


def _bound(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, Any]:
    signature = inspect.signature(getattr(numpy, name))
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as problem:
        raise refusal(f"{name}: {problem}") from None
    given: dict[str, Any] = bound.arguments
    for option, default in _REFUSED.items():
        if given.get(option, default) is not default:
            raise refusal(f"numpy.{name} with {option}")
    return given


def _axes(axis: object, ndim: int) -> list[int]:
    if axis is None:
        return list(range(ndim))
    return [int(a) % ndim for a in (axis if type(axis) is tuple else (axis,))]


def _sum(arrays: Arrays, x: object, axes: list[int], keep: bool, dtype: object) -> object:
    return arrays.leaf(torch.sum, x, dim=axes, keepdim=keep, dtype=dtype)


def _mean(arrays: Arrays, x: object, axes: list[int], keep: bool, dtype: object) -> object:
    return arrays.leaf(torch.mean, x, dim=axes, keepdim=keep, dtype=dtype)


def _max(arrays: Arrays, x: object, axes: list[int], keep: bool, dtype: object) -> object:
    return arrays.leaf(torch.amax, x, dim=axes, keepdim=keep)


def _min(arrays: Arrays, x: object, axes: list[int], keep: bool, dtype: object) -> object:
    return arrays.leaf(torch.amin, x, dim=axes, keepdim=keep)


def _all(arrays: Arrays, x: object, axes: list[int], keep: bool, dtype: object) -> object:
    return arrays.leaf(torch.all, x, dim=axes, keepdim=keep)


def _any(arrays: Arrays, x: object, axes: list[int], keep: bool, dtype: object) -> object:
    return arrays.leaf(torch.any, x, dim=axes, keepdim=keep)


def _prod(arrays: Arrays, x: object, axes: list[int], keep: bool, dtype: object) -> object:
    for axis in sorted(axes, reverse=True):
        x = arrays.leaf(torch.prod, x, axis, keep, dtype=dtype)
    return x


_REDUCTIONS = {
    "sum": _sum, "mean": _mean, "max": _max, "min": _min, "all": _all, "any": _any, "prod": _prod,
}  # fmt: skip


def _register(name: str, reduce: Any) -> None:
    @computes(name, *[alias for alias, own in _ALIASES.items() if own == name])
    def run(
        arrays: Arrays, found: Any, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        given = _bound(name, args, kwargs)
        x = _operand(arrays, given["a"])
        axes = _axes(given.get("axis"), x.dim())
        if x.dim() and not axes:
            raise refusal(f"numpy.{name} along no axis")
        keep = given.get("keepdims", False) not in (False, _NO_VALUE)
        dtype = TENSOR_DTYPES.get(found.dtype)
        if dtype is None:
            raise refusal(f"numpy.{name} gives {found.dtype}")
        if x.is_complex() and name in ("max", "min", "all", "any"):
            raise refusal(f"numpy.{name} of complex numbers")
        if x.dim():
            value = reduce(arrays, x, axes, keep, dtype)
        else:
            value = arrays.leaf(torch.clone, arrays.leaf(torch.Tensor.to, x, dtype))
        return _given(arrays, given.get("out"), value)


def _operand(arrays: Arrays, value: object) -> Any:
    if type(value) is not FakeArray:
        raise refusal("a reduction of a list")
    return arrays.tensor(value)


def _given(arrays: Arrays, out: Any, value: object) -> object:
    return value if out is None else write(arrays, out, value)


for _name, _reduce in _REDUCTIONS.items():
    _register(_name, _reduce)


def _spread(name: str, function: object) -> None:
    @computes(name)
    def run(
        arrays: Arrays, found: Any, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        given = _bound(name, args, kwargs)
        x = _operand(arrays, given["a"])
        axes = _axes(given.get("axis"), x.dim())
        dtype = TENSOR_DTYPES.get(found.dtype)
        if not axes or dtype is None or x.is_complex():
            raise refusal(f"numpy.{name} along no axis, or in {found.dtype}")
        fewer = given.get("ddof", 0)
        if type(fewer) is not int:
            raise refusal(f"numpy.{name} with ddof={fewer}")
        keep = given.get("keepdims", False) not in (False, _NO_VALUE)
        half = dtype is torch.float16
        x = arrays.leaf(torch.Tensor.to, x, torch.float32 if half else dtype)
        value = arrays.leaf(function, x, dim=axes, correction=fewer, keepdim=keep)
        value = arrays.leaf(torch.Tensor.to, value, dtype)
        return _given(arrays, given.get("out"), value)


_spread("var", torch.var)
_spread("std", torch.std)


def _place(name: str, function: object) -> None:
    @computes(name)
    def run(
        arrays: Arrays, found: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        given = _bound(name, args, kwargs)
        x = _operand(arrays, given["a"])
        axis = given.get("axis")
        keep = given.get("keepdims", False) not in (False, _NO_VALUE)
        if x.is_complex() or not x.dim() or (axis is None and keep):
            raise refusal(f"numpy.{name} of such an array")
        if x.dtype is torch.bool:
            x = arrays.leaf(torch.Tensor.to, x, torch.uint8)
        return _given(arrays, given.get("out"), arrays.leaf(function, x, axis, keep))


_place("argmax", torch.argmax)
_place("argmin", torch.argmin)


def _cumulative(name: str, function: object) -> None:
    @computes(name)
    def run(
        arrays: Arrays, found: Any, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        given = _bound(name, args, kwargs)
        x = _operand(arrays, given["a"])
        dtype = TENSOR_DTYPES.get(found.dtype)
        if dtype is None or not x.dim():
            raise refusal(f"numpy.{name} gives {found.dtype}")
        axis = given.get("axis")
        if axis is None:
            x, axis = arrays.leaf(torch.reshape, x, (-1,)), 0
        return _given(arrays, given.get("out"), arrays.leaf(function, x, axis, dtype=dtype))


_cumulative("cumsum", torch.cumsum)
_cumulative("cumprod", torch.cumprod)
