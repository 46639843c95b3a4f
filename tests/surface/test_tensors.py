"""A part of the sweep over tensors; `python -m tests.surface.tensors` asks all questions."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import braze
from braze.tracing.fake_tensor_queries import (
    QUESTIONS,
    QUESTIONS_OF_MODULES,
    is_known,
    unknown_names,
)
from tests.surface.tensor_kinds import CHANGES, KINDS
from tests.surface.tensor_questions import Question, questions
from tests.surface.tensors import part_of, sweep

# "0/1" asks all of them.
PART = os.environ.get("BRAZE_SURFACE_PART", "3/29")
PARTS = 4


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    return part_of(questions(), PART)


@pytest.mark.parametrize("part", range(PARTS))
def test_sampled_questions_agree_with_eager(asked: list[Question], part: int) -> None:
    tally = sweep(asked[part::PARTS])
    assert not tally.differences, "\n".join(map(str, tally.differences))
    assert tally.asked > 500
    assert tally.graphs > 100


# Those that were answered wrongly, or whose answer has a guard or a handler of its own.
ASKED = [
    *("x.is_inference()", "x.is_neg()", "x.data_ptr()", "x._version", "x._base is None"),
    *("x.output_nr", "x.retains_grad", "x.is_leaf", "x.grad_fn is None", "x._is_view()"),
    *("isinstance(x, torch.FloatTensor)", "torch._C._is_alias_of(x, x.detach())", "x.type()"),
    *("isinstance(x, torch.nn.Parameter)", "x.__doc__", "x.__hash__()", "x.is_shared()"),
    *("str(torch._C._dispatch_keys(x))", "sys.getsizeof(x)", "x._backward_hooks is None"),
]


@pytest.mark.parametrize("text", ASKED)
def test_questions_once_answered_wrongly(text: str) -> None:
    tally = sweep([Question(text, False)], ["the input", "made of it"])
    assert not tally.differences, "\n".join(map(str, tally.differences))
    assert tally.graphs


def test_kinds_and_changes_are_many() -> None:
    assert len(KINDS) >= 17
    assert len(CHANGES) >= 20
    assert len(list(questions())) > 800


def test_new_functions_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch may add is no operator of ATen and has no row."""
    monkeypatch.setattr(torch._C, "_is_new", torch._C._is_alias_of, raising=False)

    def ask(x: Any) -> Any:
        return torch._C._is_new(x, x.view(-1)), x + 1

    explained = braze.explain(ask, backend="eager")(torch.ones(3))
    assert [note.code for note in explained.break_reasons] == ["unsupported-tensor"]
    assert braze.compile(ask, backend="eager")(torch.ones(3))[0] is True


def test_rows_name_what_exists() -> None:
    names: Any = {*dir(torch.Tensor), *dir(torch), *dir(torch._C._VariableFunctions)}
    unknown = [n for n in QUESTIONS if n not in names and not hasattr(torch.ops.aten, n)]
    assert not [name for name in unknown if name not in _OF_OTHER_VERSIONS]
    assert all(is_known(name) for name in QUESTIONS)
    assert all(name.startswith("torch") for name in QUESTIONS_OF_MODULES)
    assert "data_ptr" in unknown_names(torch.Tensor)


_OF_OTHER_VERSIONS = {"names", "has_names", "__nonzero__", "__long__"}
