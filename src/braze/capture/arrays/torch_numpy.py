"""Functions of NumPy's that PyTorch's own implementation of NumPy on tensors (`torch._numpy`)
computes. What NumPy says of the result (type, shape, memory) counts: where it is another one, the
graph breaks."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch

from braze.capture.arrays.calls import leaves, mapped
from braze.capture.arrays.fake_array import FakeArray, refusal
from braze.capture.arrays.values import ARRAY_FUNCTIONS, Arrays, computes
from braze.compat.numpy.interface import FUNCTION_NAMES, TENSOR_NUMPY, numpy


@final
class TensorForm:
    """A function of NumPy's as one of tensors; the other arguments, and where the tensors are, is
    kept. Hashed by identity: each call has its own."""

    def __init__(self, name: str, function: Callable[..., object], given: object) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = "numpy"
        self._function = function
        self._given = given

    def __call__(self, *tensors: object) -> Any:
        left = iter(tensors)
        args, kwargs = mapped(
            self._given, lambda leaf: TENSOR_NUMPY.ndarray(next(left)) if leaf is _HERE else leaf
        )
        return _tensors(self._function(*args, **kwargs))


class _Here:
    """Stands for a tensor among the arguments."""


_HERE = _Here()


def _tensors(found: object) -> object:
    if isinstance(found, TENSOR_NUMPY.ndarray):
        return found.tensor
    if isinstance(found, (tuple, list)):
        return tuple([_tensors(item) for item in found])
    return found


def whole(name: str, function: Any) -> Callable[..., object]:
    """What computes the tensors of a function by PyTorch's implementation of it."""

    def run(
        arrays: Arrays, found: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        given = (args, kwargs)
        operands = [leaf for leaf in leaves(given) if type(leaf) is FakeArray]
        if _has_out(name, args, kwargs):
            raise refusal(f"numpy.{name} with out")
        template = mapped(given, lambda leaf: _HERE if type(leaf) is FakeArray else _dtype(leaf))
        form = TensorForm(name, function, template)
        tensors = arrays.leaf(form, *[arrays.tensor(operand) for operand in operands])
        # Libraries lay results out as they like, whatever is said of them beforehand.
        return mapped(tensors, partial(_laid_out, arrays)) if "." in name else tensors

    return run


def _laid_out(arrays: Arrays, tensor: object) -> object:
    return arrays.leaf(torch.clone, tensor, memory_format=torch.contiguous_format)


def _has_out(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether a call names where its result is written."""
    if kwargs.get("out") is not None:
        return True
    function = _numpys(name)
    parameters = {} if function is None else inspect.signature(function).parameters
    names = [n for n, one in parameters.items() if one.kind in _BY_POSITION]
    return "out" in names and len(args) > names.index("out")


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _dtype(leaf: object) -> object:
    """Data types as that implementation has them."""
    if isinstance(leaf, numpy.dtype) or (
        isinstance(leaf, type) and issubclass(leaf, numpy.generic)
    ):
        return numpy.dtype(leaf).name
    return leaf.item() if isinstance(leaf, numpy.generic) else leaf


# Checked against NumPy by `tests/surface/numpy_functions.py`.
_WHOLE = (
    "angle append around array_split atleast_1d atleast_2d atleast_3d average broadcast_to "
    "clip column_stack concatenate concat convolve corrcoef count_nonzero cov cross diag diagflat "
    "diagonal diff dot dsplit dstack einsum expand_dims empty_like flip fliplr flipud "
    "full_like "
    "gradient hsplit hstack imag inner isclose iscomplex isreal kron linalg.det linalg.eigvalsh "
    "linalg.matrix_power linalg.norm linalg.slogdet linalg.matrix_norm "
    "linalg.vector_norm meshgrid median moveaxis nan_to_num nanmean ones_like outer "
    "ptp ravel real repeat roll rollaxis rot90 round searchsorted sinc sort split squeeze stack "
    "swapaxes take take_along_axis tensordot tile trace tril triu vander vdot vsplit vstack "
    "where zeros_like broadcast_arrays row_stack select percentile quantile "
    "fft.fft fft.fft2 fft.fftn fft.fftshift fft.hfft fft.ifft fft.ifft2 fft.ifftn fft.ifftshift "
    "fft.ihfft fft.irfft fft.irfft2 fft.irfftn fft.rfft fft.rfft2 fft.rfftn "
).split()


def _named(name: str) -> object:
    space: Any = TENSOR_NUMPY
    for part in name.split("."):
        space = getattr(space, part, None)
    return space


def _numpys(name: str) -> Any:
    return operator.attrgetter(name)(numpy) if hasattr(numpy, name.split(".")[0]) else None


if numpy is not None:
    for _name in _WHOLE:
        _function = _named(_name)
        _own = FUNCTION_NAMES.get(_numpys(_name), _name)
        if _function is not None:
            for _each in {_name, _own} - ARRAY_FUNCTIONS.keys():
                ARRAY_FUNCTIONS[_each] = whole(_name, _function)


# --- views and copies ----------------------------------------------------------------------------


def _order(kwargs: dict[str, object], allowed: tuple[str, ...] = ("C", "K", "A")) -> None:
    if kwargs.get("order", "C") not in allowed:
        raise refusal(f"order={kwargs['order']!r}")


def _first(args: tuple[object, ...], kwargs: dict[str, object]) -> FakeArray:
    if not args or type(args[0]) is not FakeArray:
        raise refusal("a list for an array")
    return args[0]


@computes("reshape")
def _reshape(
    arrays: Arrays, found: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if kwargs.keys() - {"shape", "newshape", "order"} or kwargs.get("order", "C") != "C":
        raise refusal("reshape with order or copy")
    return arrays.leaf(torch.reshape, arrays.tensor(_first(args, kwargs)), found.shape)


@computes("argsort")
def _argsort(
    arrays: Arrays, found: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    given = dict(zip(("a", "axis", "kind"), args)) | kwargs
    if given.get("kind") != "stable" or given.keys() - {"a", "axis", "kind"} or len(args) > 3:
        raise refusal("numpy.argsort where equal elements may come in any order")
    tensor, axis = arrays.tensor(_first(args, kwargs)), given.get("axis", -1)
    if tensor.is_complex() or not tensor.dim():
        raise refusal("numpy.argsort of such an array")
    if axis is None:
        tensor, axis = arrays.leaf(torch.reshape, tensor, (-1,)), 0
    return arrays.leaf(torch.argsort, tensor, dim=axis, stable=True)


@computes("transpose", "permute_dims")
def _transpose(
    arrays: Arrays, found: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    tensor = arrays.tensor(_first(args, kwargs))
    axes: Any = args[1:] or kwargs.get("axes")
    if axes and len(axes) == 1 and (axes[0] is None or type(axes[0]) in (tuple, list)):
        axes = axes[0]
    dims = list(range(tensor.dim()))[::-1] if not axes else [int(a) for a in axes]
    return arrays.leaf(torch.Tensor.permute, tensor, dims)


@computes("ndarray.T")
def _turned(arrays: Arrays, found: object, args: tuple[Any, ...], kwargs: dict[str, object]) -> Any:
    tensor = arrays.tensor(args[0])
    return arrays.leaf(torch.Tensor.permute, tensor, list(range(tensor.dim()))[::-1])


@computes("ndarray.mT", "matrix_transpose", "linalg.matrix_transpose")
def _turned_matrix(
    arrays: Arrays, found: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    return arrays.leaf(torch.Tensor.transpose, arrays.tensor(_first(args, kwargs)), -1, -2)


@computes("ndarray.flatten", "ndarray.copy", "copy", "ndarray.__copy__", "ndarray.__deepcopy__")
def _copy(arrays: Arrays, found: Any, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    order = kwargs.get("order", args[1] if len(args) > 1 else "C")
    flat = found.ndim != args[0].like.ndim
    if flat and order != "C":
        raise refusal(f"flatten in order {order!r}")
    tensor = arrays.leaf(torch.clone, arrays.tensor(_first(args, kwargs)))
    return arrays.leaf(torch.reshape, tensor, found.shape) if flat else tensor


@computes("ndarray.astype", "astype")
def _astype(
    arrays: Arrays, found: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    owner = _first(args, kwargs)
    dtype = _tensor_dtype(found.dtype)
    if owner.like.dtype.kind in "fc" and found.dtype.kind == "u":
        raise refusal(f"{owner.like.dtype} as {found.dtype}")
    tensor = arrays.tensor(owner)
    if tensor.is_complex() and not dtype.is_complex:
        raise refusal("complex numbers as real ones")
    return arrays.leaf(torch.Tensor.to, tensor, dtype, copy=True)


def _tensor_dtype(dtype: Any) -> torch.dtype:
    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype):
        raise refusal(f"an array of {dtype}")
    return found


@computes("array", "asarray", "asanyarray", "ascontiguousarray")
def _array(
    arrays: Arrays, found: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if kwargs.keys() - {"dtype", "copy"}:
        raise refusal(f"numpy.array with {', '.join(kwargs)}")
    dtype = _tensor_dtype(found.dtype)
    return arrays.leaf(torch.clone, _stacked(arrays, args[0], dtype))


def _stacked(arrays: Arrays, value: Any, dtype: Any) -> object:
    """A list of arrays and numbers, at any depth, as one tensor."""
    if type(value) is FakeArray:
        if value.like.dtype.kind == "c" and not dtype.is_complex:
            raise refusal("complex numbers as real ones")
        return arrays.leaf(torch.Tensor.to, arrays.tensor(value), dtype)
    if type(value) in (list, tuple):
        return arrays.leaf(torch.stack, [_stacked(arrays, item, dtype) for item in value])
    return arrays.full(value, dtype)
