"""A launch program as Python that runs alone: its text, and what its names stand for."""

from __future__ import annotations

import types
from typing import Any

import torch

from braze.diagnose.loop_script import op_text
from braze.interop.fx_graph import NotExpressible
from braze.ir.kernels.kernel import KernelSources
from braze.ir.kernels.schedule import ExternStep, Schedule
from braze.runtime.launch.frame_layout import FrameLayout, lay_out_frame
from braze.runtime.launch.launch_program import write_program


def launch_script(schedule: Schedule, sources: KernelSources, takes_inputs: bool) -> str:
    """The function `program(inputs)`, which calls `call` of the launch program of kernels on the
    CPU; those are `library`. Raises NotExpressible where a name has no form of its own."""
    program = write_program(schedule, sources, takes_inputs)
    layout = lay_out_frame(schedule, sources, program.views)
    named = _names_of(compile(program.text, "<launch program>", "exec"))
    entries = {segment.entry for segment in sources.segments}
    lines = [f"{name} = entry_of(library, {name!r})" for name in sorted(named & entries)]
    lines += [f"{name} = {_STUBS[name]}" for name in sorted(named & _STUBS.keys())]
    lines += [
        f"{name} = {_meaning(name, program.names[name], schedule)}"
        for name in sorted(named & program.names.keys() - _KNOWN - _STUBS.keys())
    ]
    return "\n".join([*lines, "", "", program.text.rstrip(), "", "", _frame(layout), _PROGRAM])


# --- private ---------------------------------------------------------------------------------

_STUBS = {
    "make_writes": "nothing",
    "note_write": "nothing",
    "profiled": "nothing",
    "threads": "torch.get_num_threads",
}
_KNOWN = frozenset({"raise_unmet", "after_effects", "profiler"})  # in `script_parts/launch.py`

_PROGRAM = """

def program(inputs):
    return call([*inputs])
"""


def _names_of(code: types.CodeType) -> set[str]:
    """Every global that a text's functions name."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names_of(constant)
    return found


def _meaning(name: str, value: Any, schedule: Schedule) -> str:
    if name.startswith("constant"):
        return f"constants[{name.removeprefix('constant')}]"
    if name.startswith("op") and name[2:].isdigit():
        step = schedule.steps[int(name[2:])]
        assert isinstance(step, ExternStep)
        return op_text(step.out_op or step.in_place_op or step.call.op)
    if name.startswith("new_"):
        empty = value.__self__
        return (
            f"torch.empty(0, dtype={empty.dtype}, device={str(empty.device)!r}).new_empty_strided"
        )
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout, float, complex)):
        return repr(value)
    if isinstance(value, torch.device):
        return f"torch.{value!r}"
    raise NotExpressible(f"{name} of the launch program, {type(value).__name__}")


def _frame(layout: FrameLayout) -> str:
    """`take_frame` and `give_frame`."""
    constants = ", ".join(["None" if n is None else f"constants[{n}]" for n in layout.constants])
    given = f"{layout.arena_size}, {[*layout.offsets]}, [{constants}], {layout.sizes}"
    lines = ["def take_frame():", f"    frame = Storage({given})"]
    held = [
        f"frame.view({view.start}, {view.shape}, {view.stride}, {view.offset}, {view.dtype})"
        for view in layout.views
    ]
    texts = []
    if layout.arena is not None:
        arena = layout.arena
        texts = [arena.offsets, "", "", arena.shapes, "", ""]
        views = ", ".join([f"({slot}, {dtype})" for slot, dtype in arena.views])
        held = [f"Sized(frame, lay_out, {[*arena.places]}, [{views}], fill)"]
    views = "".join([f"{view}, " for view in held])
    lines += [f"    return (frame, frame.sizes, frame.sizes, {views})", "", ""]
    return "\n".join([*texts, *lines, "give_frame = nothing"])
