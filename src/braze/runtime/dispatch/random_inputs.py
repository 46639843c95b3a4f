"""Numbers of Python's `random` and of `numpy.random` that a compiled frame takes: drawn anew before
each graph runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.ir.captured.compile_request import GraphCallable, PartlyRun
from braze.ir.captured.frame import Draw
from braze.runtime.guards.codegen import tensor_of


def with_draws(run: GraphCallable, draws: Sequence[Draw]) -> GraphCallable:
    """The graph, given what the generators say now. Where it faults the frame runs eagerly, so
    they are as before."""
    if not draws:
        return run
    generators = {id(draw.generator): draw.generator for draw in draws}

    def draw_and_run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        put_back = list(map(_state_of, generators.values()))
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
            for put in put_back:
                put()
            raise

    return draw_and_run


def _state_of(generator: Any) -> Callable[[], object]:
    """What puts a generator's state back."""
    if hasattr(generator, "getstate"):
        return functools.partial(generator.setstate, generator.getstate())
    return functools.partial(generator.set_state, generator.get_state(legacy=False))


def _tensor_of(number: object) -> torch.Tensor:
    if isinstance(number, list):
        return torch.tensor(
            number, dtype=torch.int64 if type(number[0]) is int else torch.float64, device="cpu"
        )
    if isinstance(number, int | float):
        return torch.tensor(number, device="cpu") if type(number) is int else tensor_of(number)
    return torch.from_numpy(number)
