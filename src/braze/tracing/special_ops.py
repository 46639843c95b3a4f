"""Operators with traces of their own: literal data, undeclared writes, copies, random fills."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from braze.compat.torch.aten import aten
from braze.compat.torch.registered_ops import check_holds, check_positions, overwritten
from braze.ir.graphs.op_effects import is_irrevocable
from braze.ir.types import MASKS, TensorType
from braze.tracing.as_strided import strided_scatter
from braze.tracing.errors import DataDependent, Untraceable
from braze.tracing.fake_tensor import Place, Step, TracedTensor, new_fake
from braze.tracing.mutation_checks import have_common_elements
from braze.tracing.shape_rules.strides import contiguous_stride, is_contiguous, tensor_type
from braze.tracing.shape_rules.views import piece_count
from braze.tracing.symbolic.size_constants import known_size
from braze.tracing.symbolic.symbolic_float import holds_number, number_of, tensor_of_number
from braze.tracing.symbolic.unbacked_sizes import (
    DATA_SIZED,
    holds_integer,
    indexed_by_masks,
    integer_of,
)
from braze.tracing.unread_errors import RAISING, position_checks, raises_for_data

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer


SpecialCall = Callable[["Tracer", Any, tuple[Any, ...], dict[str, Any]], Any]
SPECIAL_CALLS: dict[Any, SpecialCall] = {}


def special_call(op: torch._ops.OpOverload) -> SpecialCall | None:
    """How the tracer answers an operator by itself, if it does. NotImplemented: it does not for
    these arguments. Of one whose effects nobody can take back the tracer's owner is told before."""
    found = SPECIAL_CALLS.get(op)
    if is_irrevocable(op):
        return _with_notice(found)
    return _behind_effects(found) if raises_for_data(op) else found


