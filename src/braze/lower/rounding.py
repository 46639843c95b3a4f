"""Which loops give the bits that ATen's kernels give."""

from __future__ import annotations

from braze.ir.loops import Apply, Reduce, Scalar
from braze.ir.scalars import walk

# Float operators of which PyTorch's vectors and a compiler's give the same bits.
_ROUNDED_ALIKE = frozenset({"add", "sub", "mul", "truediv"})
_WITHOUT_ROUNDING = frozenset(
    "floor ceil trunc round isnan isinf signbit neg abs sign not copysign nextafter maximum "
    "minimum and or xor shl shr eq ne lt le gt ge where".split()
)


def rounds_like_eager(scalar: Scalar) -> bool:
    """At most one float operator that rounds, of a kind that every implementation rounds alike:
    with two, ATen may have fused a multiplication and an addition."""
    rounding = 0
    for node in walk(scalar):
        if isinstance(node, Reduce) and node.kind in ("sum", "prod"):
            return not node.dtype.is_floating_point
        if not isinstance(node, Apply) or not node.dtype.is_floating_point:
            continue
        if node.op in _ROUNDED_ALIKE:
            rounding += 1
        elif node.op not in _WITHOUT_ROUNDING:
            return False
    return rounding <= 1
