"""What is compared: eager PyTorch, torch.compile and Braze, behind one interface.

Nothing here imports Braze or PyTorch's compiler before it is asked to compile: an import is a
part of what is measured, and a Braze that cannot be imported is a failure to show.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch

EAGER, TORCH_COMPILE, BRAZE = "eager", "torch_compile", "braze"


@final
@dataclass(frozen=True, slots=True)
class GraphCounts:
    """Of one compiled model: graphs, breaks between them, and torch-level calls in them."""

    graphs: int
    breaks: int
    ops: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class System:
    """One side of the comparison.

    compile: (model or function, mode or None) -> callable; the work may wait for the first call.
    start_counting: before compiling; count_graphs: (model, args, kwargs) -> GraphCounts, after
        the first call.
    """

    name: str
    title: str
    compile: Callable[[Any, str | None], Callable[..., Any]]
    start_counting: Callable[[], None]
    count_graphs: Callable[[Any, tuple[Any, ...], dict[str, Any]], GraphCounts]


def _eager(function: Any, mode: str | None) -> Callable[..., Any]:
    return function


def _torch_compile(function: Any, mode: str | None) -> Callable[..., Any]:
    return torch.compile(function, mode=mode)


def _braze(function: Any, mode: str | None) -> Callable[..., Any]:
    return importlib.import_module("braze").compile(function, mode=mode)


def _start_nothing() -> None:
    return None


def _no_graphs(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GraphCounts:
    return GraphCounts(graphs=0, breaks=0, ops=0)


def _start_counting_dynamo() -> None:
    importlib.import_module("torch._dynamo.utils").counters.clear()


def _count_dynamo(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GraphCounts:
    counters = importlib.import_module("torch._dynamo.utils").counters
    stats = counters["stats"]
    breaks = sum(counters["graph_break"].values())
    return GraphCounts(stats["unique_graphs"], breaks, stats["calls_captured"])


def _count_braze(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GraphCounts:
    explained = importlib.import_module("braze").explain(function)(*args, **kwargs)
    return GraphCounts(explained.graph_count, explained.break_count, explained.op_count)


SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System(EAGER, "eager", _eager, _start_nothing, _no_graphs),
        System(
            TORCH_COMPILE, "torch.compile", _torch_compile, _start_counting_dynamo, _count_dynamo
        ),
        System(BRAZE, "Braze", _braze, _start_nothing, _count_braze),
    )
}
