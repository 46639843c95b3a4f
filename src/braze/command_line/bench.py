"""`python -m braze bench model.py:make`: eager, torch.compile and Braze side by side.

`make()` gives what is called: a module or function and its arguments, `(model, inputs)`, or a
function of no arguments. Each system gets one of its own, made from the same seed. Rounds are
interleaved, so that what else the machine does meets all of them; the table has medians.
"""

from __future__ import annotations

import argparse
import functools
import runpy
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, final

import torch

from braze.api import compile as compile_by_braze
from braze.compat.torch.pytree import flatten_tree
from braze.errors import UserError, unknown_name
from braze.frozen import frozen

_Call: TypeAlias = Callable[[], Any]

SYSTEMS: Mapping[str, Callable[[Any], Any]] = {
    "eager": lambda target: target,
    "torch.compile": lambda target: torch.compile(target),
    "braze": lambda target: compile_by_braze(target),
}


@final
@frozen
class Timing:
    """first: seconds of the first call, with its compile. milliseconds: of each round.
    difference: the largest from eager's result, over eager's largest value."""

    first: float
    milliseconds: tuple[float, ...]
    difference: float


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", help="file.py:function, which makes (model, inputs)")
    parser.add_argument("--rounds", type=int, default=20, help="timed calls of each system")
    parser.add_argument("--training", action="store_true", help="forward and backward")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="which, eager first")


def run_bench(given: argparse.Namespace) -> int:
    """Time the systems, and print the table."""
    names = given.systems.split(",")
    for name in names:
        if name not in SYSTEMS:
            raise UserError(unknown_name("system", name, SYSTEMS))
    timings = measure(_maker(given.model), names, max(given.rounds, 1), given.training)
    for line in _table(timings):
        print(line)
    return 0


def measure(
    make: Callable[[], object], names: list[str], rounds: int, training: bool
) -> dict[str, Timing]:
    """Time calls of what `make` makes, under each system."""
    calls, firsts, results = {}, {}, {}
    for name in names:
        torch.manual_seed(0)
        calls[name] = _call_of(make(), SYSTEMS[name], training)
        firsts[name], results[name] = _timed(calls[name])
        for _ in range(2):  # a second shape of call, and what is recorded at the next
            calls[name]()
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            found[name].append(_timed(calls[name])[0] * 1e3)
    expected = results[names[0]]
    return {
        name: Timing(firsts[name], tuple(found[name]), _difference(results[name], expected))
        for name in names
    }


# --- private ---------------------------------------------------------------------------------


def _maker(place: str) -> Callable[[], object]:
    file, _, name = place.rpartition(":")
    if not file:
        raise UserError(f"bench takes file.py:function, not {place!r}.")
    sys.path[0] = str(Path(file).resolve().parent)  # as Python does, for what lies beside it
    space = runpy.run_path(file)
    if not callable(space.get(name)):
        raise UserError(unknown_name(f"function in {file}:", name, space))
    make: Callable[[], Any] = space[name]
    return make


def _call_of(made: Any, system: Callable[[Any], Any], training: bool) -> _Call:
    target, inputs = made if isinstance(made, tuple) else (made, ())
    inputs = inputs if isinstance(inputs, (tuple, list, dict)) else (inputs,)
    compiled = system(target)
    if isinstance(inputs, dict):
        call = functools.partial(compiled, **inputs)
    else:
        call = functools.partial(compiled, *inputs)
    return functools.partial(_train, call, target) if training else functools.partial(_infer, call)


def _infer(call: _Call) -> object:
    with torch.no_grad():
        return call()


def _train(call: _Call, target: object) -> object:
    if isinstance(target, torch.nn.Module):
        target.zero_grad()
    result = call()
    leaves = [leaf for leaf in flatten_tree(result)[0] if _is_differentiable(leaf)]
    if not leaves:
        raise UserError("bench --training: no result needs a gradient.")
    torch.autograd.backward([leaf.float().sum() for leaf in leaves])
    return result


def _is_differentiable(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _timed(call: _Call) -> tuple[float, object]:
    _wait()
    began = time.perf_counter()
    result = call()
    _wait()
    return time.perf_counter() - began, result


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _difference(result: object, expected: object) -> float:
    largest = 0.0
    for mine, theirs in zip(flatten_tree(result)[0], flatten_tree(expected)[0]):
        if isinstance(theirs, torch.Tensor) and theirs.numel():
            exact = theirs.detach().to(torch.complex128 if theirs.is_complex() else torch.float64)
            scale = float(exact.abs().max()) or 1.0
            off = (mine.detach().to(exact.dtype) - exact).abs().max()
            largest = max(largest, float(off) / scale)
    return largest


def _table(timings: Mapping[str, Timing]) -> Iterator[str]:
    base = statistics.median(next(iter(timings.values())).milliseconds)
    titles = f"{'first call':>10} {'median':>11} {'least':>11} {'of eager':>9} {'differs by':>11}"
    yield f"{'':14} {titles}"
    for name, timing in timings.items():
        median = statistics.median(timing.milliseconds)
        yield (
            f"{name:14} {timing.first:8.2f} s {median:8.3f} ms {min(timing.milliseconds):8.3f} ms "
            f"{median / base:9.2f} {timing.difference:11.1e}"
        )
