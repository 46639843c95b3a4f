"""Defers the choice between view and copy where it depends on symbolic strides.

    x[:, 1::2].reshape(-1)    a view where x has an even number of columns, a copy where it is odd

One program for all sizes makes a copy at all of them, as long as nobody can tell the difference:
nothing of the copy leaves the frame, neither it nor what it was copied from is written to, its
strides are not read, and what is computed from it does not take on its strides. Where somebody can,
`CopySeen` is raised: the frame is captured again, and asks the sizes which of the two it is.

Both have their dimensions in the same order in memory, without zeros among the strides; the view
has gaps. An operator whose result depends on the order alone gives the same strides for both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, final

import torch

from braze.compat.torch.aten import aten
from braze.frozen import frozen
from braze.ir.graphs.graph import Value, values_in
from braze.ir.types import TensorType
from braze.shapes.conditions import known_less
from braze.shapes.demands import symbolic_among
from braze.tracing.fake_tensor import Place, TracedTensor
from braze.tracing.graph_recorder import GraphRecorder
from braze.tracing.op_schema import OperatorKind, describe_op
from braze.tracing.shape_rules.pointwise_strides import Shape
from braze.tracing.shape_rules.views import OpenQuestion, is_known_to_go_on, view_stride


@final
class CopySeen(BaseException):
    """The program can tell a copy from a view, and eager gives one at some sizes only."""


@final
@frozen
class FreeCopy:
    """copy: the memory of the copy. source: that which it was copied from, at its `version`."""

    copy: Place
    source: Place
    version: int


def free_copy(x: TracedTensor, sizes: Shape) -> TracedTensor | None:
    """A copy for `x.reshape(sizes)` where it depends on the sizes whether eager gives a view, and
    copies are free; else None."""
    kind = x.place.type
    facts = next((n.facts for n in symbolic_among((*kind.shape, *sizes))), None)
    if facts is None or facts.free_copies is None:
        return None
    try:
        view_stride(kind.shape, kind.stride, sizes, is_known_to_go_on)
        return None
    except OpenQuestion:
        if not _is_in_order(kind):
            return None
    copy = x.clone(memory_format=torch.contiguous_format)
    made: TracedTensor = aten._unsafe_view.default(copy, sizes)
    _note(facts.free_copies, made.place, x.place)
    return made


def _note(free_copies: list[object], made: Place, copied: Place) -> None:
    base, source = made.base or made, copied.base or copied
    base.may_be_view = True
    free_copies.append(FreeCopy(base, source, source.version))


def _is_in_order(kind: TensorType) -> bool:
    """Whether strides are known to get no larger from one dimension to the next, and none is 0."""
    steps = [step for size, step in zip(kind.shape, kind.stride) if size != 1]
    if any(type(step) is int and step == 0 for step in steps):
        return False
    return all(known_less(left, right) is False for left, right in itertools.pairwise(steps))


def is_free(x: object) -> bool:
    """Whether a value is a fake tensor whose memory is a free copy's."""
    return type(x) is TracedTensor and (x.place.base or x.place).may_be_view


def _tensors(values: Iterable[object]) -> Iterable[TracedTensor]:
    for value in values:
        if type(value) is TracedTensor:
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


# --- who sees it ----------------------------------------------------------------------------------

# Functions by whose results the two differ. (C++ calls `aten.view`, too, where it joins dimensions
# by a view if it can; a program that does it gets an error at some sizes.)
_SHOW = frozenset(
    "view view_as _reshape_alias contiguous as_strided is_contiguous is_set_to data_ptr".split()
)
# Functions that call no operator and tell nothing of memory.
_SHOW_NOTHING = frozenset(
    """size dim ndimension numel nelement element_size is_floating_point is_complex is_signed
    __len__ get_device is_inference is_conj is_neg is_same_size is_tensor has_names to type type_as
    float double half bfloat16 int long cpu cuda flatten ravel reshape reshape_as positive __pos__
    resolve_conj resolve_neg expand_as broadcast_to dropout feature_dropout alpha_dropout
    """.split()
)
# What these copy of a free copy may be a view of it in eager.
_MAY_COPY = frozenset("flatten ravel reshape reshape_as".split())


