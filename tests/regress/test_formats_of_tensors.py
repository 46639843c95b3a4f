"""What a fake tensor cannot answer is a break, and no exception that the program can catch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "a format": lambda v: f"{v:.1f}",
    "format": lambda v: format(v, ">10"),
    "no format": lambda v: f"{v}",
    "__format__": lambda v: v.__format__(".2f"),
    "str.format": lambda v: f"{v:d}",
    "str": str,
    "tolist": lambda v: v.tolist(),
    "deepcopy": lambda v: copy.deepcopy(v).tolist(),
    "numpy": lambda v: v.numpy().tolist(),
    "int": int,
    "chr": chr,
    "%": lambda v: "%d" % v,  # noqa: UP031
}


def _answer(question: Callable[[Any], Any], value: torch.Tensor) -> Any:
    try:
        return question(value)
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("is_made_here", [False, True])
@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_raise_as_in_eager(name: str, is_made_here: bool) -> None:
    def program(x: torch.Tensor, value: torch.Tensor) -> Any:
        asked = value.clone() if is_made_here else value
        return x + 1, _answer(QUESTIONS[name], asked)

    for value in (torch.tensor([1.5, 2.5]), torch.tensor(2.5), torch.tensor([True, False])):
        x = torch.ones(2)
        expected = program(x, value)
        explanation = braze.explain(program)(x, value)
        assert explanation.graph_count >= 1
        assert braze.compile(program, backend="eager")(x, value)[1] == expected[1]
