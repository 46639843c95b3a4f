"""How far from the exact result a program of float32 may round, element by element.

The program runs in float64, once exactly and some times with a random error put into each result
of arithmetic: as large as a rounding to float32, and in sums as large as a rounding of the sum of
the magnitudes that are added, which no order of summation can promise to be below. What these
errors have become at the program's end is what roundings can do there. So a sum that cancels
may be off by what its addends were, and nothing else may.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

_STEP = 2.0**-23  # between neighbours of float32
_LEAST = 1e-37  # below, float32 has less digits, or none
# Of 10,000 programs' millions of elements, with eight runs some have only errors that are an eighth
# of what they may be; with these none has.
_RUNS = 32
# What may be between the largest of the runs' errors and a program's: kernels take exponentials to
# some units in the last place, and add up in lanes.
_TIMES = 8

# By the names of torch's functions, without underscores. What they do is linear in each argument.
_SUMS = frozenset({"sum", "mean", "cumsum", "matmul", "conv1d"})
_ROUNDED = frozenset(
    {"add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "div", "softmax"}
)


class Rounded(NamedTuple):
    """exact: the result; error: of each element, the largest error that roundings made."""

    exact: torch.Tensor
    error: torch.Tensor

    def is_met(self, found: torch.Tensor, eager: torch.Tensor) -> bool:
        """Whether `found` is as near to the exact result as roundings explain, those of `eager`
        among them."""
        off, also = ((t.double() - self.exact).abs() for t in (found, eager))
        return bool((off <= _TIMES * self.error + also + _LEAST).all())


def rounded(program: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Rounded:
    """What roundings do to the result of a program on `x`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        exact = program(x.double())
        error = torch.zeros_like(exact)
        generator = torch.Generator().manual_seed(0)
        for _ in range(_RUNS):
            with _Roundings(generator):
                error = torch.maximum(error, (program(x.double()) - exact).abs())
    finally:
        torch.set_default_dtype(before)
    return Rounded(exact, error)


class _Roundings(TorchFunctionMode):
    """Puts an error into each result of arithmetic."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "").strip("_")
        if name in _SUMS:
            return result + self._error(func(*map(_magnitude, args), **kwargs))
        return result + self._error(result) if name in _ROUNDED else result

    def _error(self, scale: torch.Tensor) -> torch.Tensor:
        drawn = torch.rand(scale.shape, generator=self._generator) * 2 - 1
        return drawn * scale.abs() * _STEP


def _magnitude(argument: Any) -> Any:
    return argument.abs() if isinstance(argument, torch.Tensor) else argument
