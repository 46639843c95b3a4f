"""Where the elements of a value are: in a buffer behind a map of coordinates, or computed."""

from __future__ import annotations

from typing import TypeAlias, final

import torch

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, BufferView
from braze.ir.origin import UNKNOWN, Origin
from braze.ir.types import Size
from braze.lower.coordinates import CoordinateMap
from braze.lower.rules import Body


@final
@frozen(eq=False)
class Stored:
    """Element `at` is element `index(at)` of `root`; index None is the identity.

    root is the whole buffer, or a window on it of other strides or another dtype; a window can be
    given to an ATen operator but not loaded from. is_strided: see `rules.View`.
    """

    root: BufferView
    index: CoordinateMap | None
    is_window: bool = False
    is_strided: bool = True

    @property
    def dtype(self) -> torch.dtype:
        return self.root.dtype


@final
@frozen(eq=False)
class ComputedElements:
    """Element `at` is `body(at)`, wherever it is read. stored: where memory holds it as well."""

    body: Body
    dtype: torch.dtype
    shape: tuple[Size, ...]
    stored: Stored | None = None
    origin: Origin = UNKNOWN


Place: TypeAlias = Stored | ComputedElements


def whole(buffer: Buffer) -> Stored:
    """All of a buffer."""
    view = BufferView(buffer, buffer.shape, buffer.stride, 0, buffer.dtype)
    return Stored(view, None)


def compose(outer: CoordinateMap, inner: CoordinateMap | None) -> CoordinateMap:
    """First `outer`, from the view's coordinates to the base's, then the base's own `inner`."""
    return outer if inner is None else lambda at: inner(outer(at))
