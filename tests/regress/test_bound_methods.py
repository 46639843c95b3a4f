"""Bound methods as arguments: the function behind one was not guarded, so another method of the
same object got the first one's result."""

from __future__ import annotations

import torch

import braze


class Scale:
    def double(self, x):
        return x * 2

    def triple(self, x):
        return x * 3


def test_another_method_of_the_same_object():
    def f(method, x):
        return method(x)

    compiled, scale, x = braze.compile(f, backend="aot_eager"), Scale(), torch.ones(2)
    for method in (scale.double, scale.triple, scale.double):
        assert torch.equal(compiled(method, x), method(x))


def test_the_same_method_of_another_object():
    def f(many, x):
        for method in many:
            x = method(x)
        return x

    compiled, x = braze.compile(f, backend="aot_eager"), torch.ones(2)
    first = [torch.nn.Linear(2, 2).forward, Scale().triple]
    second = [torch.nn.Linear(2, 2).forward, Scale().double]
    for many in (first, second, first):
        assert torch.equal(compiled(many, x), f(many, x))
