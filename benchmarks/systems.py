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
TORCH_COMPILE_AUTOGRAD = "torch_compile_autograd"


@final
@dataclass(frozen=True, slots=True)
class GraphCounts:
    """Of what was compiled since counting started, recompiles included.

    ops: operators in all graphs (torch.compile: torch-level calls; Braze: ATen operators).
    fallbacks: what ran otherwise than compiled, one sentence each.
    """

    graphs: int
    breaks: int
    ops: int
    fallbacks: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True, eq=False)
class System:
    """One side of the comparison.

    compile: (model or function, mode or None) -> callable; the work may wait for the first call.
    start_counting: called before compiling; count_graphs: after the calls. settle: waits for what
    the system still does in the background, before its calls are timed. draws_itself: its random
    numbers are not eager's for the same seed, so that what depends on them cannot be compared.
    """

    name: str
    title: str
    compile: Callable[[Any, str | None], Callable[..., Any]]
    start_counting: Callable[[], None]
    count_graphs: Callable[[], GraphCounts]
    settle: Callable[[], object]
    draws_itself: bool = False


def _eager(function: Any, mode: str | None) -> Callable[..., Any]:
    return function


def _torch_compile(function: Any, mode: str | None) -> Callable[..., Any]:
    return torch.compile(function, mode=mode)


def _torch_compile_autograd(function: Any, mode: str | None) -> Callable[..., Any]:
    """torch.compile with its own tracing of `backward()` switched on."""
    config = importlib.import_module("torch._dynamo.config")
    compiled = torch.compile(function, mode=mode)

    def call(*args: Any, **kwargs: Any) -> Any:
        with config.patch(trace_autograd_ops=True):
            return compiled(*args, **kwargs)

    return call


def _braze(function: Any, mode: str | None) -> Callable[..., Any]:
    return importlib.import_module("braze").compile(function, mode=mode)


def _start_nothing() -> None:
    return None


def _settle_braze() -> None:
    """The extension that checks guards is built in a thread of its own, once a machine."""
    importlib.import_module("braze.runtime.guards.native_extension").LOADER.wait()


def _no_graphs() -> GraphCounts:
    return GraphCounts(graphs=0, breaks=0, ops=0)


def _start_counting_dynamo() -> None:
    importlib.import_module("torch._dynamo.utils").counters.clear()


def _count_dynamo() -> GraphCounts:
    counters = importlib.import_module("torch._dynamo.utils").counters
    stats = counters["stats"]
    breaks = sum(counters["graph_break"].values())
    return GraphCounts(stats["unique_graphs"], breaks, stats["calls_captured"])


def _start_counting_braze() -> None:
    importlib.import_module("braze.trace").JOURNAL.clear()


def _count_braze() -> GraphCounts:
    journal = importlib.import_module("braze.trace").JOURNAL
    found = importlib.import_module("braze.report.explain").summarise("", journal, None)
    return GraphCounts(found.graph_count, found.break_count, found.op_count, found.fallbacks)


SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System(EAGER, "eager", _eager, _start_nothing, _no_graphs, _start_nothing),
        System(
            TORCH_COMPILE,
            "torch.compile",
            _torch_compile,
            _start_counting_dynamo,
            _count_dynamo,
            _start_nothing,
            draws_itself=True,
        ),
        System(
            TORCH_COMPILE_AUTOGRAD,
            "torch.compile+autograd",
            _torch_compile_autograd,
            _start_counting_dynamo,
            _count_dynamo,
            _start_nothing,
            draws_itself=True,
        ),
        System(BRAZE, "Braze", _braze, _start_counting_braze, _count_braze, _settle_braze),
    )
}
