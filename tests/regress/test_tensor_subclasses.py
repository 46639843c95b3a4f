"""Tensor subclasses, and objects that pass for tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.regress.programs import registry, tensor
from tests.regress.states import break_codes, check

PROGRAMS, program = registry()
pytestmark = pytest.mark.filterwarnings("ignore")


class Sub(torch.Tensor):
    pass


@program
def subclass_plain():
    def f(x):
        y = x * 2
        return type(y).__name__, y

    return f, (tensor(3).as_subclass(Sub),)


class Logged(torch.Tensor):
    log = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Logged.log.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


@program
def subclass_function():
    Logged.log.clear()

    def f(x):
        return (x * 2).sin()

    return f, (tensor(3).as_subclass(Logged),), Logged.log


class Wrap:
    def __init__(s, t):
        s.t = t

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [a.t if isinstance(a, Wrap) else a for a in args]
        return Wrap(func(*args, **(kwargs or {})))


@program
def duck_function():
    def f(w, x):
        return torch.add(w, x).t

    return f, (Wrap(tensor(3)), tensor(3))


class Tagged(torch.Tensor):
    kind = "tagged"

    def twice(self):
        return self * 2

    @property
    def half(self):
        return self / 2


class More(Tagged):
    pass


def tag(*shape):
    return tensor(*shape).as_subclass(Tagged)


@program
def methods():
    def f(x):
        return (
            x.twice(),
            x.half,
            x.kind,
            isinstance(x, Tagged),
            type(x + 1) is Tagged,
            x.sum().item() if False else 0,
        )

    return f, (tag(3),)


@program
def mixed():
    def f(x, y, m):
        return x + y, y + x, x + m, torch.cat([y, m]), y.add_(x), y, x.add_(y), torch.stack([y, y])

    return f, (tag(3), tensor(3), tensor(3).as_subclass(More))


@program
def tupled():
    def f(x):
        return x.max(0)[0], list(x.chunk(2)), x.split(1)

    return f, (tag(4),)


@program
def made():
    def f(x):
        y = x.as_subclass(Tagged)
        y.add_(1)
        return y, y.twice(), x, (x * 2).as_subclass(More)

    return f, (tensor(3),)


@program
def grads():
    def f(x):
        return (x * 2).twice().sum(), x * 1

    return f, (tensor(3).as_subclass(Tagged).requires_grad_(),)


@program
def off():
    def f(x):
        with torch._C.DisableTorchFunctionSubclass():
            y = x * 2
        return y, x + 1

    return f, (tag(3),)


@program
def param_sub():
    class P(nn.Parameter):
        pass

    def f(p, x):
        return p * x, type(p).__name__

    return f, (P(tensor(3)), tensor(3))


@program
def make_cls():
    def f(x):
        return Tagged(x)

    return f, (tensor(3),)


@program
def make_cls_of_results():
    def f(x):
        y = Tagged(x * 2)
        y.add_(1)
        return y.twice(), Tagged(2, 3).shape, Tagged([1.0, 2.0])

    return f, (tensor(3),)


@program
def make_cls_of_subclass():
    def f(x):
        return Tagged(x), torch.Tensor(x)

    return f, (tensor(3).as_subclass(More),)


@program
def breaks():
    def f(x):
        y = x * 2
        print("", end="")
        return y.twice()

    return f, (tag(3),)


@program
def own_function():
    def f(x):
        return (x * 2).sin()

    return f, (tensor(3).as_subclass(Logged),)


BREAKS = {
    "subclass_function": ("unsupported-tensor",),
    "duck_function": ("unseen-python",),
    "tupled": ("unsupported-tensor",),
    "breaks": ("input-output",),
    "own_function": ("unsupported-tensor",),
    "make_cls_of_subclass": ("unsupported-tensor",),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_state_as_eager(name):
    check(PROGRAMS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_breaks_are_those_that_are_known(name):
    assert break_codes(PROGRAMS[name]) == BREAKS.get(name, ())
