"""Keeps data-dependent errors of operators whose results are not, or not fully, read.

    x.index_select(0, i)                  %2 = ge(%i, 0) ... all(...)
    return x * 4                    ->    check(%2)
                                          return x * 4

Eager raises where it runs the operator. A graph has no node for what nobody reads, and a kernel
checks the positions that it reads. So a check of the positions alone is added, which raises before
anything is written; the frame then runs eagerly, and the program sees eager's exception where it
was raised. Of an operator whose check is not written out here, the result is kept: all of it is
computed. Nothing is added for positions that are known and in range, nor on a device, where eager
stops the device, some time later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch

from braze.compat.torch.ambient_state import call_untraced
from braze.compat.torch.aten import aten, named_operators
from braze.compat.torch.registered_ops import NAMESPACE, check_holds, keep_whole
from braze.ir.graphs.graph import Constant, Mutation, Output, Value
from braze.ir.graphs.op_effects import has_effects
from braze.ir.graphs.random_ops import is_random
from braze.ir.types import MASKS, TensorType
from braze.tracing.constant_folding import known_data
from braze.tracing.graph_recorder import Call, GraphRecorder
from braze.tracing.op_schema import OperatorKind, describe_op

_LINEAR_ALGEBRA = ("aten::linalg_", "aten::_linalg_", "aten::cholesky")
_Emit: TypeAlias = Callable[..., Value]


def with_checks(
    recorder: GraphRecorder,
    constants: Sequence[Constant],
    outputs: Sequence[Output],
    mutations: Sequence[Mutation],
) -> None:
    """Add to a recorder's calls the checks of those whose results are not read as a whole."""
    calls = recorder.calls
    if RAISING.keys().isdisjoint([call[0] for call in calls]):
        return
    whole = {output.value for output in outputs}
    whole.update(output.alias.base for output in outputs if output.alias is not None)
    whole.update(mutation.value for mutation in mutations)
    unread: dict[int, Call] = {}
    inside = {number for begin, end in recorder.regions for number in range(begin, end)}
    for number in range(len(calls) - 1, -1, -1):
        op, args, kwargs, results = calls[number][:4]
        is_whole = has_effects(op) or any(value in whole for value in results)
        if not is_whole and op in RAISING and number not in inside:
            unread[number] = calls[number]
        if is_whole and _reads_all(op):
            _add((args, tuple(kwargs.values())), whole)
    if unread:
        known = {constant.value: constant.tensor for constant in constants}
        # The tracer is active here: it would record what is computed of data that is known, and the
        # calls of meta kernels by which result types are inferred.
        made = {
            number: call_untraced(_checks, (recorder, known, call), {})
            for number, call in unread.items()
        }
        recorder.calls = [
            one for number, call in enumerate(calls) for one in (call, *made.get(number, ()))
        ]


def raises_for_data(op: torch._ops.OpOverload) -> bool:
    """Whether an operator of ATen's raises for what tensors hold."""
    name = op._schema.name
    return op in RAISING or is_random(op) or name.startswith(_LINEAR_ALGEBRA)


def position_checks(
    recorder: GraphRecorder, op: object, args: Sequence[object], kwargs: dict[str, object]
) -> list[Value]:
    """The conditions under which an operator does not raise that looks at positions, on the CPU."""
    positions, found = RAISING[op], []
    assert positions is not None
    for value, low, high, other in positions(args, kwargs):
        kind = value.type
        if isinstance(kind, TensorType) and kind.device.type == "cpu" and 0 not in kind.shape:
            found.append(_condition(recorder.emit, value, low, high, other))
    return found


# --- what is read ----------------------------------------------------------------------------

