"""Texts and error messages never show a fake tensor."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch

import braze
from tests.unit.capture.replay import agree, outcome

X = torch.ones(2)
Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Config:
    width: int
    name: str = "n"


def in_f_string(x):
    y = x + 1
    return f"{y!r}"


TEXTS = [
    in_f_string,
    lambda x: repr([x + 1]),
    lambda x: str({"a": x + 1}),
    lambda x: "%r %d" % (x + 1, 3),  # noqa: UP031
    lambda x: "%s" % (x + 1),
    lambda x: "{}".format(x + 1),  # noqa: UP032
    lambda x: repr(Pair(x + 1, 2)),
    lambda x: str(slice(x + 1, 2)),
    lambda x: str(KeyError(x + 1)),
    lambda x: format((x + 1).sum(), ".2f"),
]


@pytest.mark.parametrize("program", TEXTS)
def test_text_of_a_tensor_breaks_and_is_eager_s(program):
    captured = outcome(program, X)
    assert captured.exit.reason.code in ("data-dependent-value", "unseen-python")
    assert braze.compile(program)(X) == program(X)


def test_messages_name_tensors():
    def f(x):
        messages = []
        for wrong in (
            lambda: x + "a",
            lambda: x(),
            lambda: len(x, 2),
            lambda: x["key"],
            lambda: -[],
        ):
            try:
                wrong()
            except (TypeError, IndexError) as error:
                messages.append(str(error))
        return messages

    agree(lambda: (f, (X.clone(),)))


def test_text_of_a_dataclass_is_made():
    agree(lambda: (lambda x: (x + 1, repr(Config(3)), f"{Config(4)}"), (X.clone(),)))


class _Bad(ValueError):
    def __init__(self, size: int) -> None:
        super().__init__(f"bad {size}")
        self.size = size


class _Two(RuntimeError):
    pass


class _Missing(KeyError):
    pass


@pytest.mark.parametrize("convert", [str, repr])
@pytest.mark.parametrize("make", [_Bad, lambda n: _Two("é", n), lambda n: _Two(), _Missing])
def test_text_of_exceptions_of_own_classes(make: Any, convert: Any) -> None:
    def program(x: torch.Tensor, n: int, given: Any) -> Any:
        try:
            raise make(n)
        except Exception as problem:
            texts = [
                str(problem),
                repr(problem),
                f"{problem}",
                f"{problem!r:>30}",
                convert(problem),
            ]
        texts.append(str(given))
        return x + len(texts[0]), texts

    compiled = braze.compile(program, backend="eager", fullgraph=True)
    x, given = torch.ones(2), make(5)
    for n in (1, 2, 30):
        expected, found = program(x, n, given), compiled(x, n, given)
        assert (found[0].tolist(), found[1]) == (expected[0].tolist(), expected[1])
        given.args = ("new", n)
