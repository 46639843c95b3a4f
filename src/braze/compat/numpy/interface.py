"""What Braze uses of NumPy, which may not be installed: its types, its functions by name, and
arrays and tensors that share memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, final

import torch

from braze.compat import private_names as private

numpy: Any
try:
    import numpy
except ImportError:
    numpy = None


# PyTorch's implementation of NumPy's functions on tensors.
TENSOR_NUMPY: Any = private.tensor_numpy


@final
class _NoArray:
    """Stands for classes of NumPy's where it is not installed."""


def _of(name: str) -> object:
    return _NoArray if numpy is None else getattr(numpy, name)


ARRAY: Any = _of("ndarray")
UFUNC: Any = _of("ufunc")
# The class of functions that other array types may override: most of those with arrays.
DISPATCHER: type = _NoArray if numpy is None else type(numpy.sum)

_NAMES = "bool int8 int16 int32 int64 uint8 float16 float32 float64 complex64 complex128".split()
# Data types of arrays that are traced, and those of their tensors.
TENSOR_DTYPES: dict[Any, torch.dtype] = (
    {} if numpy is None else {numpy.dtype(name): getattr(torch, name) for name in _NAMES}
)
# Classes of NumPy's scalars of these types, and of the types themselves.
SCALARS: frozenset[type] = frozenset(dtype.type for dtype in TENSOR_DTYPES)
DTYPE_CLASSES: frozenset[type] = frozenset(type(dtype) for dtype in TENSOR_DTYPES)

# The class of the generator behind `numpy.random.randn` and the like, that of its methods, and the
# methods that give numbers or arrays and change nothing but its state, by their names.
RANDOM_STATE: Any = _NoArray if numpy is None else numpy.random.RandomState
RANDOM_FUNCTION: Any = _NoArray if numpy is None else type(numpy.random.RandomState.rand)
RANDOM_SEED: Any = None if numpy is None else numpy.random.seed
_NO_DRAWS = frozenset({"bytes", "get_state", "random_integers", "seed", "set_state", "shuffle"})
RANDOM_METHODS: dict[str, Any] = {
    name: method
    for name, method in vars(RANDOM_STATE).items()
    if callable(method) and not name.startswith("_") and name not in _NO_DRAWS
}


def _spaces() -> Iterator[tuple[str, object]]:
    if numpy is not None:
        for prefix, module in (("", numpy), ("linalg.", numpy.linalg), ("fft.", numpy.fft)):
            yield from ((prefix + name, vars(module).get(name)) for name in dir(module))


def _named() -> dict[object, str]:
    found: dict[Any, str] = {}
    for name, value in _spaces():
        if type(value) in (UFUNC, DISPATCHER, type(len), type(_spaces)):
            found.setdefault(value, name)
    return found


# Public functions of `numpy`, `numpy.linalg` and `numpy.fft` -> the first of their names.
FUNCTION_NAMES: dict[Any, str] = _named()


class _Memory:
    """An object that NumPy takes for an array at an address."""

    def __init__(
        self, owner: Any, offset: int, shape: object, strides: object, writeable: bool
    ) -> None:
        described = owner.__array_interface__
        address = described["data"][0] + offset
        layout = {"data": (address, not writeable), "shape": shape, "strides": strides}
        self.__array_interface__ = {**described, **layout}
        self.owner = owner


def view_of_array(
    array: object, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], writeable: bool
) -> object:
    """A view of the memory of an array, `offset` and `strides` in bytes."""
    return numpy.asarray(_Memory(array, offset, shape, strides, writeable))


def tensor_of_array(array: Any) -> torch.Tensor:
    """The tensor that shares an array's memory, of a read-only one, too."""
    if not array.flags.writeable:
        array = view_of_array(array, 0, array.shape, array.strides, True)
    return torch.from_numpy(array)


def array_of_tensor(tensor: torch.Tensor, writeable: bool = True) -> object:
    """The array that shares a tensor's memory, past its gradients."""
    array = tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
    if not writeable:
        array.setflags(write=False)
    return array


def scalar_of_tensor(tensor: torch.Tensor) -> object:
    """NumPy's scalar of a tensor with one element."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().numpy()[()]


def is_traceable(array: Any) -> bool:
    """Whether the memory of an array can be a tensor's: of a known data type in this machine's byte
    order, aligned, and with strides that are no negative numbers but whole elements."""
    size = array.itemsize
    strides = all(stride >= 0 and stride % size == 0 for stride in array.strides)
    return array.dtype in TENSOR_DTYPES and array.flags.aligned and strides


def array_facts(array: Any) -> tuple[object, ...]:
    """What entries compare of an array: data type, shape, strides, and whether it is read-only."""
    return array.dtype, array.shape, array.strides, array.flags.writeable


def bytes_of(value: Any) -> tuple[int, int]:
    """The first address of an array's or a strided tensor's memory, and the one after the last."""
    if type(value) is ARRAY:
        first, last = numpy.lib.array_utils.byte_bounds(value)
        return (first, last) if value.size else (0, 0)
    if not value.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride()))
    first = value.data_ptr()
    return first, first + (last + 1) * value.element_size()


def lie_apart(values: tuple[object, ...]) -> bool:
    """Whether no two of arrays and tensors on the CPU have bytes in common."""
    ranges = sorted([bytes_of(value) for value in values])
    return all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
