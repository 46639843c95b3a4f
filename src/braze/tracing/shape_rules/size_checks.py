"""Sizes that CPU kernels reject although meta kernels accept them.

A check takes the operator's arguments, with sizes that are numbers, and raises what eager raises.
It is made before the meta kernel is asked, also by probing: sizes for which it raises are none that
a graph is compiled for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from braze.compat.torch.aten import aten
from braze.ir.types import MASKS
from braze.tracing.shape_rules.strides import Operand, broadcast_shape
from braze.tracing.shape_rules.views import wrap_dim


def check_sizes(op: torch._ops.OpOverload, args: tuple[object, ...]) -> None:
    """Raise what eager raises for sizes that the operator's meta kernel would take."""
    check = _CHECKS.get(op)
    if check is not None:
        check(op, *args)


# --- private -------------------------------------------------------------------------------------


def _nothing_to_fold(op: torch._ops.OpOverload, x: Operand, dim: int = 0, *rest: object) -> None:
    name = op._schema.name.removeprefix("aten::")
    if x.shape and x.shape[wrap_dim(dim, len(x.shape))] == 0:
        raise IndexError(f"{name}(): Expected reduction dim {dim} to have non-zero size.")


def _empty_image(op: torch._ops.OpOverload, x: Operand, *rest: object) -> None:
    if 0 in x.shape[1:]:
        raise RuntimeError(
            f"Non-empty {len(x.shape)}D data tensor expected but got a tensor with sizes "
            f"{list(x.shape)}"
        )


def _values_that_do_not_fit(
    op: torch._ops.OpOverload, x: Operand, indices: Any, values: Operand, *rest: object
) -> None:
    """As `index` has it: the indices' common shape where they are next to each other, else at the
    front. How many places a mask has is not known."""
    given = [(dim, i) for dim, i in enumerate(indices) if i is not None]
    if not given or any(i.dtype in MASKS for _, i in given):
        return
    common = broadcast_shape(tuple([i.shape for _, i in given]))
    dims = [dim for dim, _ in given]
    kept = [size for dim, size in enumerate(x.shape) if dim not in dims]
    place = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    wanted = (*kept[:place], *common, *kept[place:])
    missing = len(values.shape) - len(wanted)
    sizes = values.shape[max(missing, 0) :]
    fits = all(size == 1 for size in values.shape[: max(missing, 0)]) and all(
        size in (1, n) for size, n in zip(sizes, wanted[len(wanted) - len(sizes) :])
    )
    if not fits:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result of shape {list(wanted)}"
        )


def _target_larger_than_input(
    op: torch._ops.OpOverload, x: Operand, target: Operand, *rest: object
) -> None:
    found = broadcast_shape((x.shape, target.shape))
    if found != x.shape:
        raise RuntimeError(
            f"output with shape {list(x.shape)} doesn't match the broadcast shape {list(found)}"
        )


def _image_smaller_than_window(
    op: torch._ops.OpOverload, x: Operand, kernel: Any, *rest: object
) -> None:
    image, window = x.shape[-3:], tuple(kernel) * (3 // len(kernel))
    if any(size < n for size, n in zip(image, window)):
        shown = [
            " ".join(f"{n}: {s}" for n, s in zip(names, sizes))
            for names, sizes in ((("T", "H", "W"), image), (("kT", "kH", "kW"), window))
        ]
        raise RuntimeError(f"input image ({shown[0]}) smaller than kernel size ({shown[1]})")


def _labels_of_other_places(
    op: torch._ops.OpOverload, x: Operand, target: Operand, *rest: object
) -> None:
    places = (x.shape[0], *x.shape[2:])
    if len(places) == len(target.shape) == 3 and places != target.shape:
        raise RuntimeError(
            f"size mismatch (got input: {list(x.shape)} , target: {list(target.shape)}"
        )


_CHECKS: dict[Any, Callable[..., None]] = {
    **dict.fromkeys(
        (
            *(aten.max.dim, aten.min.dim, aten.mode.default),
            *(aten.median.dim, aten.nanmedian.dim),
        ),
        _nothing_to_fold,
    ),
    **dict.fromkeys(
        (
            *(aten.upsample_linear1d.default, aten.upsample_linear1d.vec),
            *(aten.upsample_bilinear2d.default, aten.upsample_bilinear2d.vec),
            *(aten.upsample_trilinear3d.default, aten.upsample_trilinear3d.vec),
        ),
        _empty_image,
    ),
    aten.avg_pool3d.default: _image_smaller_than_window,
    aten.index_put.default: _values_that_do_not_fit,
    aten.nll_loss2d_forward.default: _labels_of_other_places,
    aten.soft_margin_loss.default: _target_larger_than_input,
}
CHECKED = frozenset(_CHECKS)
