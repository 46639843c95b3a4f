"""Which loops give the bits that ATen's kernels give."""

from __future__ import annotations

from braze.ir.kernels.loops import Apply, Cast, Reduce, Scalar
from braze.ir.kernels.scalars import COMPUTE_DTYPES, walk

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
        elif node.op not in _WITHOUT_ROUNDING or _chooses_between_halves(node):
            return False
    return rounding <= 1


def _chooses_between_halves(node: Apply) -> bool:
    """Whether the greater or lesser of halves is taken: of zeros of both signs PyTorch's
    vectors on the CPU give the second, and what is left behind the vectors gives the first."""
    return node.op in ("maximum", "minimum") and any(
        isinstance(operand, Cast) and operand.operand.dtype in COMPUTE_DTYPES
        for operand in node.operands
    )
