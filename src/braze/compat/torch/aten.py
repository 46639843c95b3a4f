"""ATen's operators, as `aten.name.overload`, of whatever version of PyTorch is installed.

Tables name operators that one version has and another has not. One that this PyTorch has not got is
an `AbsentOperator`: no node has it, so its row serves nothing, and calling it raises.
"""

from __future__ import annotations

import operator
from typing import Any, NoReturn, final

import torch

from braze.errors import PrivateNameGone


@final
class AbsentOperator:
    """An operator that this PyTorch has not got."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise PrivateNameGone(f"PyTorch {torch.__version__} has no operator {self._name}")

    def __repr__(self) -> str:
        return f"<absent: {self._name}>"


@final
class _Overloads:
    """The overloads of one operator, each looked up once."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, overload: str) -> Any:
        qualified = f"{self._name}.{overload}"
        found = find_operator(qualified) or AbsentOperator(f"aten.{qualified}")
        setattr(self, overload, found)
        return found


@final
class _Aten:
    """The operators by name."""

    def __getattr__(self, name: str) -> _Overloads:
        found = _Overloads(name)
        setattr(self, name, found)
        return found


aten: Any = _Aten()
# What operators of linear algebra raise; `torch.linalg` does not export it to type checkers.
LinAlgError: type[RuntimeError] = operator.attrgetter("LinAlgError")(torch.linalg)


def find_operator(name: str) -> object:
    """ATen's operator of a name, with its overload where that is not "default": `add.Tensor`. None
    where this PyTorch has not got it."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def named_operators(names: str) -> dict[str, object]:
    """Those of some operators, by name, that this PyTorch has."""
    found = {name: find_operator(name) for name in names.split()}
    return {name: operator for name, operator in found.items() if operator is not None}
