"""Builds a call of `scaled_dot_product_attention`, and its backward, as graph nodes.

    Attention(query=%0, ..., masks=(Fill(%2, True, -inf),))
->
    %9 = all(%2, -1, True)                                          # rows that attend to nothing
    %10 = ... %2 where %9 is false ...
    %11, %12, ... = _scaled_dot_product_efficient_attention(%0, %1, %7, %10, ...)
    %8 = where(%9, nan, %11)

The call is really made, on fake tensors, so that PyTorch's own choice says which kernel it is
(flash,
memory-efficient, cuDNN), how heads are padded for it and what becomes of a mask.

**Rows that attend to nothing.** A softmax over nothing but -inf is NaN, and kernels give zeros, or
what they find. Where a mask may have such rows, kernels get it without them, and the rows are put
in behind: NaN; the mean of all values where masked scores are large negative numbers, of which all
are the same. Gradients are those of the program: NaN for all values of a head with such a row. Of
masks that are added, numbers beyond -1e30 leave no digit of the scores that they are added to:
rows of such are computed from a query of zeros and the mask less its largest number, since kernels
multiply by log2(e) and overflow. Those rows would have other gradients, so that attention with a
mask that is added stays as it is where gradients flow, unless the mask depends on no input, or is
one of zeros and one such number: then gradients go through the mean of all values to first order.

**Numbers that are no numbers.** Of finite scores the results are eager's. A NaN in a query or a key
gives NaN wherever eager does, and in some rows whose NaN a mask replaces in eager; one in a value
that a causal mask hides gives NaN in eager's other rows, by 0 * NaN, and none here: as in
`scaled_dot_product_attention`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import torch

from braze.compat.torch.autograd_engine import gradients, plain_autograd
from braze.frozen import frozen
from braze.ir.graphs.graph import Graph, Node, Value
from braze.ir.types import Size, known_sizes
from braze.rewrite.attention_pattern import ABSORBING, Added, Attention, Fill, Mask
from braze.rewrite.editing import type_of
from braze.shapes.binding import Sizes
from braze.shapes.expr import Expr, Symbol, as_expr, symbols
from braze.shapes.facts import Facts
from braze.shapes.symbolic import of_expression
from braze.tracing import DataDependent, Tracer, UnknownTensor, Untraceable
from braze.tracing.attention_masks import MaskKind, kind_of_mask
from braze.tracing.fake_tensor import apart
from braze.tracing.graph_recorder import node_of
from braze.tracing.symbolic.size_rewriter import Expressions, retraced

# What programs fill masked scores with, if not with -inf: no score comes near.
_FAR_BELOW = -1e9

_Tensors: TypeAlias = Mapping[Value, torch.Tensor]


@final
@frozen(eq=False)
class Masking:
    """What masks do together. causal: all are `is_causal`; masks: what is left to be given, if any.
    has_rows: there may be rows that attend to nothing."""

    causal: bool
    masks: tuple[Mask, ...]
    has_rows: bool


def masking(attention: Attention, data: Mapping[Mask, torch.Tensor], trains: bool) -> Masking | str:
    """What the masks do, or why no kernel does that. data: what is known of them; trains: gradients
    flow."""
    dtype = type_of(attention.query).dtype
    reason = next(filter(None, (_refusal(mask, dtype) for mask in attention.masks)), None)
    if reason is not None:
        return reason
    fill_masks = [mask for mask in attention.masks if isinstance(mask, Fill)]
    fills = {mask.amount for mask in fill_masks}
    added = [mask for mask in attention.masks if isinstance(mask, Added)]
    if len(fills) > 1 or (added and fills - {-torch.inf}):
        return "its masks stand for several numbers"
    if not attention.masks:
        return Masking(False, (), False)
    rows = known_sizes(attention.shape[-2:])
    if rows is not None and len(data) == len(attention.masks):
        return _known(attention, data, rows)
    if trains and (added or any(m.flows and m.amount == -torch.inf for m in fill_masks)):
        return "a mask that is added depends on inputs, and gradients flow"
    return Masking(False, attention.masks, True)


@final
@frozen(eq=False)
class AttentionCall:
    """What stands for attention.

    nodes: of which `result` is the value; names: their values that are inputs -> the graph's.
    computed: the result as it comes, [batch, heads, length, width], before it is laid out.
    backward: goes on in their numbering, from the result's gradient `tangent` to `gradients`, of
    the query, the keys and the values, in the shapes of the products' operands.
    """

    nodes: tuple[Node, ...]
    result: Value
    computed: Value
    names: Mapping[Value, Value]
    backward: tuple[Node, ...] = ()
    tangent: Value | None = None
    gradients: tuple[Value | None, ...] = (None, None, None)


# The gradients of query, keys and values that the same graph computes: ours are to be like them.
Wanted: TypeAlias = tuple[Value | None, ...]
NONE_WANTED: Wanted = (None, None, None)


def call_of(
    attention: Attention,
    found: Masking,
    sources: Sequence[Value],
    sizes: Sizes,
    trains: bool,
    wanted: Wanted = NONE_WANTED,
) -> AttentionCall | str:
    """What computes the result from `sources` (query, keys, values) and the masks; a text: why
    nothing does. trains: gradients flow."""
    masks = tuple(dict.fromkeys([mask.mask for mask in found.masks]))
    inputs = (*sources, *masks)  # of which several may be one: each has a gradient of its own
    live, facts = retraced(Graph(inputs, (), (), (), (), sizes))
    tracer = Tracer(replayable=False)
    is_symbolic = any(known_sizes((*type_of(v).shape, *type_of(v).stride)) is None for v in inputs)
    if not _symbols_of(attention.shape) <= facts.hints.keys():
        return "its sizes are symbols that its operands do not show"
    if is_symbolic:
        tracer.facts = facts
    tracer.origin = attention.softmax.origin
    trace = _Trace(attention, found, tracer, facts, trains)
    try:
        with plain_autograd(apart), torch.set_grad_enabled(trains), tracer:
            made = trace.run(inputs, live.inputs, wanted)
    except (DataDependent, UnknownTensor, Untraceable, NotImplementedError, RuntimeError) as error:
        return f"its call cannot be traced: {error}"
    if not is_symbolic:
        return made
    if facts.learned():
        return "its kernel asks for sizes that are not known"
    return _with_expressions(made, Expressions(facts))


def _symbols_of(sizes: Sequence[Size]) -> set[Symbol]:
    return {symbol for size in sizes for symbol in symbols(as_expr(size))}


def _with_expressions(call: AttentionCall, final_sizes: Expressions) -> AttentionCall:
    """The call with expressions for its symbolic sizes."""
    value = final_sizes.value
    return AttentionCall(
        nodes=tuple(map(final_sizes.node, call.nodes)),
        result=value(call.result),
        computed=value(call.computed),
        names={value(old): new for old, new in call.names.items()},
        backward=tuple(map(final_sizes.node, call.backward)),
        tangent=None if call.tangent is None else value(call.tangent),
        gradients=tuple([None if one is None else value(one) for one in call.gradients]),
    )


@final
@dataclass(slots=True)
class _Trace:
    """One call, made on fake tensors."""

    attention: Attention
    found: Masking
    tracer: Tracer
    facts: Facts
    trains: bool

    def run(
        self, inputs: Sequence[Value], living: Sequence[Value], wanted: Wanted
    ) -> AttentionCall:
        """inputs: the sources, then masks; living: the same, with sizes that answer."""
        attention, tracer = self.attention, self.tracer
        needs = [self.trains and (one is not None or not any(wanted)) for one in wanted]
        needs += [False] * (len(inputs) - len(needs))
        made = [
            tracer.add_input_of_type(replace(type_of(live), requires_grad=need))
            for live, need in zip(living, needs, strict=True)
        ]
        names = dict(zip(tracer.recorder.input_values, inputs, strict=True))
        shape = tuple(map(self._size, (*attention.shape, *_widths(attention))))
        tensors, masks = made[:3], dict(zip(inputs[3:], made[3:], strict=True))
        computed = _attention(attention, self.found, shape, tensors, masks, self.trains)
        result = self._dense(computed, attention.result)
        calls = tracer.recorder.calls
        nodes = tuple(map(node_of, calls))
        made_values = tracer.value_of(result), tracer.value_of(computed)
        if not any(wanted):
            return AttentionCall(nodes, *made_values, names)
        kind = replace(type_of(tracer.value_of(result)), requires_grad=False)
        tangent = tracer.add_input_of_type(kind)
        asked = [tensor for tensor, one in zip(tensors, wanted, strict=True) if one is not None]
        given = iter(gradients([result], [tangent], asked))
        with torch.no_grad():
            gave = [
                None if one is None else tracer.value_of(self._dense(next(given), one))
                for one in wanted
            ]
        backward = tuple(map(node_of, calls[len(nodes) :]))
        return AttentionCall(
            nodes, *made_values, names, backward, tracer.value_of(tangent), tuple(gave)
        )

    def _dense(self, tensor: torch.Tensor | None, like: Value) -> torch.Tensor:
        """The tensor in the shape of a value, row by row, or column by column where that is."""
        assert tensor is not None
        kind = type_of(like)
        *lead, rows, columns = map(self._size, kind.shape)
        if kind.stride[-1] == 1 or kind.stride[-2] != 1:
            return tensor.contiguous().view((*lead, rows, columns))
        across = tensor.transpose(-2, -1).contiguous().view((*lead, columns, rows))
        return across.transpose(-2, -1)

    def _size(self, number: object) -> Any:
        return of_expression(self.facts, number) if type(number) is Expr else number


# --- masks ---------------------------------------------------------------------------------------


def _refusal(mask: Mask, dtype: torch.dtype) -> str | None:
    """Why no kernel does what a mask does."""
    kind = type_of(mask.mask)
    if isinstance(mask, Fill):
        far = mask.amount <= max(_FAR_BELOW, torch.finfo(dtype).min)
        return None if far else f"masked scores are {mask.amount:g}, which scores may be"
    if kind.dtype != dtype:
        return "what is added to its scores has another dtype"
    return None


def _known(
    attention: Attention, data: Mapping[Mask, torch.Tensor], rows: tuple[int, ...]
) -> Masking | str:
    """What masks do that depend on no input. rows: queries and keys."""
    total = torch.zeros((), dtype=torch.float32, device="cpu")
    for mask in attention.masks:
        known = data[mask].to("cpu")
        if isinstance(mask, Fill):
            hidden = known if mask.where else ~known
            known = torch.where(hidden, -torch.inf, 0.0)
            total = total + known
        else:
            total = total + known.float() * mask.factor
    if bool(total.isnan().any()) or bool((total == torch.inf).any()):
        return "its mask holds numbers that no score survives"
    lowest = max(ABSORBING, torch.finfo(type_of(attention.query).dtype).min)
    total = torch.where(total <= lowest, -torch.inf, total)
    total = total.expand(torch.broadcast_shapes(total.shape, rows))
    if bool((total == -torch.inf).all(-1).any()):
        return "its mask has rows that attend to nothing"
    kind = kind_of_mask(total)
    masks = attention.masks if kind is MaskKind.OTHER else ()
    return Masking(kind is MaskKind.CAUSAL, masks, False)


def _hidden(found: Masking, lead: Sequence[object], tensors: _Tensors) -> torch.Tensor | None:
    """Which scores are hidden by masks of booleans, broadcast against (batch, heads, ...)."""
    hidden: torch.Tensor | None = None
    for mask in found.masks:
        if isinstance(mask, Fill):
            one = _with_heads(tensors[mask.mask], mask, lead)
            one = one if mask.where else ~one
            hidden = one if hidden is None else hidden | one
    return hidden


def _bias(found: Masking, lead: Sequence[object], tensors: _Tensors) -> torch.Tensor | None:
    """What is added to scores, likewise."""
    bias: torch.Tensor | None = None
    for mask in found.masks:
        if isinstance(mask, Added):
            one = _with_heads(tensors[mask.mask], mask, lead)
            one = one if mask.factor == 1 else one * mask.factor
            bias = one if bias is None else bias + one
    return bias


def _with_heads(tensor: torch.Tensor, mask: Mask, lead: Sequence[Any]) -> torch.Tensor:
    """A mask with four dimensions: one of three sees batch and heads as one."""
    while tensor.dim() < 2:
        tensor = tensor.unsqueeze(0)
    if tensor.dim() == 3 and len(mask.scores) == 3:
        several = _is_more_than_one(type_of(mask.mask).shape[0])
        outer = tuple(lead) if several else (1, 1)
        return tensor.reshape((*outer, tensor.shape[-2], tensor.shape[-1]))
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(0)
    return tensor


def _is_more_than_one(size: object) -> bool:
    return not (type(size) is int and size == 1)


# --- the call ------------------------------------------------------------------------------------


def _attention(
    attention: Attention,
    found: Masking,
    shape: Sequence[Any],
    sources: Sequence[torch.Tensor],
    tensors: _Tensors,
    trains: bool,
) -> torch.Tensor:
    """The result, [batch, heads, length, width of values]. shape: (batch, heads, length, count,
    width, width of values)."""
    *lead, length, count, width, out_width = shape
    query, keys, values = sources
    operands = (
        _with_rows(query.view((*lead, length, width))),
        _with_rows(keys.view((*lead, width, count)).transpose(-2, -1)),
        _with_rows(values.view((*lead, count, out_width))),
    )
    if not found.masks:
        return _call(attention, operands, None, found.causal)
    hidden, bias = _hidden(found, lead, tensors), _bias(found, lead, tensors)
    if bias is not None:
        bias = bias if hidden is None else torch.where(hidden, -torch.inf, bias)
        call = _with_bias if found.has_rows else _call
        return call(attention, operands, bias)
    assert hidden is not None
    if found.has_rows:
        return _with_fill(attention, operands, hidden, trains)
    return _call(attention, operands, ~hidden)


def _widths(attention: Attention) -> tuple[Size, Size]:
    """How long the rows of queries and keys are, and those of values."""
    return type_of(attention.query).shape[-1], type_of(attention.values).shape[-1]


_Operands: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _with_fill(
    attention: Attention, operands: _Operands, hidden: torch.Tensor, trains: bool
) -> torch.Tensor:
    """Behind masks of booleans, that may hide all of a row."""
    values = operands[2]
    empty = hidden.all(-1, keepdim=True)
    computed = _call(attention, operands, ~hidden | empty)
    fills = [mask for mask in attention.masks if isinstance(mask, Fill)]
    if any(mask.amount > -torch.inf for mask in fills):
        mean = values.mean(-2, keepdim=True)
        if trains and any(mask.flows for mask in fills):
            mean = mean + _slope(attention, operands, mean)
        return torch.where(empty, mean, computed)
    if not trains:
        return torch.where(empty, torch.nan, computed)
    # By which all values of a head get NaN for a gradient, where it has such a row, and else zero.
    weight = torch.zeros_like(empty.any(-2, keepdim=True), dtype=values.dtype)
    weight = weight.masked_fill(empty.any(-2, keepdim=True), torch.nan)
    return torch.where(empty, values.sum(-2, keepdim=True) * weight, computed)


def _slope(attention: Attention, operands: _Operands, mean: torch.Tensor) -> torch.Tensor:
    """Zeros, whose gradients are those of a softmax over scores that are all the same.

    That gives each of n values (1 + s_ij - mean_j s_ij) / n, to the first order in the scores s;
    with `mean` the mean of all values v: out_i = mean + sum_j s_ij (v_j - mean) / n, of which the
    sum is a product of the query and a small matrix.
    """
    query, keys, values = operands
    apart = (values - mean).detach() * (attention.scale / values.shape[-2])
    sloping = query @ (keys.transpose(-2, -1) @ apart)
    return sloping - sloping.detach()


def _with_bias(attention: Attention, operands: _Operands, bias: torch.Tensor) -> torch.Tensor:
    """With what is added to scores, of which rows may leave nothing."""
    query, keys, values = operands
    most = bias.amax(-1, keepdim=True)
    empty, far = most == -torch.inf, most <= ABSORBING
    bias = torch.where(far, torch.where(empty, 0.0, bias - most), bias)
    query = torch.where(far, 0.0, query)
    computed = _call(attention, (query, keys, values), bias)
    return torch.where(empty, torch.nan, computed)


def _call(
    attention: Attention,
    operands: _Operands,
    mask: torch.Tensor | None,
    causal: bool = False,
) -> torch.Tensor:
    query, keys, values = operands
    return torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=causal, scale=attention.scale
    )


def _with_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, its last dimension contiguous, as kernels want it."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
