"""Constraints of `torch.distributions` whose check branches on a tensor and returns one either way.

    sym_check = super().check(value)         symmetric = ...
    if not sym_check.all():           ->     definite = cholesky_ex(value).info.eq(0)
        return sym_check                     where(symmetric.all(), definite, symmetric)
    return cholesky_ex(value).info.eq(0)

Both sides are computed, and neither raises, so that the check is part of the graph; what the
distribution does with it (`raise ValueError`) is a checked assertion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.distributions import constraints

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call
from braze.capture.state.guard_context import TENSORS

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


_Calculate: TypeAlias = Callable[..., Any]


def _positive_definite(call: _Calculate, value: object, is_symmetric: object) -> object:
    return call(torch.Tensor.eq, call(torch.linalg.cholesky_ex, value).info, 0)


def _positive_semidefinite(call: _Calculate, value: object, is_symmetric: object) -> object:
    """Of a matrix that is not symmetric, zeros: with a NaN, eigenvalues do not converge."""
    each = call(torch.Tensor.unsqueeze, call(torch.Tensor.unsqueeze, is_symmetric, -1), -1)
    eigenvalues = call(torch.linalg.eigvalsh, call(torch.where, each, value, 0.0))
    return call(torch.Tensor.all, call(torch.Tensor.ge, eigenvalues, 0), -1)


def _answer(constraint: Any, of_symmetric: _Calculate) -> None:
    check = type(constraint).check

    @answers(check)
    def checked(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        value = kwargs["value"] if kwargs else args[-1]
        if len(args) + len(kwargs) != 2 or type(value) not in TENSORS or value.dim() < 2:
            return interpreter.call_python(check, args, kwargs)
        if not interpreter.looks_at_results:
            return interpreter.call_python(check, args, kwargs)

        def call(function: object, *given: object) -> object:
            return leaf_call(interpreter, function, given, {})

        is_symmetric = interpreter.call(type(constraints.symmetric).check, args[0], value)
        if value.shape[-1] != value.shape[-2]:
            return is_symmetric
        holds = of_symmetric(call, value, is_symmetric)
        return call(torch.where, call(torch.Tensor.all, is_symmetric), holds, is_symmetric)


_answer(constraints.positive_definite, _positive_definite)
_answer(constraints.positive_semidefinite, _positive_semidefinite)
