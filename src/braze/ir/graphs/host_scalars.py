"""A graph for a device in three: scalars on the CPU before it, the graph, and writes behind it."""

from __future__ import annotations

from typing import final

import torch

from braze.frozen import frozen
from braze.ir.graphs.graph import Graph


@final
@frozen
class HostCalls:
    """What each part of a graph is given, and where the results are. Inputs by their numbers.

    begin, main, end: the graph's inputs that these take, before all else.
    buffers: the dtype and the number of elements of each buffer.
    results: per result of the graph, its place among those of `main`, or, counted from -1 down,
        among those of `begin`. own: how many are those of `begin`.
    inputs: how many the graph has, without its numbers.
    """

    begin: tuple[int, ...]
    main: tuple[int, ...]
    end: tuple[int, ...]
    buffers: tuple[tuple[torch.dtype, int], ...]
    results: tuple[int, ...]
    own: int
    inputs: int


@final
@frozen(eq=False)
class HostScalars:
    """What `split_host_scalars` makes of a graph.

    begin: computes scalars, and writes them to buffers, one a dtype, which are its last inputs. Its
        results are those of the graph that are such, and those that may outlive a call.
    main: the graph without these operators. Behind inputs of the graph it takes the elements of the
        buffers in order, the results of `begin` behind the graph's, and the graph's numbers.
    end: computes the new contents of inputs that are such scalars, and writes them.
    """

    begin: Graph
    main: Graph
    end: Graph
    calls: HostCalls

    @property
    def graphs(self) -> tuple[Graph, Graph, Graph]:
        """The three, in the order of their calls."""
        return self.begin, self.main, self.end
