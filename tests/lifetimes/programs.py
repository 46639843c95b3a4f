"""Programs of all kinds that Braze compiles; each has kernels that no other program has.

A maker takes a number, compiles and calls a program that holds the number, and gives what its
user holds, and references to what is to go with that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

import braze


class Made(NamedTuple):
    """held: by the user. going: references to what goes with it, by what they are called."""

    held: Any
    going: dict[str, weakref.ref[Any]]


Maker: TypeAlias = Callable[[float], Made]
MAKERS: dict[str, Maker] = {}


def _program(maker: Maker) -> Maker:
    MAKERS[maker.__name__] = maker
    return maker


def _made(held: Any, **going: Any) -> Made:
    return Made(held, {name: weakref.ref(value) for name, value in going.items()})


class _Scaled(torch.nn.Module):
    def __init__(self, number: float) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.number = number

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.inner(x) * self.number)


def _train(call: Callable[[Any], Any]) -> None:
    for _ in range(3):
        call(torch.randn(3, 4)).sum().backward()


@_program
def inference(number: float) -> Made:
    def function(x: Any) -> Any:
        return x.sin() * number + x.cos()

    compiled: Any = braze.compile(function)
    for _ in range(3):
        compiled(torch.randn(8))
    return _made(compiled, compiled=compiled, function=function, dispatcher=compiled.dispatcher)


@_program
def changing_shapes(number: float) -> Made:
    def function(x: Any) -> Any:
        return (x.sin() * number).sum(-1)

    compiled: Any = braze.compile(function)
    for shape in ((8,), (9,), (2, 3), (3, 3), (1, 2, 2), (0, 3), (2, 2, 2, 2)):
        compiled(torch.randn(shape))
    return _made(compiled, compiled=compiled, function=function, dispatcher=compiled.dispatcher)


@_program
def training(number: float) -> Made:
    weight = torch.randn(4, 4, requires_grad=True)

    def function(x: Any) -> Any:
        return ((x @ weight) * number).sin()

    compiled: Any = braze.compile(function)
    _train(compiled)
    return _made(compiled, compiled=compiled, function=function, weight=weight)


@_program
def second_gradients(number: float) -> Made:
    def function(x: Any) -> Any:
        return (x.sin() * number).exp()

    compiled: Any = braze.compile(function)
    x = torch.randn(4, requires_grad=True)
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    gradient.sum().backward()
    return _made(compiled, compiled=compiled, function=function)


@_program
def graph_breaks(number: float) -> Made:
    def callee(x: Any) -> Any:
        braze.graph_break()
        return x.exp() * number

    def function(x: Any) -> Any:
        y = x.sin() * number
        braze.graph_break()
        return callee(y) + 1

    compiled: Any = braze.compile(function)
    for _ in range(3):
        compiled(torch.randn(8))
    return _made(compiled, compiled=compiled, function=function, callee=callee)


@_program
def compiled_in_compiled(number: float) -> Made:
    @braze.compile
    def inner(x: Any) -> Any:
        return x.cos() * number

    inner(torch.randn(8))

    def function(x: Any) -> Any:
        return inner(x) * 2 + number

    compiled: Any = braze.compile(function)
    for _ in range(3):
        compiled(torch.randn(8))
    return _made(compiled, compiled=compiled, inner=inner, function=function)


@_program
def bound_method(number: float) -> Made:
    model = _Scaled(number)
    compiled: Any = braze.compile(model.forward)
    _train(compiled)
    return _made(compiled, compiled=compiled.__func__, model=model, weight=model.inner.weight)


@_program
def module(number: float) -> Made:
    model = _Scaled(number)
    compiled: Any = braze.compile(model)
    _train(compiled)
    return _made(compiled, compiled=compiled, model=model, weight=model.inner.weight)


@_program
def module_with_hooks(number: float) -> Made:
    model = _Scaled(number)
    model.register_forward_hook(lambda module, args, result: result * 2)
    compiled: Any = braze.compile(model)
    _train(compiled)
    return _made(compiled, compiled=compiled, model=model, weight=model.inner.weight)


@_program
def module_in_place(number: float) -> Made:
    model = braze.compile_in_place(_Scaled(number))
    _train(model)
    return _made(model, model=model, weight=model.inner.weight)


@_program
def whole_step(number: float) -> Made:
    model = _Scaled(number)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    compiled: Any = braze.compile(step)
    for _ in range(4):
        compiled(torch.randn(3, 4))
    return _made(compiled, compiled=compiled, model=model, weight=model.inner.weight)


@_program
def checkpointed(number: float) -> Made:
    model = _Scaled(number)
    compiled: Any = braze.compile(model)

    def call(x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(compiled, x, use_reentrant=False)

    _train(call)
    return _made(compiled, compiled=compiled, model=model)


@_program
def with_torch_compile(number: float) -> Made:
    model = _Scaled(number)
    compiled: Any = torch.compile(model, backend="braze")
    _train(compiled)
    return _made(compiled, compiled=compiled, model=model, weight=model.inner.weight)


@_program
def with_module_compile(number: float) -> Made:
    model = _Scaled(number)
    model.compile(backend="braze")
    _train(model)
    return _made(model, model=model, weight=model.inner.weight)
