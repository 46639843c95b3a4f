"""The world around a compiled training step is changed at random between calls, and the step does
what eager does each time, with snapshots or by generated Python.

    python -m tests.fuzz.worlds 1000 300     # seeds from 1000 on, 300 of them
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from braze.interop.backends import Backend, Level
from braze.options import config
from braze.runtime.guards.native_extension import LOADER
from braze.targets import make_dispatcher
from braze.trace import Journal

_CALLS = 40
_FIRST_CALLS = 5  # behind which there is a snapshot
_LIMIT = 64


class Step:
    """A training step that finds what it needs in its closure; what is changed there."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scale, weights = 2, [torch.ones(4), torch.full((4,), 2.0)]
        table: dict[Any, float] = {nn.Linear: 2.0, b"bytes": 1.0, "name": 3.0, None: 0.5}
        x = torch.randn(3, 4, dtype=torch.float64)

        def step(forgets: bool) -> torch.Tensor:
            if forgets:
                optimizer.zero_grad()
            shift = table[nn.Linear] + table[b"bytes"]
            shift += table["name"] * (table[None] if None in table else 7.0)  # noqa: SIM401
            loss = (model(x) * weights[0] * scale + weights[1] + shift).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def change(**values: Any) -> None:
            nonlocal scale, weights, table, x
            scale, weights = values.get("scale", scale), values.get("weights", weights)
            table, x = values.get("table", table), values.get("x", x)
            self.weights, self.table = weights, table

        self.function, self.change = step, change
        self.model, self.optimizer, self.weights, self.table = model, optimizer, weights, table

    @property
    def leaves(self) -> list[nn.Parameter]:
        """The model's parameters."""
        return list(self.model.parameters())


def _give(step: Step, number: int, gradient: torch.Tensor | None) -> None:
    """A leaf that has a gradient gets another one."""
    leaf = step.leaves[number]
    if leaf.grad is not None:
        leaf.grad = gradient


def _drop_or_add(step: Step, value: float) -> None:
    if value < 0.5:
        step.table.pop(None, None)
    else:
        step.table[None] = value


def _replace_weight(step: Step, weight: torch.Tensor) -> None:
    step.model[0].weight = nn.Parameter(weight)


def _switch(leaf: nn.Parameter) -> None:
    leaf.requires_grad_(not leaf.requires_grad)


def _set_data(leaf: nn.Parameter, data: torch.Tensor) -> None:
    leaf.data = data


# (step, a number below 1, what makes random tensors)
Change = Callable[[Step, float, Callable[..., torch.Tensor]], Any]
CHANGES: tuple[Change, ...] = (
    lambda s, value, new: s.change(scale=2 + int(value * 3)),
    lambda s, value, new: s.weights.__setitem__(0, new(4)),
    lambda s, value, new: s.change(weights=[new(4), new(4)]),
    lambda s, value, new: s.table.update({nn.Linear: value}),
    lambda s, value, new: s.change(table=dict(s.table)),
    lambda s, value, new: s.change(x=new(3, 4)),
    lambda s, value, new: s.change(x=new(1 + int(value * 3), 4)),
    lambda s, value, new: _give(s, 0, None),
    lambda s, value, new: _give(s, 0, new(4, 4)),
    lambda s, value, new: _give(s, 0, new(4, 4).t()),
    lambda s, value, new: _give(s, 2, s.leaves[0].grad),
    lambda s, value, new: _switch(s.leaves[0]),
    lambda s, value, new: s.optimizer.param_groups[0].update(lr=0.05 + value / 10),
    lambda s, value, new: _set_data(s.leaves[1], new(4)),
    lambda s, value, new: _drop_or_add(s, value),
    lambda s, value, new: _replace_weight(s, new(4, 4)),
)


def _changed(steps: list[Step], choose: random.Random) -> int:
    """The same change of all of them; its number."""
    number, value = choose.randrange(len(CHANGES)), choose.random()
    for step in steps:
        generator = torch.Generator().manual_seed(int(value * 1e6))

        def new(*shape: int, generator: torch.Generator = generator) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        CHANGES[number](step, value, new)
    return number


def _outcome(function: Any, forgets: bool) -> torch.Tensor | str:
    try:
        return function(forgets)  # type: ignore[no-any-return]
    except RuntimeError as error:
        return type(error).__name__


def _state(step: Step, outcome: torch.Tensor | str) -> list[Any]:
    """What a call leaves behind."""
    gradients = [leaf.grad for leaf in step.leaves]
    layouts = [None if g is None else (g.shape, g.stride()) for g in gradients]
    tensors = [*step.leaves, *[g for g in gradients if g is not None]]
    tensors += [outcome] if isinstance(outcome, torch.Tensor) else []
    return [outcome if isinstance(outcome, str) else "", layouts, [t.detach() for t in tensors]]


def first_difference(seed: int) -> str:
    """Where a compiled step and eager's part, or ""."""
    choose = random.Random(seed)
    eager, compiled = Step(seed), Step(seed)
    with config.patch(recompile_limit=_LIMIT):
        options = config.snapshot()
    dispatcher = make_dispatcher(options, Backend("aten", Level.ATEN), Journal())
    function = dispatcher.compiled(compiled.function)  # type: ignore[arg-type]
    changes: list[int] = []
    for call in range(_CALLS):
        if call > _FIRST_CALLS and choose.random() < 0.5:
            changes.append(_changed([eager, compiled], choose))
        forgets = choose.random() < 0.8
        expected = _state(eager, _outcome(eager.function, forgets))
        found = _state(compiled, _outcome(function, forgets))
        same = expected[:2] == found[:2]
        pairs = zip(expected[2], found[2])
        if not same or not all(torch.allclose(a, b, equal_nan=True) for a, b in pairs):
            return f"seed {seed}, call {call}, behind the changes {changes[-4:]}"
    return ""


if __name__ == "__main__":
    LOADER.wait()
    first, count = map(int, sys.argv[1:3])
    differences = [text for text in map(first_difference, range(first, first + count)) if text]
    print("\n".join([*differences, f"{count} seeds from {first}, {len(differences)} differ"]))
