"""A graph with most of its equal blocks left out, and what tells how to put them back.

    embed, layer(w0), layer(w1), ..., layer(w47), head
becomes
    embed, layer(w0), ..., layer(w4), head             43 periods left out

The blocks of the short graph stand for all: stages behind it treat five layers instead of 48, and
the schedule that comes of it is unrolled again (`braze.schedule.unroll_blocks`).
"""

from __future__ import annotations

from typing import final

from braze.frozen import frozen
from braze.ir.graphs.graph import Graph


@final
@frozen(eq=False)
class RerolledOutput:
    """A result of the whole graph: that result of the short one, so many periods later.

    in_block: the value is made inside of a period that is left out, so that only what stands for
        it in each period may hold it.
    """

    number: int
    later: int
    in_block: bool = False


@final
@frozen(eq=False)
class RerolledGraph:
    """short: the graph with fewer periods. dropped: how many periods are left out.

    inputs: per input of the short graph, the number of the same input of the whole graph.
    chains: inputs of the whole graph that consecutive periods read in the same places, in order;
        the short graph has the first of each, all but `dropped`.
    outputs: of the whole graph. seen: how many results of the short one go to the program.
    """

    short: Graph
    dropped: int
    inputs: tuple[int, ...]
    chains: tuple[tuple[int, ...], ...]
    outputs: tuple[RerolledOutput, ...]
    seen: int
