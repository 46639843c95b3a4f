"""Fake tensors: real metadata without data, and the storage locations that they name."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NoReturn, final

import torch

from braze.compat import private_names as private
from braze.compat.python.other_compilers import unseen_by_other_compilers
from braze.compat.torch.aten import aten
from braze.compat.torch.autograd_engine import AutogradFunction
from braze.compat.torch.dispatcher import (
    disabled_torch_function,
    forbid_data_pointer,
    make_wrapper,
)
from braze.ir.graphs.graph import Argument, Value
from braze.ir.types import TensorType
from braze.shapes.symbolic import program_value
from braze.tracing.errors import DataDependent, Untraceable
from braze.tracing.fake_tensor_queries import unknown_names


@final
class Step:
    """How a view is made from its parent: `op(parent, *args, **kwargs)`."""

    __slots__ = ("args", "kwargs", "op")

    def __init__(
        self, op: torch._ops.OpOverload, args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> None:
        self.op = op
        self.args = args
        self.kwargs = kwargs


@final
class Place:
    """A piece of memory as a trace sees it: a base, or a view made from a parent by a step.

    type: the metadata that eager would give the tensor. Its value's own type may differ in
        strides, after a write to memory with gaps.
    offset: the storage offset, in elements.
    value, version: what it holds, and the version of the base at which that was true. For a base
        the value is always current and `version` counts the writes.
    tracks_gradient: of a base, replaying the graph under autograd gives its value a history; of a
        view, that it was made with gradients enabled.
    history: of a base, the value whose gradients it has, where a write that autograd did not see
        gave it other contents.
    tracked_write: of a base, whether the last write was made with gradients enabled.
    shares_memory: of an input, whether the memory of another input overlaps it.
    new_leaf: that it is a leaf of autograd's graph which began in the trace.
    data_step: of what `x.data` gave, the program's step at which it did; else -1. It has a version
        of its own: autograd does not know that a write through it changes `x`.
    given_at: of the place of a tensor whose `data` the program assigned to, the version that the
        tensor had; else -1. The memory is another tensor's: autograd and versions tell them apart.
    forgets_views: of an input, that it is a leaf of autograd's graph and itself a view: eager loses
        the history of its views at a write that autograd does not see. forgets_itself: that it is a
        view of such a leaf, and loses its own. is_piece: of an input, that autograd refuses to
        write to it: one of several views that one call made. refuses_gradients: of an input without
        a history, that it refuses what carries gradients.
    asks_view: of an input, that what it does depends on what kind of view it is.
    may_be_view: of a base, that eager makes it as a view at some sizes (`free_copies`).
    is_lazy: of a base, that eager makes it as a view with its conjugate or negative bit set;
        is_inner: of a value that the program never has; lazy_step: the operator, and of what.
    is_custom: of a view, that an autograd function of the program's gives it its gradients.
    has_views: of a base, that views of it were made for which autograd asks it whether they need
        gradients.
    inference: of a base, whether it is an inference tensor; None before it has a fake tensor. Views
        are what their base is, whatever mode they are made in.
    """

    base: Place | None = None
    parent: Place | None = None
    step: Step | None = None
    version = 0
    input_index = -1
    history: Value | None = None
    tracked_write = True
    shares_memory = False
    new_leaf = False
    data_step = -1
    given_at = -1
    forgets_views = forgets_itself = is_piece = refuses_gradients = False
    asks_view = may_be_view = is_lazy = is_inner = has_views = is_custom = False
    lazy_step: tuple[torch._ops.OpOverload, Place] | None = None
    inference: bool | None = None

    def __init__(
        self, type: TensorType, value: Value, offset: int = 0, tracks_gradient: bool = False
    ) -> None:
        self.type = type
        self.value = value
        self.offset = offset
        self.tracks_gradient = tracks_gradient

    def view(
        self, type: TensorType, value: Value, offset: int, step: Step, tracks_gradient: bool
    ) -> Place:
        """The place that `step` makes from this one."""
        base = self.base
        if base is None:
            base = self
        elif tracks_gradient:
            tracks_gradient = self.tracks_gradient
        place = Place(type, value, offset, tracks_gradient)
        place.base = base
        place.parent = self
        place.step = step
        place.version = base.version
        base.has_views = base.has_views or not is_detached(place)
        return place


place_of: Callable[[torch.Tensor], Place] = attrgetter("place")
"""The place of a fake tensor; raises AttributeError for another."""


def is_detached(place: Place) -> bool:
    """Whether autograd does not see writes to the place: `x.detach()` on the way to it."""
    walk: Place | None = place
    while walk is not None and walk.step is not None:
        if walk.step.op is aten.detach.default:
            return True
        walk = walk.parent
    return False


class TracedTensor(torch.Tensor):
    """A tensor without data. `place` says what it is in the trace that made it."""

    __slots__ = ("place",)
    place: Place
    _is_buffer: bool  # of one that stands for a buffer

    __torch_function__ = disabled_torch_function

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: object, types: object, args: object = (), kwargs: object = None
    ) -> bool:
        if op is aten._has_compatible_shallow_copy_type.default:
            return True  # asked by `become`
        raise Untraceable(f"{op}: a fake tensor was used outside the trace that made it")

    @property
    def data(self) -> torch.Tensor:
        """As `Tensor.data`; assigning to it would change memory behind the trace's back."""
        data: torch.Tensor = _TENSOR_DATA.__get__(self)
        return data

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        raise Untraceable("assignment to `.data` replaces the memory of a tensor")

    # Python code that PyTorch runs by itself reads sizes here; where none is symbolic the answers
    # are C++'s own.
    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """As `Tensor.shape`; symbolic sizes as programs see them."""
        for size in self.place.type.shape:
            if type(size) is not int:
                return torch.Size(map(program_value, self.place.type.shape))
        shape: torch.Size = _TENSOR_SHAPE.__get__(self)
        return shape

    def size(self, dim: int | None = None) -> Any:
        """As `Tensor.size`."""
        return self.shape if dim is None else self.shape[_placed(dim, self)]

    def stride(self, dim: int | None = None) -> Any:
        """As `Tensor.stride`."""
        steps = tuple(map(program_value, self.place.type.stride))
        return steps if dim is None else steps[_placed(dim, self)]

    def numel(self) -> Any:
        """As `Tensor.numel`."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> Any:  # type: ignore[override]
        """As `Tensor.nbytes`."""
        return self.numel() * self.itemsize

    def storage_offset(self) -> Any:
        """As `Tensor.storage_offset`."""
        return program_value(self.place.offset)

    def become(self, place: Place) -> None:
        """Turn into a fake tensor for another place: `squeeze_`, `transpose_` and their like."""
        _TENSOR_DATA.__set__(self, new_fake(place))
        self.place = place

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"TracedTensor({self.place.type}, value={self.place.value})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise Untraceable("a fake tensor cannot be pickled or copied")


_TENSOR_DATA: Any = private.TensorBase.data
_TENSOR_SHAPE: Any = private.TensorBase.shape


def _placed(dim: int, tensor: torch.Tensor) -> int:
    rank = max(tensor.dim(), 1)
    if not -rank <= dim < rank or not tensor.dim():
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], "
            f"but got {dim})"
        )
    return dim


def new_fake(place: Place, requires_grad: bool = False) -> TracedTensor:
    """A fake tensor for a place: an inference tensor where eager makes one."""
    base = place.base or place
    mode = torch.is_inference_mode_enabled()
    if base.inference is None:
        base.inference = mode
    if base.inference is mode:
        return _new_fake(place, requires_grad)
    with torch.inference_mode(base.inference):
        return _new_fake(place, requires_grad)


def _new_fake(place: Place, requires_grad: bool) -> TracedTensor:
    type = place.type
    fake: TracedTensor = make_wrapper(
        TracedTensor,
        type.shape,
        type.stride,
        place.offset,
        dtype=type.dtype,
        device=type.device,
        requires_grad=requires_grad,
        storage_size=0,
    )
    forbid_data_pointer(fake)
    fake.place = place
    return fake


@unseen_by_other_compilers
class _Passing(AutogradFunction):
    @staticmethod
    def forward(ctx: object, fake: TracedTensor) -> TracedTensor:
        return new_fake(fake.place)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def apart(tensor: object) -> object:
    """What a node of autograd keeps of a fake tensor: another one, since a node that saves its own
    result and that result would keep each other alive."""
    return new_fake(tensor.place) if type(tensor) is TracedTensor else tensor


def with_history(fake: TracedTensor) -> TracedTensor:
    """A fake tensor for the same place, behind a node of autograd's that passes gradients on."""
    made: TracedTensor = _Passing.apply(fake)
    return made


