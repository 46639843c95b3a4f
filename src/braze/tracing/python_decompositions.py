"""Python versions of composite operators whose C++ code needs concrete sizes.

    x.reshape(n, -1)    x.view(n, m), or a copy where the strides allow no view
    x.contiguous()      x, or a copy
    torch.stft(x, ...)  frames of x times the window, transformed
    torch.istft(z, ...) the inverse; that the windows overlap is checked by the graph
    max_pool1d(x, 4)    max_pool2d of x as an image of one row
    x @ y               as C++ does it, with copies where it would look for a view to take
    x.tensor_split(3)   slices of (n + 2) // 3, (n + 1) // 3 and n // 3
    x[mask] = v         x.copy_(where(mask, v, x)), whatever the sizes (`masked_writes`)

They do what C++ does. C++ would ask the nodes of sizes a hundred questions for one `reshape`.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional

from braze.compat.torch.aten import aten
from braze.compat.torch.dispatcher import symbolic_dispatch
from braze.compat.torch.registered_ops import check_holds
from braze.ir.types import TensorType
from braze.shapes.demands import symbolic_among
from braze.shapes.symbolic import ProgramInt, plain_size
from braze.tracing.errors import DataDependent
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.lstm_decomposition import lstm
from braze.tracing.masked_assignment import index_put, index_put_in_place, set_item
from braze.tracing.memory_readers import MEMORY_READERS
from braze.tracing.shape_rules.strides import as_operand, is_contiguous, is_row_major
from braze.tracing.shape_rules.views import completed_shape, numel_of, view_stride
from braze.tracing.symbolic.speculative_copies import free_copy

_SIZES = frozenset((int, ProgramInt))
# Operators of no tensors, whose schemas have sizes as numbers: recorded as they are.
TAKES_NUMBERS = frozenset(
    (
        aten.linspace.default,
        aten.tril_indices.default,
        aten.triu_indices.default,
    )
)


def _reshape(*args: Any, **kwargs: Any) -> object:
    x: Any = args[0] if args else None
    shape = args[1:]
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        (shape,) = shape
    if kwargs or not _is_symbolic(x, shape) or not _SIZES.issuperset(map(type, shape)):
        return torch.Tensor.reshape(*args, **kwargs)
    kind: TensorType = x.place.type
    sizes = completed_shape(tuple(map(plain_size, shape)), numel_of(kind.shape))
    made = free_copy(x, sizes)
    if made is not None:
        return made
    if view_stride(kind.shape, kind.stride, sizes) is not None:
        return x.view(sizes)
    copy = x.clone(memory_format=torch.contiguous_format)
    return aten._unsafe_view.default(copy, sizes)


def _contiguous(*args: Any, **kwargs: Any) -> object:
    x: Any = args[0] if args else None
    if len(args) != 1 or kwargs or not _is_symbolic(x, ()):
        return torch.Tensor.contiguous(*args, **kwargs)
    kind: TensorType = x.place.type
    if is_contiguous(kind.shape, kind.stride):
        return x
    return x.clone(memory_format=torch.contiguous_format)


_STFT = inspect.signature(torch.stft)


def _multiplied(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    """A product of matrices, in which dimensions are joined. Whether that makes a copy shows in no
    result, so one program for all sizes does not ask what it depends on."""
    if len(args) >= 2 and not kwargs:
        made = _of_rows(function, *args)
        if made is not None:
            return made
    given = (*args, *kwargs.values())
    sizes = [n for x in given if type(x) is TracedTensor for n in x.place.type.shape]
    facts = next((n.facts for n in symbolic_among(sizes)), None)
    if facts is None:
        return function(*args, **kwargs)
    with symbolic_dispatch(function):
        if not facts.are_all_asked_for:
            return function(*args, **kwargs)
        facts.has_free_choice = True
        try:
            return function(*args, **kwargs)
        finally:
            facts.has_free_choice = False


def _of_rows(function: object, left: object, right: object, bias: object = None) -> object:
    """The product of rows in a row, of any number of dimensions, and a matrix; None for any other.
    It is what layers of models ask for, and C++ would compare each stride to find that out."""
    if bias is not None or type(left) is not TracedTensor or type(right) is not TracedTensor:
        return None
    kind = as_operand(left.place.type)
    shape, matrix = kind.shape, right.place.type.shape
    if len(shape) < 3 or len(matrix) != 2 or not _is_symbolic(left, ()):
        return None
    is_linear = function is functional.linear
    is_dense = is_row_major(shape, kind.stride)
    if not is_dense or shape[-1] is not matrix[is_linear]:
        return None
    if torch.is_autocast_enabled(kind.device.type):  # it converts what is multiplied, not its rows
        return None
    if is_linear:
        right = right.t()
    rows = left.view(numel_of(shape[:-1]), shape[-1])
    made = torch.mm(rows, right)
    return aten._unsafe_view.default(made, [*shape[:-1], matrix[not is_linear]])


_PRODUCTS = (torch.matmul, torch.Tensor.matmul, operator.matmul, functional.linear)


def _stft(*args: Any, **kwargs: Any) -> Any:
    asked = _arguments(_STFT, args, kwargs)
    if asked is None:
        return torch.stft(*args, **kwargs)
    x, window, size = asked["input"], asked["window"], asked["n_fft"]
    if not _is_symbolic(x, ()) or x.dim() > 2 or not _takes_frames(asked):
        return torch.stft(*args, **kwargs)
    length, hop = asked["win_length"] or size, asked["hop_length"] or size // 4
    signal = x if x.dim() == 2 else x[None]
    if asked["center"]:
        padding = [size // 2, size // 2]
        signal = torch.nn.functional.pad(signal[None], padding, asked["pad_mode"])[0]
    if not signal.shape[-1] >= size or not 0 < length <= size or window.shape != (length,):
        return torch.stft(*args, **kwargs)
    before = (size - length) // 2
    if length < size:
        window = torch.constant_pad_nd(window, (before, size - length - before))
    frames = signal.unfold(-1, size, hop) * window
    made = aten._fft_r2c.default(frames, [2], int(asked["normalized"]), True)
    made = made.transpose(1, 2)
    return made if x.dim() == 2 else made[0]


def _takes_frames(asked: dict[str, Any]) -> bool:
    """Whether it is what programs mostly ask for: numbers that are known, a window, half of a
    transform as complex numbers."""
    plain = asked["onesided"] is not False and asked["return_complex"] is True
    numbers = [asked["n_fft"], asked["hop_length"] or 1, asked["win_length"] or 1]
    if not plain or type(asked["window"]) is not TracedTensor or asked.get("align_to_window"):
        return False
    positive = all(type(n) is int and n > 0 for n in numbers) and asked["n_fft"] >= 4
    return positive and _are_real(asked["input"], asked["window"])


def _as_in_istft(
    input: object,
    n_fft: object,
    hop_length: object = None,
    win_length: object = None,
    window: object = None,
    center: object = True,
    normalized: object = False,
    onesided: object = None,
    length: object = None,
    return_complex: object = False,
) -> None: ...


_ISTFT = inspect.signature(_as_in_istft)
_LEAST_OVERLAP = 1e-11


def _istft(*args: Any, **kwargs: Any) -> Any:
    """C++ reads whether the sum of the windows is above zero everywhere, and raises where not."""
    asked = _arguments(_ISTFT, args, kwargs)
    if asked is None or not _gives_frames(asked):
        return torch.istft(*args, **kwargs)
    z, window, size, length = (asked[name] for name in ("input", "window", "n_fft", "length"))
    hop = asked["hop_length"] or size // 4
    spectrum = z if z.dim() == 3 else z[None]
    count = spectrum.shape[2]
    total = size + hop * (count - 1)
    before = (size - len(window)) // 2
    if len(window) < size:
        window = torch.constant_pad_nd(window, (before, size - len(window) - before))
    frames = aten._fft_c2r.default(
        spectrum.transpose(1, 2), [2], 1 if asked["normalized"] else 2, size
    )
    signal = aten.unfold_backward.default(frames * window, (spectrum.shape[0], total), 1, size, hop)
    squares = window.pow(2).expand(1, count, size)
    overlap = aten.unfold_backward.default(squares, (1, total), 1, size, hop)
    start = size // 2 if asked["center"] else 0
    end = start + length if length is not None else total - start
    signal, overlap = (aten.slice.Tensor(each, 1, start, end) for each in (signal, overlap))
    check_holds(torch.ge(overlap.abs().min(), _LEAST_OVERLAP))
    signal = signal / overlap
    return signal if z.dim() == 3 else signal[0]


def _gives_frames(asked: dict[str, Any]) -> bool:
    """Whether it is what programs mostly ask for: numbers that are known, a window, half of a
    transform, a signal no longer than the frames."""
    z, window, size, length = (asked[name] for name in ("input", "window", "n_fft", "length"))
    hop, width = asked["hop_length"] or 1, asked["win_length"]
    if type(z) is not TracedTensor or type(window) is not TracedTensor:
        return False
    if not z.is_cpu or z.dtype not in (torch.complex64, torch.complex128) or z.dim() not in (2, 3):
        return False
    if not all(type(n) is int and n > 0 for n in (size, hop)) or asked["return_complex"]:
        return False
    width = size if width is None else width
    is_window = _are_real(window) and window.dim() == 1 and window.dtype is z.real.dtype
    if not is_window or type(width) is not int or window.shape != (width,):
        return False
    if size < 4 or asked["onesided"] is False or z.shape[-2] != size // 2 + 1 or width > size:
        return False
    if (asked["hop_length"] or size // 4) > width or 0 in z.shape:
        return False
    if length is None:
        return bool((z.shape[-1] - 1) * (asked["hop_length"] or size // 4) > 0)
    total = size + (asked["hop_length"] or size // 4) * (z.shape[-1] - 1)
    return bool(length > 0 and length + (size // 2 if asked["center"] else 0) <= total)


def _are_real(*tensors: Any) -> bool:
    return all(x.dtype in (torch.float32, torch.float64) for x in tensors)


def _as_in_max_pool(
    input: object,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: object = False,
    return_indices: object = False,
) -> None: ...


MAX_POOL = inspect.signature(_as_in_max_pool)


def _max_pool1d(*args: Any, **kwargs: Any) -> object:
    asked = _arguments(MAX_POOL, args, kwargs)
    if asked is None:
        return functional.max_pool1d(*args, **kwargs)
    x, kernel, stride, padding, dilation, ceil_mode, indices = asked.values()
    numbers = [_only(n) for n in (kernel, kernel if stride is None else stride, padding, dilation)]
    plain = all(type(n) is int for n in numbers) and not indices and type(ceil_mode) is bool
    if (
        not plain
        or type(x) is not TracedTensor
        or x.dim() not in (2, 3)
        or not x.is_floating_point()
    ):
        return functional.max_pool1d(*args, **kwargs)
    window, step, pad, apart = numbers
    image = functional.max_pool2d(
        x.unsqueeze(-2), (1, window), (1, step), (0, pad), (1, apart), ceil_mode
    )
    pooled = image.squeeze(-2)
    keeps_strides = x.device.type != "cpu" or (x.requires_grad and torch.is_grad_enabled())
    return pooled if keeps_strides else pooled.contiguous()  # a kernel of its own, on the CPU


def _as_in_tensor_split(
    input: object, indices_or_sections: object = None, dim: object = 0, **named: object
) -> None: ...


_TENSOR_SPLIT = inspect.signature(_as_in_tensor_split)


def _tensor_split(*args: Any, **kwargs: Any) -> tuple[object, ...]:
    asked = _arguments(_TENSOR_SPLIT, args, kwargs)
    if asked is None:
        return torch.tensor_split(*args, **kwargs)
    x, sections, dim, named = asked.values()
    sections = named.pop("sections", sections)
    if isinstance(sections, torch.Tensor) or "tensor_indices_or_sections" in named:
        raise DataDependent("torch.tensor_split", "the pieces depend on a tensor's values")
    plain = type(sections) is int and sections > 0 and type(dim) is int and not named
    if not plain or not _is_symbolic(x, ()) or not -x.dim() <= dim < x.dim():
        return torch.tensor_split(*args, **kwargs)
    total, end, pieces = x.shape[dim], 0, []
    for place in range(sections):
        start, end = end, end + (total + sections - 1 - place) // sections
        pieces.append(aten.slice.Tensor(x, dim, start, end))
    return tuple(pieces)


def _arguments(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any] | None:
    """What a call gives by name, and defaults; None where it fits no such call, as C++ will say."""
    try:
        given = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    given.apply_defaults()
    return given.arguments


def _only(number: Any) -> Any:
    """A number, or the only one of a tuple."""
    is_alone = isinstance(number, (tuple, list)) and len(number) == 1
    return number[0] if is_alone else number


def _one_hot(tensor: Any, num_classes: Any = -1) -> torch.Tensor:
    """C++ looks at the classes of all tensors but fake tensors, and writes to rows of zeros: what
    it makes of those has the strides of their comparison."""
    is_known = type(tensor) is TracedTensor and tensor.dtype is torch.int64 and tensor.is_cpu
    if is_known and type(num_classes) is int and num_classes >= 0 and 0 not in tensor.shape:
        inside = torch.logical_and(tensor >= 0, tensor < num_classes)
        check_holds(inside.all())
    if is_known and num_classes == -1 and 0 not in tensor.shape:
        check_holds((tensor >= 0).all())
    if is_known and type(num_classes) is int and num_classes <= 0 and 0 in tensor.shape:
        raise RuntimeError("Can not infer total number of classes from empty tensor.")
    made = functional.one_hot(tensor, num_classes)
    return made.contiguous() if is_known else made


# By what programs call.
IN_PYTHON: MappingProxyType[Any, Callable[..., Any]] = MappingProxyType(
    {
        **MEMORY_READERS,
        torch.Tensor.reshape: _reshape,
        torch.reshape: _reshape,
        torch.Tensor.contiguous: _contiguous,
        torch.stft: _stft,
        torch.Tensor.stft: _stft,
        torch.istft: _istft,
        torch.Tensor.istft: _istft,
        functional.max_pool1d: _max_pool1d,
        functional.one_hot: _one_hot,
        torch.lstm: lstm,
        torch.tensor_split: _tensor_split,
        torch.Tensor.tensor_split: _tensor_split,
        operator.setitem: set_item,
        torch.index_put: index_put,
        torch.Tensor.index_put: index_put,
        torch.index_put_: index_put_in_place,
        torch.Tensor.index_put_: index_put_in_place,
        **{
            product: functools.update_wrapper(functools.partial(_multiplied, product), product)
            for product in _PRODUCTS
        },
    }
)


def _is_symbolic(x: Any, shape: Any) -> bool:
    if type(x) is not TracedTensor:
        return False
    return any(type(size) is not int for size in (*x.place.type.shape, *shape))
