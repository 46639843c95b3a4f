"""Callables that recipes name: they rebuild what has no constructor of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from braze.compat.python.other_compilers import unseen_by_other_compilers
from braze.compat.torch.autograd_engine import AutogradFunction

_HEAP_TYPE = 1 << 9


def rebuild_iterator(kind: Any, state: object, *arguments: Any) -> Iterator[object]:
    """An iterator from what its `__reduce__` gave."""
    iterator: Any = kind(*arguments)
    if state is not None:
        iterator.__setstate__(state)
    return iterator


def rebuild_dict_iterator(view: Any, consumed: int) -> Iterator[object]:
    """An iterator over a dict or one of its views that has given so many items."""
    iterator: Iterator[Any] = iter(view)
    for _ in range(consumed):
        next(iterator)
    return iterator


class _Empty:
    """A sequence of nothing."""

    def __getitem__(self, index: int) -> Any:
        raise IndexError


def rebuild_getitem_iterator(kind: Any, owner: Any, index: int) -> Iterator[object]:
    """An iterator over an object with `__getitem__` alone, by `iter` or `reversed`."""
    if index < 0 and kind is iter:  # it has ended
        ended = iter(_Empty())
        return next(ended, ended)
    iterator: Any = kind(owner)
    iterator.__setstate__(index)
    return iterator


def rebuild_exception(
    kind: type[BaseException],
    arguments: tuple[object, ...],
    args: tuple[object, ...],
    cause: BaseException | None,
    fields: dict[str, object],
    attributes: dict[str, object],
) -> BaseException:
    """An exception without running an `__init__` of the program; what C code makes of the
    arguments (`errno`, `value`, `lineno`) it makes again. fields: what it keeps beside its dict,
    whose entries are `attributes`."""
    exception = kind.__new__(kind, *arguments)
    builtin = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    with contextlib.suppress(TypeError):  # the program's `__init__` gave its base other arguments
        builtin.__init__(exception, *arguments)  # type: ignore[misc]
    exception.args = args
    if cause is not None:
        exception.__cause__ = cause
    for name, value in fields.items():
        object.__setattr__(exception, name, value)
    object.__getattribute__(exception, "__dict__").update(attributes)
    return exception


def rebuild_leaf(
    data: torch.Tensor,
    cls: type[torch.Tensor],
    requires_grad: bool,
    gradient: torch.Tensor | None = None,
) -> torch.Tensor:
    """A leaf of autograd's graph on the memory of a graph's result."""
    if cls is torch.nn.Parameter:
        made: torch.Tensor = torch.nn.Parameter(data.detach(), requires_grad)
    else:
        made = data.detach().requires_grad_(requires_grad)
    made.grad = gradient
    return made


def rebuild_gradient(gradient: torch.Tensor) -> torch.Tensor:
    """What a backward assigns to `.grad` is no view, whatever computed it."""
    return gradient.detach() if gradient._is_view() else gradient


@unseen_by_other_compilers
class _UsedUp(AutogradFunction):
    """The history of a tensor whose backward ran inside of a compiled frame."""

    @staticmethod
    def forward(
        ctx: object, leaf: torch.Tensor, holder: list[torch.Tensor], *ends: torch.Tensor
    ) -> torch.Tensor:
        tensor = holder.pop()
        return tensor.detach() if tensor._is_view() or tensor.requires_grad else tensor

    @staticmethod
    def backward(ctx: object, *tangents: torch.Tensor) -> Any:
        raise RuntimeError(
            "Trying to backward through the graph a second time (or directly access saved "
            "tensors after they have already been freed). Saved intermediate values of the "
            "graph are freed when you call .backward() or autograd.grad(). Specify "
            "retain_graph=True if you need to backward through the graph a second time or if "
            "you need to access saved tensors after calling backward."
        )


def rebuild_used_up(data: torch.Tensor, *ends: torch.Tensor) -> torch.Tensor:
    """A tensor with a history that is used up, on a graph's result. ends: the leaves that the
    history led to; gradients of others are none of its."""
    with torch.enable_grad():
        leaf = torch.empty(0, requires_grad=True, device="cpu")
        made: torch.Tensor = _UsedUp.apply(leaf, [data], *ends)
    return made


def rebuild_call(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> object:
    """What a call gives that runs no code yet: a generator that has not started."""
    return function(*arguments, **keywords)