# Of what these give each element needs each element of their operands, or some other does.
_READS_ALL = frozenset(
    "view _unsafe_view _reshape_alias permute transpose t unsqueeze squeeze expand detach alias "
    "clone contiguous _to_copy cat stack sum mean amax amin max min argmax argmin prod var std "
    "var_mean std_mean all any norm linalg_vector_norm logsumexp softmax log_softmax _softmax "
    "_log_softmax cumsum sort flip roll mm bmm addmm baddbmm mv dot native_layer_norm "
    "native_group_norm _fused_rms_norm native_batch_norm convolution native_dropout where "
    "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu mse_loss "
    "l1_loss_forward smooth_l1_loss huber_loss".split()
)
_NOT_POINTWISE = frozenset(
    "copy fill full_like zeros_like ones_like empty_like rand_like randn_like".split()
)


def _reads_all(op: Any) -> bool:
    name = op._schema.name.partition("::")[2]
    if name in _READS_ALL or op.namespace not in ("aten", NAMESPACE):
        return True
    return torch.Tag.pointwise in op.tags and name not in _NOT_POINTWISE


def _add(arguments: Iterable[Any], found: set[Any]) -> None:
    for argument in arguments:
        if type(argument) is Value:
            found.add(argument)
        elif isinstance(argument, (tuple, list)):
            _add(argument, found)


# --- the checks ------------------------------------------------------------------------------


def _checks(recorder: GraphRecorder, known: dict[Value, torch.Tensor], call: Call) -> list[Call]:
    """The calls that check what an operator's tensors hold; none where that is known."""
    op, args, kwargs, results, origin, _ = call
    kept, recorder.calls = recorder.calls, []
    here, recorder.origin = recorder.origin, origin
    try:
        positions = RAISING[op]
        if positions is None:
            for value in results[:1]:
                recorder.emit(keep_whole, (value,), {})
            return recorder.calls
        for value, low, high, other in positions(args, kwargs):
            kind = value.type
            if not isinstance(kind, TensorType) or kind.device.type != "cpu" or 0 in kind.shape:
                continue
            recorder.calls, made = kept, recorder.calls
            data = known_data(recorder, dict(known), value)
            recorder.calls = made
            if data is None or not _is_inside(data, low, high, other):
                holds = _condition(recorder.emit, value, low, high, other)
                recorder.emit(check_holds, (holds,), {})
        return recorder.calls
    finally:
        recorder.calls, recorder.origin = kept, here


def _is_inside(data: torch.Tensor, low: Any, high: Any, other: int | None) -> bool:
    if any(type(end) is not int for end in (low, high) if end is not None):
        return False
    inside = torch.ones_like(data, dtype=torch.bool)
    if low is not None:
        inside &= data >= low
    if high is not None:
        inside &= data < high
    if other is not None:
        inside = inside | (data == other) if low is not None else data != other
    return bool(inside.all())


def _condition(emit: _Emit, value: Value, low: object, high: object, other: int | None) -> Value:
    """Whether all elements are in [low, high), or `other`; without ends: are not `other`."""
    if low is None:
        holds = emit(aten.ne.Scalar, (value, other), {})
    else:
        above = emit(aten.ge.Scalar, (value, low), {})
        below = emit(aten.lt.Scalar, (value, high), {})
        holds = emit(aten.logical_and.default, (above, below), {})
        if other is not None:
            is_other = emit(aten.eq.Scalar, (value, other), {})
            holds = emit(aten.logical_or.default, (holds, is_other), {})
    return emit(aten.all.default, (holds,), {})


# --- the operators ---------------------------------------------------------------------------

# The tensors that an operator looks at, each with the ends of what they may hold (None: any), and
# one number that they may hold as well, or where there are no ends, may not.
_Positions: TypeAlias = Callable[[Sequence[Any], Any], Iterable[tuple[Value, Any, Any, int | None]]]


def _along_dimension(args: Sequence[Any], kwargs: object) -> Iterable[Any]:
    """`gather(self, dim, index)`, `scatter(self, dim, index, ...)`: from the start only."""
    shape, dim, index = args[0].type.shape, args[1], args[2]
    yield index, 0, shape[dim] if shape else 1, None


def _filled(args: Sequence[object], kwargs: object) -> Iterable[Any]:
    """`index_fill(self, dim, index, value)`: from either end."""
    for index, _, size, other in _along_dimension(args, kwargs):
        yield index, -size, size, other


