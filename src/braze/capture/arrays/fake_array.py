"""The fake array of an array of NumPy's; what is done to it is in `array_methods.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.compat.numpy.interface import ARRAY

_LONGEST_ITERATION = 1024


@final
class FakeArray:
    """An array or a scalar of NumPy's whose values the graph computes.

    like: what NumPy would have, with other values. base: the array of which it is a view that no
    tensor can be (its strides are negative): then `_tensor` is a copy, made at `version` of the
    base's memory.
    """

    __slots__ = ("_tensor", "arrays", "base_array", "like", "version")

    def __init__(self, arrays: object, tensor: object, like: object, base: Any = None) -> None:
        put = object.__setattr__
        put(self, "arrays", arrays)
        put(self, "_tensor", tensor)
        put(self, "like", like)
        put(self, "base_array", base)
        put(self, "version", -1 if base is None else memory_of(base._tensor).version)

    def __getattr__(self, name: str) -> Any:
        if hasattr(self.like, name):
            raise refusal(f"{type(self.like).__name__}.{name}")
        kind = type(self.like)
        label = "numpy.ndarray" if kind is ARRAY else f"numpy.{kind.__name__}"
        raise ProgramRaised(AttributeError(f"{label!r} object has no attribute {name!r}"))

    def __setattr__(self, name: str, value: object) -> None:
        raise refusal(f"setting ndarray.{name}")

    def __delattr__(self, name: str) -> None:
        raise refusal(f"deleting ndarray.{name}")

    def __hash__(self) -> int:
        raise refusal("hash() of an array")

    def __bool__(self) -> bool:
        raise BreakRequested("data-dependent-branch", "the truth of an array")

    def __len__(self) -> int:
        try:
            return len(self.like)
        except TypeError as error:
            raise ProgramRaised(error) from None

    def __iter__(self) -> Iterator[object]:
        if self.is_scalar or not self.like.ndim:
            raise refusal("iterating over an array of no dimension")
        if len(self.like) > _LONGEST_ITERATION:
            raise refusal("iterating over a long array")
        return iter([self.arrays.operator("__getitem__", self, i) for i in range(len(self.like))])

    @property
    def is_scalar(self) -> bool:
        """Whether it is no array but one of NumPy's numbers."""
        return type(self.like) is not ARRAY


def memory_of(tensor: Any) -> Any:
    """What stands for the memory that a fake array lies in."""
    return tensor.place.base or tensor.place


def refusal(detail: str) -> BreakRequested:
    """The break before something that is not traced."""
    return BreakRequested("numpy", detail)
