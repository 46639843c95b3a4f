"""What a function under `torch.utils.checkpoint` does besides computing is done once more in the
backward, whatever it returns."""

from __future__ import annotations

import collections
import dataclasses
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import braze

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Result:
    value: Any
    note: str = ""


class Holder:
    kept: Any = None


RESULTS: dict[str, Callable[[Tensor, Holder], Any]] = {
    "tensor": lambda y, holder: y,
    "tuple": lambda y, holder: (y, 1),
    "list": lambda y, holder: [y],
    "dict": lambda y, holder: {"y": y},
    "namedtuple": lambda y, holder: Pair(y, None),
    "dataclass": lambda y, holder: Result(y),
    "nested": lambda y, holder: {"a": [(1, {"b": (y,)})]},
    "none": lambda y, holder: setattr(holder, "kept", y),
    "closure": lambda y, holder: lambda: y,
}


class _Lines(logging.Handler):
    def __init__(self, state: list[Any]) -> None:
        super().__init__()
        self.state = state

    def emit(self, record: logging.LogRecord) -> None:
        self.state.append(record.getMessage())


def _counted(state: list[Any]) -> None:
    state[0] += 1


def _logged(state: list[Any]) -> None:
    logging.getLogger("checkpointed").warning("asked")


EFFECTS: dict[str, Callable[[list[Any]], Any]] = {
    "nothing": lambda state: None,
    "append": lambda state: state.append("more"),
    "count": _counted,
    "log": _logged,
    "attribute": lambda state: setattr(state[1], "n", getattr(state[1], "n", 0) + 1),
    "python's numbers": lambda state: state.append(random.random()),
    "dict": lambda state: state[2].update({len(state[2]): 1}),
}


def _tensor_in(value: Any, holder: Holder) -> Tensor:
    while not isinstance(value, Tensor):
        if value is None:
            value = holder.kept
        elif isinstance(value, dict):
            value = next(iter(value.values()))
        elif isinstance(value, Result):
            value = value.value
        elif callable(value):
            value = value()
        else:
            value = value[-1] if isinstance(value[0], int) else value[0]
    return value


def _observed(compiler: Callable[[Any], Any], result: str, effect: str) -> list[Any]:
    holder, state = Holder(), [0, Holder(), {}]
    random.seed(3)

    def body(x: Tensor) -> Any:
        EFFECTS[effect](state)
        return RESULTS[result](x.sin() * x, holder)

    f = compiler(lambda x: checkpoint(body, x * 2, use_reentrant=False))
    lines, logger, found = _Lines(state), logging.getLogger("checkpointed"), []
    logger.addHandler(lines)
    logger.propagate = False
    try:
        for _ in range(3):
            x = torch.ones(2, requires_grad=True)
            value = f(x)
            found.append(len(state))
            _tensor_in(value, holder).sum().backward()
            found.append((type(value).__name__, x.grad, [s for s in state if s is not state[1]]))
            found.append(vars(state[1]).get("n"))
    finally:
        logger.removeHandler(lines)
    return found


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("result", RESULTS)
def test_effects_are_repeated(result: str, effect: str) -> None:
    want = _observed(lambda f: f, result, effect)
    got = _observed(braze.compile, result, effect)
    assert repr(got) == repr(want)


def test_function_without_effects_is_part_of_the_graph() -> None:
    def f(x: Tensor) -> Any:
        return checkpoint(lambda v: {"y": v.sin()}, x * 2, use_reentrant=False)

    report = braze.explain(f)(torch.ones(2, requires_grad=True))
    assert report.graph_count == 1 and not report.break_reasons
