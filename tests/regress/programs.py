"""Running a program eagerly and compiled, and comparing what it gives and the state it leaves.

A program is a function that makes (function, arguments) anew; the arguments are compared after two
calls, too.
"""

from __future__ import annotations

import collections
import enum
import math
import types

import torch
from torch import nn

import braze


def registry():
    """(programs by name, the decorator that enters one): of makers of a function, its arguments
    and, where there is more, what else to look at."""
    programs = {}

    def program(make):
        programs[make.__name__] = make
        return make

    return programs, program


def tensor(*shape):
    """Numbers of both signs."""
    return torch.arange(float(math.prod(shape))).reshape(shape) / 7 - 0.3


def same(left, right):
    """Equality of values and, for objects, of their state; tensors up to rounding."""
    if isinstance(left, torch.Tensor):
        return (
            isinstance(right, torch.Tensor)
            and (left.shape, left.dtype, left.stride())
            == (right.shape, right.dtype, right.stride())
            and torch.allclose(left, right, rtol=1e-5, atol=1e-6, equal_nan=True)
        )
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-6) or left == right
    if isinstance(left, BaseException):
        return type(left).__name__ == type(right).__name__ and same(left.args, right.args)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple, collections.deque)):
        alike = type(left).__name__ == type(right).__name__ and len(left) == len(right)
        return alike and all(same(a, b) for a, b in zip(left, right))
    if isinstance(left, nn.Module):
        return same(dict(left.state_dict()), dict(right.state_dict())) and same(
            [m.training for m in left.modules()], [m.training for m in right.modules()]
        )
    if isinstance(left, torch.optim.Optimizer):
        return same(left.state_dict(), right.state_dict())
    if isinstance(left, (types.FunctionType, enum.Enum, type)):
        return True
    if hasattr(left, "__dict__"):
        return type(left).__name__ == type(right).__name__ and same(vars(left), vars(right))
    if hasattr(left, "__slots__"):
        return all(same(getattr(left, n), getattr(right, n)) for n in left.__slots__)
    return left == right


def run(function, args):
    torch.manual_seed(0)
    try:
        return function(*args), None
    except Exception as error:
        return None, error


def check(make, capsys):
    """Two calls of a program, compiled and not, agree in results, state and what they print."""
    function, args = make()
    expected = [run(function, args), run(function, args)]
    printed = capsys.readouterr().out
    twin, twin_args = make()
    compiled = braze.compile(twin)
    actual = [run(compiled, twin_args), run(compiled, twin_args)]
    for mine, other in zip(actual, expected):
        assert same(mine, other), (mine, other)
    assert same(tuple(twin_args), tuple(args)), (twin_args, args)
    assert capsys.readouterr().out == printed
