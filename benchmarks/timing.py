"""Time several callables against each other: interleaved, in an order drawn anew each round.

Machines drift: clocks change, neighbours come and go. Each round therefore times every system
once, and systems are compared within rounds (`benchmarks.intervals.paired_ratio`). Each turn begins
with a call that is not timed: it finds caches and the heap as another system left them, which those
who call one system again and again do not. (Where another's last `free` gave the heap's end back,
BERT's logits of 16 MiB on the CPU are 4,096 page faults: 3 ms of 38.)
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from benchmarks.clocks import synchronize
from benchmarks.models import CallArguments

Arguments: TypeAlias = Callable[[], CallArguments]

_SHORTEST_SAMPLE_S = 0.005
_WARM_UP_CALLS = 3


def warm_up(function: Callable[..., Any], arguments: Arguments, device: str) -> float:
    """Call a few times; seconds of the fastest."""
    fastest = float("inf")
    for _ in range(_WARM_UP_CALLS):
        fastest = min(fastest, _sample(function, [arguments()], device))
    return fastest


def interleave(
    functions: Mapping[str, Callable[..., Any]],
    arguments: Arguments,
    device: str,
    rounds: int,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Seconds a call, one figure a round, of each function. Every function was warmed up before.

    A sample is as many calls as take 5 ms, the same number for all; arguments are made before
    the clock starts.
    """
    slowest = max(warm_up(function, arguments, device) for function in functions.values())
    calls = max(1, round(_SHORTEST_SAMPLE_S / slowest))
    times: dict[str, list[float]] = {name: [] for name in functions}
    for name in turns(functions, rounds, seed):
        first, *prepared = [arguments() for _ in range(1 + calls)]
        _sample(functions[name], [first], device)
        times[name].append(_sample(functions[name], prepared, device))
    return times


def turns(names: Iterable[str], rounds: int, seed: int) -> Iterator[str]:
    """Whose turn it is: every name once a round, in an order drawn anew."""
    shuffler = random.Random(seed)
    order = list(names)
    for _ in range(rounds):
        drawn = list(order)
        shuffler.shuffle(drawn)
        yield from drawn


def _sample(function: Callable[..., Any], prepared: list[CallArguments], device: str) -> float:
    synchronize(device)
    start = time.perf_counter()
    for args, kwargs in prepared:
        function(*args, **kwargs)
    synchronize(device)
    return (time.perf_counter() - start) / len(prepared)
