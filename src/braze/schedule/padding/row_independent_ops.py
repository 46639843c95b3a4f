"""Lists library calls that compute each row of a result from the same row of their arguments.

    operator            rows of the arguments                       rows of the results
    mm                  first: 0 | second: 1                        0 | 1
    bmm                 both: 0 | first: 1 | second: 2              0 | 1 | 2
    addmm, baddbmm      as the product; the sum's argument alike    as the product
    convolution, pools  the images: 0                               0
    attention           query, key and value: 0                     0
                        query: 2                                    2
    cumsum, sort, topk  another dimension than the operator's       the same

The row of an argument that has none is the same at every size. Anything else is refused: an
operator that is not in the table, random numbers, rows that meet. Causal attention, too: what it
leaves out is multiplied by zero, and a NaN behind the size would come through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from braze.ir.kernels.loops import BufferView, ExternCall
from braze.ir.kernels.padding import Rows
from braze.schedule.padding.row_mapping import Dependent, Seen

# Arguments by name, views as what is seen -> the dimension of the rows in every result, or None.
_Rule: TypeAlias = Callable[[Mapping[str, Any]], "int | None"]


def rows_of_results(call: ExternCall, see: Callable[[BufferView], Seen]) -> Rows | None:
    """The rows of a call's results, None where its arguments have none. Raises Dependent."""
    given = _bound(call, see)
    views = [v for value in given.values() for v in _flat(value) if isinstance(v, Seen)]
    sized = [v for v in views if v.rows is not None]
    if not sized:
        return None
    rule = _RULES.get(call.op._schema.name)
    if rule is None:
        raise Dependent(f"{call.op} is not known to compute rows by themselves")
    dim = rule(given)
    if dim is None:
        raise Dependent(f"{call.op} does not compute these rows by themselves")
    counts = {(v.rows.outer, v.rows.inner) for v in sized if v.rows and not v.anywhere}
    if len(counts) != 1:
        raise Dependent(f"{call.op} reads rows that are counted in several ways")
    ((outer, inner),) = counts
    return Rows(dim, outer, inner)


# --- private ---------------------------------------------------------------------------------


def _bound(call: ExternCall, see: Callable[[BufferView], Seen]) -> dict[str, object]:
    names = [argument.name for argument in call.op._schema.arguments]
    given = dict(zip(names, call.args)) | dict(call.kwargs)
    return {name: _with_seen(value, see) for name, value in given.items()}


def _with_seen(value: object, see: Callable[[BufferView], Seen]) -> object:
    if isinstance(value, BufferView):
        return see(value)
    if isinstance(value, (list, tuple)):
        return [_with_seen(one, see) for one in value]
    return value


def _flat(value: object) -> Sequence[object]:
    if isinstance(value, list):
        return [one for inner in value for one in _flat(inner)]
    return [value]


def _is_free(*values: Seen) -> bool:
    """Whether none of them has rows."""
    return all(value.rows is None for value in values)


def _product(first: Seen, second: Seen) -> int | None:
    """Of matrices, or of batches of them: the last two dimensions are multiplied."""
    last = first.dims - 1
    if first.dims == 3 and first.has_rows(0) and second.has_rows(0):
        return 0
    if first.has_rows(last - 1) and _is_free(second):
        return last - 1
    return last if second.has_rows(last) and _is_free(first) else None


def _mm(given: Mapping[str, Any]) -> int | None:
    return _product(given["self"], given["mat2"])


def _sum_with(first: str, second: str) -> _Rule:
    def rule(given: Mapping[str, Any]) -> int | None:
        dim = _product(given[first], given[second])
        added: Seen = given["self"]
        if dim is None or _is_free(added):
            return dim
        return dim if added.has_rows(dim - (given[first].dims - added.dims)) else None

    return rule


def _images(name: str, dims: int) -> _Rule:
    """Operators on a batch: the argument of that name has the rows, in its first dimension."""

    def rule(given: Mapping[str, Any]) -> int | None:
        image = given[name]
        rest = [v for key, value in given.items() if key != name for v in _flat(value)]
        others = [v for v in rest if isinstance(v, Seen)]
        return 0 if image.dims >= dims and image.has_rows(0) and _is_free(*others) else None

    return rule


def _fused_convolution(given: Mapping[str, object]) -> int | None:
    """A convolution with what follows it: what is added to the result has its rows."""
    added, rest = given["added"], {**given, "added": None}
    if isinstance(added, Seen) and not added.has_rows(0):
        return None
    return _images("image", 3)(rest)


def _attention(given: Mapping[str, Any]) -> int | None:
    query, key, value = given["query"], given["key"], given["value"]
    mask: Seen | None = given.get("attn_bias") or given.get("attn_mask")
    if given.get("dropout_p"):
        return None
    if all(x.has_rows(0) for x in (query, key, value)):
        return 0 if mask is None or _is_free(mask) or mask.has_rows(0) else None
    if not query.has_rows(2) or given.get("is_causal") or not _is_free(key, value):
        return None
    if mask is None or _is_free(mask):
        return 2
    return 2 if mask.dims == 4 and mask.has_rows(2) else None


def _whole_attention(given: Mapping[str, Any]) -> int | None:
    """A layer of attention, its products included."""
    names = ("query", "key", "value")
    rest = [v for key, v in given.items() if key not in names and isinstance(v, Seen)]
    of_batch = all(given[name].has_rows(0) for name in names)
    return 0 if of_batch and _is_free(*rest) and given.get("mask") is None else None


def _along(given: Mapping[str, Any]) -> int | None:
    """Operators along one dimension."""
    operand, dim = given["self"], given.get("dim", -1)
    if operand.rows is None or not isinstance(dim, int):
        return None
    place: int = operand.rows.dim
    return place if dim % max(operand.dims, 1) != place else None


_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "aten::mm": _mm,
        "aten::bmm": _mm,
        "aten::addmm": _sum_with("mat1", "mat2"),
        "aten::baddbmm": _sum_with("batch1", "batch2"),
        "aten::convolution": _images("input", 3),
        "braze::convolution": _fused_convolution,
        "aten::max_pool2d_with_indices": _images("self", 4),
        "aten::avg_pool2d": _images("self", 4),
        "aten::_adaptive_avg_pool2d": _images("self", 4),
        "aten::_scaled_dot_product_flash_attention": _attention,
        "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
        "aten::_scaled_dot_product_efficient_attention": _attention,
        "aten::_scaled_dot_product_cudnn_attention": _attention,
        "aten::_native_multi_head_attention": _whole_attention,
        "aten::cumsum": _along,
        "aten::cumprod": _along,
        "aten::sort": _along,
        "aten::topk": _along,
    }
)
