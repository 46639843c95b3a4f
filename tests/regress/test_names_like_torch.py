"""Modules whose names begin like those of torch, typing or enum are the program's."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import braze

SOURCE = """
import functools

FLAG = 1

class Meta(type):
    def __instancecheck__(cls, value):
        return FLAG > 1
    def __subclasscheck__(cls, value):
        return FLAG > 1

class Checked(metaclass=Meta):
    pass

class Key:
    def __hash__(self):
        return FLAG
    def __eq__(self, other):
        return FLAG > 1
    def __lt__(self, other):
        return FLAG > 1
    def __repr__(self):
        return f"key {FLAG}"
    def __iter__(self):
        return iter(range(FLAG))
    def __len__(self):
        return FLAG

class Tensors(list):
    def __iter__(self):
        return iter([7] * FLAG)
    def __len__(self):
        return FLAG
    def __getitem__(self, index):
        return [7, 7][index]

@functools.lru_cache(None)
def counted(number):
    return number + FLAG

def stack(x):
    return x + FLAG

def __getattr__(name):
    if name == "missing":
        return FLAG
    raise AttributeError(name)
"""
NAMES = ("torchplain", "torch_like", "enumerated", "typings", "braze_user", "abcde", "plain")


@pytest.fixture(params=NAMES)
def library(request: pytest.FixtureRequest) -> Iterator[Any]:
    module: Any = types.ModuleType(request.param)
    sys.modules[request.param] = module
    exec(SOURCE, vars(module))
    yield module
    del sys.modules[request.param]


QUESTIONS = {
    "instance": lambda lib, x: isinstance(x, lib.Checked),
    "instance of a number": lambda lib, x: isinstance(3, lib.Checked),
    "subclass": lambda lib, x: issubclass(int, lib.Checked),
    "key": lambda lib, x: lib.Key() in {lib.Key(): 1},
    "members": lambda lib, x: len({lib.Key(), lib.Key()}),
    "sorted": lambda lib, x: sorted([lib.Key(), lib.Key()])[0] is None,
    "index": lambda lib, x: [1, lib.Key()].index(lib.Key()) if lib.FLAG > 1 else 0,
    "text": lambda lib, x: f"{lib.Key()}",
    "list": lambda lib, x: [*zip(lib.Key(), lib.Key())],
    "tensor": lambda lib, x: torch.tensor(lib.Tensors([1, 2])).tolist(),
    "cached": lambda lib, x: lib.counted(1),
    "function": lambda lib, x: lib.stack(x),
    "lazy": lambda lib, x: lib.missing,
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_are_those_of_eager(library: Any, name: str) -> None:
    question = QUESTIONS[name]

    def program(x: torch.Tensor) -> Any:
        return x + 1, question(library, x)

    compiled = braze.compile(program, backend="eager")
    for flag in (1, 2, 1):
        library.FLAG = flag
        library.counted.cache_clear()
        expected = program(torch.ones(2))
        library.counted.cache_clear()
        assert str(compiled(torch.ones(2))) == str(expected)
