"""Two functions of equal graphs with kernels of different names, called in two threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

import braze

Compiled = Callable[[torch.Tensor], torch.Tensor]
X = torch.linspace(-1, 1, 5000)


def equal_graphs(number: int) -> list[Compiled]:
    """`relu(x) - number`, said in two ways; compiled and called once."""

    def relu(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) - number

    def clamp(x: torch.Tensor) -> torch.Tensor:
        return torch.clamp_min(x, 0) - number

    ready = [braze.compile(f, fullgraph=True) for f in (relu, clamp)]
    for compiled in ready:
        assert torch.equal(compiled(X), torch.relu(X) - number)
    return ready


def call_in_threads(ready: Sequence[Compiled], count: int) -> list[torch.Tensor]:
    """Call each so often in a thread of its own, all at once; the results."""
    found: list[torch.Tensor] = []

    def many(compiled: Compiled) -> None:
        found.extend(compiled(X) for _ in range(count))

    threads = [threading.Thread(target=many, args=(compiled,)) for compiled in ready]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
