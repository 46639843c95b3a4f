"""Types of the values in a graph: what is known of a tensor or a scalar without its data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, final

import torch

from braze.frozen import frozen
from braze.shapes.expr import Expr, Symbol

Size: TypeAlias = int | Expr


def known_sizes(sizes: Iterable[Size]) -> tuple[int, ...] | None:
    """The sizes where all are numbers, None where one is symbolic."""
    numbers = []
    for size in sizes:
        if not isinstance(size, int):
            return None
        numbers.append(size)
    return tuple(numbers)


DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.bool: "b8",
    torch.complex32: "c32",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.float8_e4m3fn: "f8e4m3fn",
    torch.float8_e5m2: "f8e5m2",
    torch.float8_e4m3fnuz: "f8e4m3fnuz",
    torch.float8_e5m2fnuz: "f8e5m2fnuz",
}
DTYPES_BY_NAME: dict[str, torch.dtype] = {name: dtype for dtype, name in DTYPE_NAMES.items()}
# Of tensors that choose elements where they are true, when they are an index.
MASKS = frozenset({torch.bool, torch.uint8})


@final
@frozen
class TensorType:
    """Metadata of a strided tensor; prints as `f32[10, 3][3, 1]cpu`.

    shape: sizes; stride: in elements, not bytes. Both hold ints or symbolic expressions.
    """

    dtype: torch.dtype
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    device: torch.device
    requires_grad: bool = False

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        stride = ", ".join(map(str, self.stride))
        dtype = DTYPE_NAMES.get(self.dtype, str(self.dtype))
        return f"{dtype}[{shape}][{stride}]{self.device}"


@final
@frozen
class ScalarType:
    """A Python number computed by the graph or passed to it; prints as `int`, `float` or `bool`.

    symbol: what sizes name the number by from here on; prints as `int(u0)`.
    """

    python_type: type
    symbol: Symbol | None = None

    def __str__(self) -> str:
        name = self.python_type.__name__
        return name if self.symbol is None else f"{name}({self.symbol})"


ValueType: TypeAlias = TensorType | ScalarType
