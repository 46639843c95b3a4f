"""The state of a process that tests may change, as one table: how each part is read and put back.

A part that the present PyTorch lacks is no row. What a test, or the import of its file, leaves
changed is its failure, and is put back, so that no later test meets it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, final

import torch

from braze import targets
from braze.compat.torch.ambient_state import ambient_state, set_ambient_state
from braze.compat.torch.autograd_engine import pop_saved_hooks, saved_hooks
from braze.compat.torch.dynamo_interop import says_breaks_are_errors
from braze.compat.torch.functorch import leave_transforms, transform_levels
from braze.options import Options, config
from braze.regions import REGIONS
from braze.report.logs import set_logs, shown_logs


@final
@dataclass(frozen=True)
class Part:
    """One part of the state."""

    read: Callable[[], Any]
    put: Callable[[Any], object]


# Flags of the autograd engine that have no public setter: "torch._C._is_..." and "_set_...".
_SWITCHES = ("grad_layout_enforcement", "multithreading", "view_replay")


def switches() -> Mapping[str, Part]:
    """The engine's flags that the present PyTorch has, by their names."""
    found = {}
    for name in _SWITCHES:
        read = getattr(torch._C, f"_is_{name}_enabled", None)
        put = getattr(torch._C, f"_set_{name}_enabled", None)
        if read is not None and put is not None:
            found[name] = Part(read, put)
    return found


def _put_config(options: Options) -> None:
    for field in fields(options):
        value = getattr(options, field.name)
        if getattr(config.snapshot(), field.name) != value:
            setattr(config, field.name, value)


def _put_regions(wanted: tuple[bool, ...]) -> None:
    while tuple(REGIONS):
        REGIONS.leave()
    for region in wanted:
        REGIONS.enter(region)


def _put_breaks_are_errors(wanted: bool) -> None:
    torch._dynamo.utils._set_error_on_graph_break(wanted)  # type: ignore[attr-defined]


def _put_collection(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()


# In the order in which they are put back: what encloses other state comes first.
PARTS: dict[str, Part] = {
    "transforms": Part(transform_levels, leave_transforms),
    "saved tensors' hooks": Part(saved_hooks, pop_saved_hooks),
    **switches(),
    "ambient state": Part(ambient_state, set_ambient_state),
    "options": Part(config.snapshot, _put_config),
    "logs": Part(shown_logs, lambda shown: set_logs(*shown)),
    "regions": Part(lambda: tuple(REGIONS), _put_regions),
    "regions of torch.compile": Part(says_breaks_are_errors, _put_breaks_are_errors),
    "stance": Part(lambda: targets._DISPATCHERS._stance, targets.set_stance),
    "threads": Part(torch.get_num_threads, torch.set_num_threads),
    "collection": Part(gc.isenabled, _put_collection),
    "profiler": Part(sys.getprofile, sys.setprofile),
    "switch interval": Part(sys.getswitchinterval, sys.setswitchinterval),
    "working directory": Part(os.getcwd, os.chdir),
}
State = dict[str, Any]


def state_of_process() -> State:
    """Every part as it is now, in this thread."""
    return {name: part.read() for name, part in PARTS.items()}


def put_back(state: State) -> list[str]:
    """Make every part what it was; give a line for each that was not."""
    changed = []
    for name, was in state.items():
        if (now := PARTS[name].read()) != was:
            changed.append(f"{name}: {was} is now {now}")
            PARTS[name].put(was)
    return changed


# As the process began: this file is imported before any test's.
BEGINNING = state_of_process()
