"""Numbers of Python's `random` that a compiled frame takes: drawn anew before each graph runs."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from braze.ir.captured.compile_request import GraphCallable, PartlyRun
from braze.ir.captured.frame import Draw
from braze.runtime.guards.codegen import tensor_of


def with_draws(run: GraphCallable, draws: Sequence[Draw]) -> GraphCallable:
    """The graph, given what the generators say now. Where it faults the frame runs eagerly, so
    they are as before."""
    if not draws:
        return run
    generators: dict[int, random.Random] = {id(d.generator): d.generator for d in draws}

    def draw_and_run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        states = [(generator, generator.getstate()) for generator in generators.values()]
        try:
            given = list(inputs)
            for draw in draws:
                number = draw.function(draw.generator, *draw.args)
                if draw.input >= 0:
                    given[draw.input] = _tensor_of(number)
            return run(given)
        except PartlyRun:
            raise
        except Exception:  # an interrupt is not answered by running the frame eagerly
            for generator, state in states:
                generator.setstate(state)
            raise

    return draw_and_run


def _tensor_of(number: float | list[float]) -> torch.Tensor:
    if isinstance(number, list):
        return torch.tensor(
            number, dtype=torch.int64 if type(number[0]) is int else torch.float64, device="cpu"
        )
    return torch.tensor(number, device="cpu") if type(number) is int else tensor_of(number)