def _with_notice(found: SpecialCall | None) -> SpecialCall:
    def call(
        tracer: Tracer, op: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Any:
        if tracer.before_effects is not None:
            tracer.before_effects()
        tracer.acts = True
        with tracer.writes_pending():
            result = NotImplemented if found is None else found(tracer, op, args, kwargs)
            return tracer.record(op, args, kwargs) if result is NotImplemented else result

    return call


def _behind_effects(found: SpecialCall | None) -> SpecialCall:
    """Of an operator that raises for what tensors hold: behind one with effects nothing is run
    again, so the graph itself raises, in its place, and leaves what the program wrote before."""

    def call(
        tracer: Tracer, op: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Any:
        if not (tracer.acts and tracer.checks_unread):
            return NotImplemented if found is None else found(tracer, op, args, kwargs)
        if RAISING.get(op) is not None:
            keywords = tracer.bind_keywords(kwargs, False)[0] if kwargs else {}
            if checks := position_checks(tracer.recorder, op, tracer.bind(args), keywords):
                with tracer.writes_pending():
                    for holds in checks:
                        tracer.recorder.emit(check_positions, (holds,), {})
            return NotImplemented if found is None else found(tracer, op, args, kwargs)
        with tracer.writes_pending():
            result = NotImplemented if found is None else found(tracer, op, args, kwargs)
            return tracer.record(op, args, kwargs) if result is NotImplemented else result

    return call


def _special(*ops: object) -> Callable[[SpecialCall], SpecialCall]:
    def register(function: SpecialCall) -> SpecialCall:
        for op in ops:
            if op in SPECIAL_CALLS:
                raise ValueError(f"two special calls for {op}")
            SPECIAL_CALLS[op] = function
        return function

    return register


@_special(aten.lift_fresh.default, aten.lift.default, aten.lift_fresh_copy.default)
def _lift(
    tracer: Tracer, op: object, args: tuple[Any, ...], kwargs: dict[str, object]
) -> torch.Tensor:
    """`torch.tensor(data)`: the data becomes a constant."""
    (tensor,) = args
    return tensor if type(tensor) is TracedTensor else tracer.add_constant(tensor)


@_special(aten.copy_.default)
def _copy(tracer: Tracer, op: object, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    """`target.copy_(source)`: a cast and broadcast, then a new value in the target's strides."""
    target, source = tracer.fake_of(args[0]), args[1]
    if not isinstance(source, torch.Tensor):
        source = tensor_of_number(tracer, source)
    grad = torch.is_grad_enabled()
    (value,) = tracer.bind((source,))
    recorder = tracer.recorder
    wanted = target.place.type
    before = value
    value = recorder.convert(value, wanted)
    assert isinstance(value.type, TensorType) and isinstance(before.type, TensorType)
    expanded = value.type.shape != before.type.shape
    if value is before or expanded:
        value = recorder.emit(aten.clone.default, (value,), {})
    if grad and target.requires_grad:
        (old,), _ = tracer.bind_tracked((target,))
        value = recorder.emit(overwritten, (old, value), {})
        tracer.write(target, value, True)
        return args[0]
    tracer.write(target, value, grad and source.requires_grad)
    return args[0]


@_special(check_holds)
def _check(
    tracer: Tracer, op: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A compiler of somebody else's is given what the program says, and no more."""
    if tracer.replayable and not tracer.checks_unread:
        return None
    if not (tracer.acts and tracer.checks_unread):
        return NotImplemented
    with tracer.writes_pending():
        return tracer.record(op, args, kwargs)


@_special(aten.index.Tensor)
def _index(tracer: Tracer, op: object, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    """A boolean mask makes the result's size depend on data."""
    for index in args[1]:
        if index is not None and index.dtype in MASKS:
            if tracer.gives_sizes:
                return indexed_by_masks(tracer, args)
            raise DataDependent(str(op), "the result's size depends on a boolean mask")
    return NotImplemented


@_special(aten._local_scalar_dense.default)
def _scalar(tracer: Tracer, op: object, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    """The number in a literal (`torch.tensor(3).item()`) is known, and one made of sizes."""
    literal = tracer.literal_of(args[0])
    if literal is None:
        literal = tracer.known_data(args[0])
    if literal is not None:
        return literal.item()
    size = known_size(tracer, args[0])
    if size is not None:
        return size
    if holds_number(tracer, args[0]):
        return number_of(tracer, args[0])
    return integer_of(tracer, args[0]) if holds_integer(tracer, args[0]) else NotImplemented


for _op, _call in DATA_SIZED.items():
    _special(_op)(_call)


@_special(aten.equal.default)
def _equal(
    tracer: Tracer, op: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Whether two tensors that depend on no input are equal is known."""
    first = tracer.known_data(args[0])
    second = None if first is None else tracer.known_data(args[1])
    if first is None or second is None:
        return NotImplemented
    return torch.equal(first, second)


@_special(
    aten.native_batch_norm.default,
    aten.cudnn_batch_norm.default,
    aten.miopen_batch_norm.default,
)
def _batch_norm(
    tracer: Tracer, op: object, args: tuple[Any, ...], kwargs: dict[str, object]
) -> Any:
    """Training updates the running statistics, which the schema does not say: their versions stay
    what they are."""
    image, weight, bias, mean, variance, training, momentum, epsilon = args
    if not training:
        return tracer.call(
            aten._native_batch_norm_legit_no_training.default,
            (image, weight, bias, mean, variance, momentum, epsilon),
            {},
        ) + _reserve(tracer, op, image)
    if mean is None:
        return tracer.call(
            aten._native_batch_norm_legit.no_stats,
            (image, weight, bias, training, momentum, epsilon),
            {},
        ) + _reserve(tracer, op, image)
    places = tracer.fake_of(mean).place, tracer.fake_of(variance).place
    if have_common_elements(*places):
        raise Untraceable("batch_norm writes both statistics to one memory")
    *results, new_mean, new_variance = tracer.call(
        aten._native_batch_norm_legit_functional.default, args, {}
    )
    tracer.write(mean, new_mean.place.value)
    tracer.write(variance, new_variance.place.value)
    return tuple(results) + _reserve(tracer, op, image)


@_special(aten.cudnn_batch_norm_backward.default, aten.miopen_batch_norm_backward.default)
def _library_batch_norm_backward(
    tracer: Tracer, op: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """The backward of a training batch norm by the library, in whose forward's place is another:
    what only the library's own forward keeps for it is not there."""
    image, gradient, weight, _, _, mean, deviation, epsilon = args[:8]
    return tracer.call(
        aten.native_batch_norm_backward.default,
        (gradient, image, weight, None, None, mean, deviation, True, epsilon, [True] * 3),
        {},
    )


@_special(aten._native_batch_norm_legit.default)
def _batch_norm_of_symbolic_sizes(
    tracer: Tracer, op: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """What torch 2.11 makes of a batch norm while sizes are symbolic."""
    return _batch_norm(tracer, aten.native_batch_norm.default, args, kwargs)


@_special(aten.as_strided_scatter.default)
def _as_strided_scatter(
    tracer: Tracer, op: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """In terms of elements: kernels do not keep the storage that its numbers count in."""
    made = strided_scatter(tracer, args, kwargs)
    return NotImplemented if made is None else made


_LAZY = {
    aten._conj.default: aten._conj_physical.default,
    aten._neg_view.default: aten.neg.default,
}


@_special(*_LAZY)
def _lazy_bit(
    tracer: Tracer, op: object, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """Fake tensors have no conjugate or negative bit, so the result is computed at once. It shares
    memory in eager only: a later write to either side is refused. Where the program sees which of
    the two it is, `CopySeen` is raised (`check_lazy`), and the frame is captured again."""
    if not tracer.computes_lazy:
        raise Untraceable("a lazily conjugated or negated tensor that is looked at")
    place = tracer.fake_of(args[0]).place
    (place.base or place).shares_memory = True
    result = tracer.call(_LAZY[op], args, kwargs)
    eager = place.type
    if result.place.type.stride != eager.stride:  # the numbers are dense, eager's view is as it was
        kind = tensor_type(eager.dtype, eager.shape, eager.stride, eager.device)
        made = Place(kind, result.place.value, tracks_gradient=result.place.tracks_gradient)
        result = new_fake(made)
    result.place.shares_memory = result.place.is_lazy = tracer.has_lazy = True
    result.place.lazy_step = op, place
    tracer.new_lazy.append((result.place, place.base or place))
    return result


# --- in-place changes of sizes ------------------------------------------------------------------

_IN_PLACE_VIEWS = {
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.transpose_.default: aten.transpose.int,
    aten.t_.default: aten.t.default,
    aten.as_strided_.default: aten.as_strided.default,
    aten.detach_.default: aten.detach.default,
}


@_special(*_IN_PLACE_VIEWS)
def _view_in_place(
    tracer: Tracer, op: object, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """`x.squeeze_()`: the same tensor object names a view of its memory from now on."""
    _refuse_input(tracer, op, args[0])
    view = tracer.view(_IN_PLACE_VIEWS[op], args, kwargs)
    args[0].become(view.place)
    return args[0]


@_special(aten.resize_.default, aten.resize_as_.default)
def _resize(
    tracer: Tracer, op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """Within the memory that the tensor has, a view; an empty tensor gets fresh memory."""
    target = args[0]
    shape = tuple(args[1].shape) if op is aten.resize_as_.default else tuple(args[1])
    if target.shape == shape:
        return target
    _refuse_input(tracer, op, target)
    wanted = kwargs.get("memory_format")
    if wanted not in (None, torch.contiguous_format):
        return NotImplemented
    described = target.place.type
    base = (target.place.base or target.place).type
    size = math.prod(shape)
    if size <= math.prod(base.shape) and is_contiguous(base.shape, base.stride):
        view = tracer.view(aten.as_strided.default, (target, shape, contiguous_stride(shape)), {})
        target.become(view.place)
    elif 0 in described.shape:
        options = {"dtype": described.dtype, "device": described.device}
        target.become(tracer.call(aten.empty.memory_format, (shape,), options).place)
    else:
        return NotImplemented
    return target


def _refuse_input(tracer: Tracer, op: object, target: Any) -> None:
    if tracer.real_of(target) is not None or type(target) is not TracedTensor:
        raise Untraceable(f"{op} changes the sizes of an input of the graph")


def _reserve(tracer: Tracer, op: object, image: TracedTensor) -> tuple[object, ...]:
    """cudnn_batch_norm returns a fourth tensor, of bytes that only its backward reads."""
    if op is not aten.cudnn_batch_norm.default:
        return ()
    if not tracer.replayable:
        raise Untraceable("cudnn_batch_norm in a trace that holds its own backward")
    return (
        tracer.call(
            aten.empty.memory_format,
            ((0,),),
            {"dtype": torch.uint8, "device": image.place.type.device},
        ),
    )


# --- pieces of operators that return several views ------------------------------------------------


def _unbind_piece(type: TensorType, args: Any, kwargs: dict[str, object], index: int) -> Step:
    return Step(aten.select.int, (args[0] if args else 0, index), {})


def _split_piece(type: TensorType, args: Any, kwargs: dict[str, object], index: int) -> Step:
    size = args[0]
    dim = args[1] if len(args) > 1 else 0
    if not isinstance(size, (int, torch.SymInt)):
        start = sum(size[:index])
        return Step(aten.slice.Tensor, (dim, start, start + size[index]), {})
    total: Any = type.shape[dim]
    is_last = not total or index == piece_count(total, size) - 1
    return Step(
        aten.slice.Tensor, (dim, size * index, total if is_last else size * (index + 1)), {}
    )


SPECIAL_VIEW_PIECES: dict[Any, Callable[..., Step]] = {
    aten.unbind.int: _unbind_piece,
    aten.split.Tensor: _split_piece,
    aten.split_with_sizes.default: _split_piece,
}