def _rows(args: Sequence[Any], kwargs: object) -> Iterable[Any]:
    """`embedding(weight, indices)`."""
    yield args[1], 0, args[0].type.shape[0], None


def _flat(args: Sequence[Any], kwargs: object) -> Iterable[Any]:
    """`take(self, index)`, `put(self, index, source)`: of all elements, from either end."""
    total = 1
    for size in args[0].type.shape:
        total = size * total
    yield args[1], -total, total, None


def _advanced(args: Sequence[Any], kwargs: object) -> Iterable[Any]:
    """`index(self, indices)`, `index_put(self, indices, values)`: from either end."""
    for size, index in zip(args[0].type.shape, args[1]):
        if index is not None and index.type.dtype not in MASKS:
            yield index, -size, size, None


def _classes(args: Sequence[Any], kwargs: object) -> Iterable[Any]:
    """`nll_loss_forward(self, target, weight, reduction, ignore_index)`."""
    shape = args[0].type.shape
    yield args[1], 0, shape[1 if len(shape) > 1 else 0], args[4]


def _divisors(args: Sequence[object], kwargs: object) -> Iterable[Any]:
    """`floor_divide(self, other)` of integers: not zero."""
    if type(args[1]) is Value and not _holds_fractions(args[0]) and not _holds_fractions(args[1]):
        yield args[1], None, None, 0


def _sorters(args: Sequence[Any], kwargs: Any) -> Iterable[Any]:
    """`searchsorted(sorted_sequence, self, sorter=...)`: from the start only."""
    if kwargs.get("sorter") is not None:
        yield kwargs["sorter"], 0, args[0].type.shape[-1], None


def _holds_fractions(argument: object) -> bool:
    if type(argument) is not Value:
        return isinstance(argument, float)
    kind = argument.type
    return not isinstance(kind, TensorType) or kind.dtype.is_floating_point or kind.dtype.is_complex


def _rounded_divisors(args: Sequence[object], kwargs: Any) -> Iterable[Any]:
    """`div(self, other, rounding_mode=...)`."""
    return _divisors(args, kwargs) if kwargs.get("rounding_mode") is not None else ()


_ROWS: tuple[tuple[_Positions | None, str], ...] = (
    (
        _along_dimension,
        "gather index_select index_add index_copy index_reduce scatter.src scatter.value "
        "scatter.reduce scatter.value_reduce scatter_add scatter_reduce.two",
    ),
    (_filled, "index_fill.int_Scalar index_fill.int_Tensor"),
    (_rows, "embedding"),
    (_flat, "take put"),
    (_advanced, "index.Tensor _unsafe_index.Tensor index_put _unsafe_index_put"),
    (_classes, "nll_loss_forward nll_loss2d_forward"),
    (_divisors, "floor_divide remainder.Tensor remainder.Scalar_Tensor fmod.Tensor"),
    (_rounded_divisors, "div.Tensor_mode"),
    (_sorters, "searchsorted.Tensor"),
    (
        None,
        "binary_cross_entropy _embedding_bag _embedding_bag_forward_only max_unpool2d "
        "max_unpool3d masked_scatter lu_unpack multilabel_margin_loss_forward "
        "multi_margin_loss _linalg_svd linalg_eig cholesky cholesky_inverse linalg_lu_solve "
        "masked_fill.Tensor _linalg_eigh _linalg_eigvals linalg_pinv.atol_rtol_tensor histc "
        "segment_reduce histogram.bins_tensor histogram.bin_ct _histogramdd_from_bin_tensors "
        "_histogramdd_from_bin_cts _histogramdd_bin_edges "
        "fake_quantize_per_channel_affine_cachemask",
    ),
)


def _table() -> dict[object, _Positions | None]:
    found: dict[Any, _Positions | None] = {}
    for positions, names in _ROWS:
        for op in named_operators(names).values():
            assert describe_op(op).kind is OperatorKind.FUNCTIONAL, op
            found[op] = positions
    return found


RAISING = _table()
