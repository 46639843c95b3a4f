"""Asks an operator's meta kernel for its result type: the fallback without a shape rule."""

from __future__ import annotations

import functools
import math

import torch

from braze.compat.torch.aten import aten
from braze.ir.types import TensorType
from braze.tracing.errors import Untraceable
from braze.tracing.shape_rules.strides import as_operand, tensor_type

_META = torch.device("meta")
_CPU = torch.device("cpu")


# Meta kernels say of what they quantize that it is float32.
_QUANTIZED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})


def infer_by_meta(
    op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """The result of `op` with TensorType in place of tensors, nested as the operator returns it.

    Errors that eager would raise for these arguments (shapes that do not fit) are raised as they
    are; Untraceable where the operator has no meta kernel or returns what has no strides.
    """
    if not _QUANTIZED.isdisjoint(a for a in (*args, *kwargs.values()) if type(a) is torch.dtype):
        raise Untraceable(f"{op} returns a quantized tensor")
    device = result_device(op, args, kwargs)
    meta_args = tuple(_to_meta(a) for a in args)
    meta_kwargs = {name: _to_meta(a) for name, a in kwargs.items()}
    has_tensors = any(_has_tensor(a) for a in (*args, *kwargs.values()))
    if not has_tensors and not op._schema.returns:
        return None  # empty lists of tensors: called, it would run
    if "device" in meta_kwargs or not has_tensors:
        meta_kwargs["device"] = _META
    if meta_kwargs.get("pin_memory"):
        meta_kwargs["pin_memory"] = False
    if meta_kwargs.get("generator") is not None:
        meta_kwargs["generator"] = None
    try:
        result = op(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        if not op._schema.returns and op.namespace != "aten":
            return None  # what it writes to keeps its metadata: the schema says it is written
        raise Untraceable(f"{op} has no meta kernel: {error}") from error
    except (RuntimeError, IndexError, ValueError):
        if op in _REFUSED_IN_OTHER_WORDS:
            _refuse_as_kernel(op, args, kwargs)
        raise
    except ArithmeticError as error:  # Python divides by the number of elements, which is 0
        result = _of_kernel(op, args, kwargs, error)
    return _from_meta(op, result, device)


# Their meta kernels are Python, whose errors are not those of C++, which a program may print.
_REFUSED_IN_OTHER_WORDS = frozenset({aten.cat.default, aten.stack.default})


def _refuse_as_kernel(
    op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """Raise what the kernel raises for tensors of these shapes. It gets some that have one element
    of memory, and comes to no more than looking at them, since it refuses them."""
    op(*map(_of_one_element, args), **{name: _of_one_element(a) for name, a in kwargs.items()})


def _of_kernel(
    op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object], error: Exception
) -> object:
    """What the kernel itself makes of zeros. Raises Untraceable for tensors on other devices, and
    where there are more than a few zeros to make."""
    tensors = _tensors((*args, *kwargs.values()))
    if any(t.device != _CPU or math.prod(t.shape) > _MOST_ZEROS for t in tensors):
        raise Untraceable(f"{op}: its meta kernel fails: {error}") from error
    return op(*map(_of_zeros, args), **{name: _of_zeros(a) for name, a in kwargs.items()})


_MOST_ZEROS = 1 << 20


def _of_zeros(argument: object) -> object:
    if type(argument) is TensorType:
        kind = as_operand(argument)
        return torch.empty_strided(kind.shape, kind.stride, dtype=kind.dtype, device=_CPU).zero_()
    if isinstance(argument, (list, tuple)):
        return [_of_zeros(a) for a in argument]
    return argument


def _of_one_element(argument: object) -> object:
    if type(argument) is TensorType:
        one = torch.empty((), dtype=argument.dtype, device=_CPU)
        return one.expand(as_operand(argument).shape)
    if isinstance(argument, (list, tuple)):
        return [_of_one_element(a) for a in argument]
    return argument


def result_device(
    op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> torch.device:
    """Where results live: the device asked for, else that of the tensors (a 0-dim CPU tensor
    may stand beside any). Raises RuntimeError where tensors are on two devices."""
    asked = kwargs.get("device")
    if asked is not None:
        return explicit_device(asked)
    found: torch.device | None = None
    scalar: torch.device | None = None
    for described in _tensors((*args, *kwargs.values())):
        if not described.shape and described.device == _CPU:
            scalar = described.device
        elif found is None:
            found = described.device
        elif found != described.device and op not in _MIXES_DEVICES:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{found} and {described.device}! (when checking arguments for {op})"
            )
    if found is not None:
        return found
    if scalar is not None:
        return scalar
    return explicit_device(torch.get_default_device())


_MIXES_DEVICES = frozenset({aten.index.Tensor, aten.index_put.default, aten.copy.default})


@functools.cache
def explicit_device(device: torch.device | str | int) -> torch.device:
    """The device with its index: `cuda` alone becomes the current one."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _tensors(arguments: tuple[object, ...]) -> list[TensorType]:
    found: list[TensorType] = []
    for argument in arguments:
        if type(argument) is TensorType:
            found.append(argument)
        elif isinstance(argument, (list, tuple)):
            found.extend(a for a in argument if type(a) is TensorType)
    return found


def _has_tensor(argument: object) -> bool:
    if isinstance(argument, (list, tuple)):
        return any(type(a) is TensorType for a in argument)
    return type(argument) is TensorType


def _to_meta(argument: object) -> object:
    if type(argument) is TensorType:
        kind = as_operand(argument)
        return torch.empty_strided(kind.shape, kind.stride, dtype=kind.dtype, device=_META)
    if isinstance(argument, (list, tuple)):
        return [_to_meta(a) for a in argument]
    return argument


def _from_meta(op: torch._ops.OpOverload, result: object, device: torch.device) -> object:
    if isinstance(result, torch.Tensor):
        if result.layout is not torch.strided:
            raise Untraceable(f"{op} returns a {result.layout} tensor")
        return tensor_type(result.dtype, tuple(result.shape), result.stride(), device)
    if isinstance(result, (list, tuple)):
        return tuple(_from_meta(op, r, device) for r in result)
    return result


def infer_view_by_meta(
    op: torch._ops.OpOverload,
    viewed: TensorType,
    offset: int,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> tuple[object, ...]:
    """(type, storage offset) of the view, or a tuple of those, nested as the operator returns."""
    kind = as_operand(viewed)
    shape, stride = kind.shape, kind.stride
    last = sum((size - 1) * step for size, step in zip(shape, stride))
    reached = (max(offset + last + 1, 0),)
    memory = torch.empty(reached, dtype=viewed.dtype, device=_META)
    on_meta = memory.as_strided(shape, stride, offset)
    result = op(on_meta, *args, **kwargs)
    if isinstance(result, torch.Tensor):
        return _view_type(result, viewed.device), result.storage_offset()
    return tuple((_view_type(r, viewed.device), r.storage_offset()) for r in result)


def _view_type(view: torch.Tensor, device: torch.device) -> TensorType:
    return tensor_type(view.dtype, tuple(view.shape), view.stride(), device)
