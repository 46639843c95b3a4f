"""Results whose memory a graph cannot share with what they were made from, as eager does.

    y = x.as_strided((2,), (2,))   x is expanded and needs gradients: the backward of `as_strided`
    return y                       divides between the elements that share memory

Such a frame is left to eager, unless the view is made by steps of the program's that count no
elements of the storage.
"""

from __future__ import annotations

from collections.abc import Sequence

from braze.tracing.errors import Untraceable
from braze.tracing.fake_tensor import Place, TracedTensor
from braze.tracing.finalize import steps_of


def check_shared_memory(results: Sequence[object]) -> None:
    """Raise Untraceable where a result is such a one."""
    for result in results:
        if type(result) is not TracedTensor:
            continue
        base = result.place.base
        if base is None or base.input_index < 0 or not result.requires_grad:
            continue
        if _overlaps(base) and not steps_of(result.place):
            raise Untraceable("a view of an expanded input, whose gradient as_strided shares out")


# --- private ---------------------------------------------------------------------------------


def _overlaps(place: Place) -> bool:
    """Whether several elements of a place have the same memory, seen by its strides."""
    pairs = zip(place.type.shape, place.type.stride)
    return any(step == 0 and not (type(size) is int and size <= 1) for size, step in pairs)