def _needs_data(name: str) -> Callable[..., object]:
    def method(self: TracedTensor, *args: object, **kwargs: object) -> NoReturn:
        raise DataDependent(f"Tensor.{name}", "it reads the memory of a tensor")

    method.__name__ = name
    return method


def _refused(name: str) -> NoReturn:
    raise Untraceable(f"Tensor.{name}: nothing would keep its answer true at later calls")


def _refused_method(name: str) -> Callable[..., object]:
    def method(self: TracedTensor, *args: object, **kwargs: object) -> NoReturn:
        _refused(name)

    method.__name__ = name
    return method


def _refused_attribute(name: str) -> property:
    return property(lambda self: _refused(name))


# `__repr__` stays harmless, for messages; what a program would print needs the data.
_READING_DATA = frozenset(
    {
        "__str__",
        "__format__",
        "__deepcopy__",
        "numpy",
        "tolist",
        "data_ptr",
        "untyped_storage",
        "storage",
        "_typed_storage",
        "__array__",
        "__dlpack__",
        "share_memory_",
    }
)
# Python, and code of PyTorch's that registers hooks, reads and writes these of fake tensors.
_LEFT = frozenset({"__dict__", "__weakref__", "_backward_hooks", "_post_accumulate_grad_hooks"})
for _name in _READING_DATA:
    setattr(TracedTensor, _name, _needs_data(_name))
# Whoever asks a fake tensor what no row of the table knows is refused, Python code of PyTorch's
# that
# is called whole included.
for _name in set(unknown_names(torch.Tensor)) - _READING_DATA - _LEFT:
    _is_method = callable(getattr(torch.Tensor, _name, None))
    setattr(TracedTensor, _name, (_refused_method if _is_method else _refused_attribute)(_name))
