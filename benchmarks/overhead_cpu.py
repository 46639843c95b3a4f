"""What a call costs beside its kernels: eager, torch.compile and Braze in one process.

    python -m benchmarks.overhead_cpu [--rounds 40]

Dispatch alone: both compilers get a backend whose graph does nothing but return results made
before, so that what is left is guards and dispatch. Whole calls: a function of one operator, as it
is used. Samples of all systems are interleaved, in an order drawn anew each round; of each the
least and the median over the rounds are shown, in microseconds a call.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import braze
from benchmarks.guards_cpu import Linears
from benchmarks.timing import turns
from braze.runtime.guards.native_extension import LOADER

Call = Callable[[], Any]

_SAMPLE_S = 0.002
_WARM_UP_CALLS = 5


class AddOne(torch.autograd.Function):
    """What one operator costs in an autograd Function of eager."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        return tangent


def add_one(x: torch.Tensor) -> torch.Tensor:
    """A function of one operator."""
    return x + 1


def nothing(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A backend whose graphs return what the first call computes."""
    with torch.no_grad():
        made = module(*inputs)
    return lambda *_: made


def add_all(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A function of a list."""
    return sum(tensors[1:], tensors[0])


def add_pairs(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """A function of a tuple of pairs, as keys and values of a model's layers are kept."""
    return add_all([first + second for first, second in pairs])


def add_named(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A function of a dict, as batches are."""
    return batch["words"] + batch["mask"] + batch["labels"]


def dispatch_only(gradients: bool) -> dict[str, dict[str, Call]]:
    """Calls by program and system, with graphs that do nothing."""
    many = [torch.ones(4, requires_grad=gradients) for _ in range(60)]
    pairs = tuple(zip(many[:24:2], many[1:24:2], strict=True))
    batch = dict(zip(("words", "mask", "labels"), many, strict=False))
    programs: dict[str, tuple[Callable[[], Any], Any]] = {
        "300 parameters": (lambda: Linears().eval(), torch.randn(2, 8)),
        "one operator": (lambda: add_one, many[0]),
        "a dict of 3 tensors": (lambda: add_named, batch),
        "12 pairs of tensors": (lambda: add_pairs, pairs),
        "a list of 60 tensors": (lambda: add_all, many),
    }
    return {name: _dispatches(make, given) for name, (make, given) in programs.items()}


def _dispatches(make: Callable[[], Any], given: Any) -> dict[str, Call]:
    of_torch = torch.compile(make(), backend=nothing)
    of_braze = braze.compile(make(), backend=nothing)
    return {"torch.compile": lambda: of_torch(given), "Braze": lambda: of_braze(given)}


def whole_calls(gradients: bool) -> dict[str, dict[str, Call]]:
    """Calls of the function of one operator, each system with its own kernels."""
    x = torch.ones(4, requires_grad=gradients)
    torch_one, braze_one = torch.compile(add_one), braze.compile(add_one)
    calls: dict[str, Call] = {
        "eager": lambda: add_one(x),
        "torch.compile": lambda: torch_one(x),
        "Braze": lambda: braze_one(x),
    }
    if gradients:
        calls["eager autograd.Function"] = lambda: AddOne.apply(x)
    return {"one operator": calls}


def interleaved(calls: Mapping[str, Call], rounds: int, seed: int = 0) -> dict[str, list[float]]:
    """Microseconds a call, one figure a round, of each system."""
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        for _ in range(_WARM_UP_CALLS):
            call()
        repeats[name] = max(1, int(_SAMPLE_S / _seconds(call, 10)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name in turns(calls, rounds, seed):
        times[name].append(1e6 * _seconds(calls[name], repeats[name]))
    return times


def _seconds(call: Call, repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


def report(title: str, times: Mapping[str, list[float]]) -> None:
    """One line a system; ratios are those of the least, since disturbances only add."""
    print(title)
    for name, samples in times.items():
        least, median = min(samples), statistics.median(samples)
        ratio = least / min(times["Braze"])
        print(
            f"  {name:24} least {least:8.2f} us  median {median:8.2f} us  {ratio:6.2f} of Braze's"
        )


def main() -> None:
    """Print a block for each program, without gradients and with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if LOADER.wait() is None:
        print("the extension cannot be built: guards are generated Python")
    for gradients in (False, True):
        mode = "with gradients" if gradients else "without gradients"
        with torch.set_grad_enabled(gradients):
            for program, calls in dispatch_only(gradients).items():
                report(f"dispatch alone, {program}, {mode}", interleaved(calls, rounds))
            for program, calls in whole_calls(gradients).items():
                report(f"whole calls, {program}, {mode}", interleaved(calls, rounds))


if __name__ == "__main__":
    main()
