"""Programs of every stage as text, without the values of tensors: for traces."""

from __future__ import annotations

from typing import Any

from braze.ir.graphs.graph import Graph
from braze.ir.graphs.print_graph import print_graph
from braze.ir.kernels.loops import Definition, ExternCall, LoopProgram
from braze.ir.kernels.print_loops import print_loops, print_statement
from braze.ir.kernels.print_schedule import print_schedule, print_step
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule


def print_program(program: Any) -> str | None:
    """The text of a graph, a loop program, a schedule, or a list of statements, of steps or of what
    holds steps; None for anything else."""
    if isinstance(program, Graph):
        return print_graph(program, values=False)
    if isinstance(program, LoopProgram):
        return print_loops(program)
    if isinstance(program, Schedule):
        return print_schedule(program)
    steps = getattr(program, "steps", program)
    return "\n".join(map(_part, steps)) if isinstance(steps, list | tuple) else None


# --- private ---------------------------------------------------------------------------------


def _part(part: Any) -> str:
    if isinstance(part, Kernel | ExternStep):
        return "\n".join(print_step(part))
    if isinstance(part, Definition | ExternCall):
        return print_statement(part)
    return type(part).__name__
