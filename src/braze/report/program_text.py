"""Programs of every stage as text, without the values of tensors: for traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from braze.ir.graphs.graph import Graph, Node
from braze.ir.graphs.print_graph import print_graph, print_node
from braze.ir.kernels.loops import Definition, ExternCall, LoopProgram
from braze.ir.kernels.print_loops import print_loops, print_statement
from braze.ir.kernels.print_schedule import print_schedule, print_step
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule


@final
class ProgramPrinter:
    """Prints the programs of one compile. A pass leaves most nodes of a graph, or steps of a
    schedule, as they are: their lines are printed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}  # parts of the latest program, by id

    def __call__(self, program: object) -> str | None:
        """The text of a graph, a loop program, a schedule, or a list of statements, of steps or of
        what holds steps; None for anything else."""
        before = self._known
        now: dict[int, tuple[Any, str]] = {}

        def line_of(part: object) -> str:
            found = before.get(id(part)) or (part, _part(part))
            now[id(part)] = found
            return found[1]

        text = _text(program, line_of)
        self._known = now
        return text


# --- private ---------------------------------------------------------------------------------


def _text(program: object, line_of: Callable[[object], str]) -> str | None:
    if isinstance(program, Graph):
        return print_graph(program, values=False, known=line_of)
    if isinstance(program, LoopProgram):
        return print_loops(program)
    if isinstance(program, Schedule):
        return print_schedule(program)
    steps = getattr(program, "steps", program)
    return "\n".join(map(line_of, steps)) if isinstance(steps, list | tuple) else None


def _part(part: object) -> str:
    if isinstance(part, Node):
        return print_node(part)
    if isinstance(part, Kernel | ExternStep):
        return "\n".join(print_step(part))
    if isinstance(part, Definition | ExternCall):
        return print_statement(part)
    return type(part).__name__
