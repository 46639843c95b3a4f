"""torch.distributed: its questions are interpreted, and whatever communicates breaks the graph.

    rank = dist.get_rank()            interpreted: the group that is there is guarded
    dist.all_reduce(x)                a break at the call, which is made for real

The rest of the module is Python that calls a process group; a break at the call itself keeps that
whole. Functional collectives are no part of it: they are operators of a graph.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# Public functions that ask only: by Python code that reads what is guarded.
_QUESTIONS = frozenset(
    (
        "get_backend get_backend_config get_default_backend_for_device get_global_rank "
        "get_group_rank get_node_local_rank get_process_group_ranks get_rank get_world_size "
        "is_available is_backend_available is_gloo_available is_initialized is_mpi_available "
        "is_nccl_available is_torchelastic_launched is_ucc_available is_xccl_available "
        "supports_complex get_pg_count get_debug_level"
    ).split()
)
# Private names by which programs communicate all the same.
_PRIVATE = frozenset(
    "_all_gather_base _reduce_scatter_base _coalescing_manager _time_estimator "
    "_broadcast_coalesced".split()
)
_MODULES = ("torch.distributed", "torch.distributed.distributed_c10d")


def communicating_functions() -> dict[object, str]:
    """The functions of torch.distributed that break the graph where they are called: all public
    ones but for its questions."""
    found: dict[Any, str] = {}
    space = vars(torch.distributed)
    inner = vars(space["distributed_c10d"]) if "distributed_c10d" in space else {}
    for name, value in (*space.items(), *inner.items()):
        if type(value) is not types.FunctionType or value.__module__ not in _MODULES:
            continue
        if name in _PRIVATE or not (name.startswith("_") or name in _QUESTIONS):
            found.setdefault(value, name)
    return found


def _communicates(name: str) -> Callable[..., object]:
    def stop(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        raise BreakRequested("communication", f"torch.distributed.{name}()")

    return stop


for _function, _name in communicating_functions().items():
    answers(_function)(_communicates(_name))