def check_call(
    free_copies: list[object],
    name: str,
    arguments: Sequence[object],
    result: object,
    did_nothing: bool,
) -> None:
    """CopySeen where a call shows what a free copy is. name: as a user writes it; did_nothing:
    whether it called no operator."""
    shown = next(filter(is_free, _tensors(arguments)), None)
    if shown is None:
        return
    names = frozenset(name.split("."))
    if names & _SHOW or (did_nothing and not names & _SHOW_NOTHING):
        raise CopySeen
    if names & _MAY_COPY and type(result) is TracedTensor and not is_free(result):
        _note(free_copies, result.place, shown.place)


# Functions whose answers differ between a tensor with a conjugate or negative bit, which is a view,
# and its numbers in memory of their own.
_TELL_LAZY = frozenset(
    """is_conj is_neg resolve_conj resolve_neg view_as_real _is_view is_set_to data_ptr storage
    untyped_storage storage_offset stride is_contiguous as_strided _version
    """.split()
)


def is_lazy(x: object) -> bool:
    """Whether a value is a fake tensor that eager has with its conjugate or negative bit set, or a
    view of one."""
    return type(x) is TracedTensor and (x.place.base or x.place).is_lazy


def shares_lazily(x: Any) -> bool:
    """Whether such a value has memory of the program's own."""
    return is_lazy(x) and not (x.place.base or x.place).is_inner


def note_inner(new_lazy: list[tuple[Place, Place]], arguments: Sequence[object]) -> None:
    """After a call: what it made lazily of values of its own (the conjugate that `ifft` ends with)
    shares memory with nothing that the program has. It may leave the frame as numbers."""
    given = {x.place.base or x.place for x in _tensors(arguments)}
    for place, base in new_lazy:
        place.is_inner = base not in given
    new_lazy.clear()


def check_lazy(name: str, arguments: Sequence[object]) -> None:
    """CopySeen where a call tells such a tensor from its numbers. name: as a user writes it."""
    if any(map(is_lazy, _tensors(arguments))) and not _TELL_LAZY.isdisjoint(name.split(".")):
        raise CopySeen


# Operators whose results' strides follow from the order of their arguments' strides; so do those of
# all pointwise ones.
ASK_ORDER = frozenset(
    f"aten::{name}"
    for name in """
    clone _unsafe_view _to_copy copy convolution convolution_backward mm addmm bmm baddbmm cat
    sum mean amax amin argmax argmin prod var std var_mean any all cumsum cumprod
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    native_batch_norm native_batch_norm_backward _native_batch_norm_legit
    embedding gather index_select index scatter constant_pad_nd repeat flip roll tril triu
    max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward
    _adaptive_avg_pool2d native_dropout bernoulli sort topk
    zeros_like ones_like full_like empty_like rand_like randn_like
    new_zeros new_ones new_full new_empty
    """.split()
)


# Views that not every layout has.
_NEEDS_A_LAYOUT = frozenset(
    {aten.view.dtype, aten.view_as_complex.default, aten.as_strided.default}
)
# Their gradients take the layout of the argument that they are of.
SHOWN_TO_AUTOGRAD = frozenset({"aten::mm", "aten::addmm"})


def check_unseen(
    recorder: GraphRecorder, free_copies: list[Any], results: Iterable[object]
) -> None:
    """CopySeen where what was recorded, or a result, shows what a free copy is."""
    for each in free_copies:
        if each.copy.version or each.source.version != each.version:
            raise CopySeen
    if any(map(is_free, results)):
        raise CopySeen
    values: set[Value] = {each.copy.value for each in free_copies}
    is_tracked = any(each.copy.tracks_gradient for each in free_copies)
    for op, args, kwargs, outputs, _, grad_enabled in recorder.calls:
        if values.isdisjoint(values_in((*args, *kwargs.values()))):
            continue
        if op in _NEEDS_A_LAYOUT or (
            is_tracked and grad_enabled and _name(op) in SHOWN_TO_AUTOGRAD
        ):
            raise CopySeen
        if describe_op(op).kind is OperatorKind.VIEW:
            values.update(out for out in outputs if out is not None)
        elif torch.Tag.pointwise not in op.tags and _name(op) not in ASK_ORDER:
            raise CopySeen


def _name(op: Any) -> str:
    return str(op._schema.name)
