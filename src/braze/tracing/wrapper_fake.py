"""Fakes of wrapper subclasses: tensors whose class intercepts operators (`__torch_dispatch__`).

A wrapper has metadata of its own and no memory; what it is made of are attributes that its class
reads. Operators on it come to the tracer's `intercept`, which runs the class's Python code on the
fakes of its attributes, so that a graph holds operators on plain tensors alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn, final

import torch

from braze.compat.torch.dispatcher import disabled_torch_function, make_wrapper
from braze.tracing.errors import Untraceable


@final
class WrapperFake(torch.Tensor):
    """What stands for a tensor of a wrapper subclass: its metadata as eager has it, no data.

    outer_class: its class, as the program sees it.
    attributes: what the program set on it, by name; of an input, what was set in this frame.
    real: the input that it stands for; None for one that the program made.
    making: the arguments of `Tensor._make_wrapper_subclass` that made it, behind the class.
    """

    __slots__ = ("attributes", "making", "outer_class", "real")
    outer_class: type
    attributes: dict[str, Any]
    real: torch.Tensor | None  # type: ignore[assignment]
    making: tuple[tuple[Any, ...], dict[str, Any]]

    __torch_function__ = disabled_torch_function

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: object, types: object, args: object = (), kwargs: object = None
    ) -> object:
        raise Untraceable(f"{op} of a tensor subclass, outside of the trace")

    @property
    def place(self) -> NoReturn:
        """Raises Untraceable: a wrapper has no memory of its own."""
        raise Untraceable(f"the memory of a {self.outer_class.__qualname__}")

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"WrapperFake({self.outer_class.__qualname__})"


def new_wrapper(
    outer_class: type, real: torch.Tensor | None, *args: object, **kwargs: object
) -> Any:
    """A fake of a class, by the arguments of `Tensor._make_wrapper_subclass` behind it."""
    fake = make_wrapper(WrapperFake, *args, **kwargs)
    fake.outer_class, fake.real, fake.attributes = outer_class, real, {}
    fake.making = args, kwargs
    return fake


def wrappers_in(values: Any) -> Iterator[WrapperFake]:
    """The fakes of wrappers among call arguments, and in lists, tuples and dicts there."""
    for value in values:
        cls = type(value)
        if cls is WrapperFake:
            yield value
        elif cls is list or cls is tuple:
            yield from wrappers_in(value)
        elif cls is dict:
            yield from wrappers_in(value.values())


def holds_wrapper(values: object) -> bool:
    """Whether a wrapper's fake is among call arguments."""
    return next(wrappers_in(values), None) is not None
