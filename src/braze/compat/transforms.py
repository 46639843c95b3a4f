"""What torch.func's transforms give: Python functions whose free variable `func` is what they
transform."""

from __future__ import annotations

import types
from typing import Any

import torch


def _nothing() -> None: ...


_MAKERS: tuple[Any, ...] = (
    torch.vmap,
    torch.func.grad,
    torch.func.grad_and_value,
    torch.func.jacrev,
    torch.func.jacfwd,
    torch.func.functionalize,
)
_CODES: dict[types.CodeType, int] = {
    code: code.co_freevars.index("func") for code in [maker(_nothing).__code__ for maker in _MAKERS]
}


def place_of_transformed(code: types.CodeType) -> int | None:
    """Which free variable of a function holds what it transforms; None if it is no transform's."""
    return _CODES.get(code)


def with_transformed(function: types.FunctionType, place: int, inner: Any) -> Any:
    """The same transform of another function."""
    cells = list(function.__closure__ or ())
    cells[place] = types.CellType(inner)
    made = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells),
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made
