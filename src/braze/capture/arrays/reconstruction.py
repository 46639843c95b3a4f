"""How arrays that leave a frame are made: with the memory of a tensor, or of another array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from braze.capture.arrays.fake_array import FakeArray
from braze.capture.frames.control_signals import CannotRebuild
from braze.compat.numpy.interface import array_of_tensor, scalar_of_tensor, view_of_array
from braze.ir.captured.frame import FromConstant, FromSource, NewCall, Recipe

if TYPE_CHECKING:
    from braze.capture.exit.reconstruction import Reconstructor


def array_recipe(writer: Reconstructor, value: FakeArray) -> Recipe:
    """The recipe of an array, or of a number of NumPy's. writer: of the other recipes."""
    source = value.arrays.interpreter.guard_context.source_of(value)
    if source is not None:
        return FromSource(source)
    if value._tensor.requires_grad:
        raise CannotRebuild("an array that gradients flow through")
    if value.is_scalar:
        return NewCall(scalar_of_tensor, (writer.recipe(value.arrays.tensor(value)),))
    like, base = value.like, value.base_array
    if base is not None:
        offset = _address(like) - _address(base.like)
        facts = (offset, like.shape, like.strides, like.flags.writeable)
        return NewCall(view_of_array, (writer.recipe(base), *map(FromConstant, facts)))
    tensor = value.arrays.tensor(value)
    made = NewCall(array_of_tensor, (writer.recipe(tensor), FromConstant(like.flags.writeable)))
    strides = tuple([int(n) * like.itemsize for n in tensor.stride()])
    if like.size and strides == like.strides:
        return made
    # Of what is empty, or where a dimension has one element, NumPy has strides of its own.
    facts = (0, like.shape, like.strides, like.flags.writeable)
    return NewCall(view_of_array, (made, *map(FromConstant, facts)))


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
