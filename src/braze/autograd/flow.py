"""Minimum cut of a network by maximum flow: Dinic's algorithm (1970), on integer capacities."""

from __future__ import annotations

from collections import deque
from typing import final

UNLIMITED = 1 << 62


@final
class Network:
    """Edges with capacities between numbered points; 0 is the source, 1 the sink.

    Edge 2k and edge 2k + 1 are one edge and its reverse.
    """

    def __init__(self) -> None:
        self.edges: list[list[int]] = [[], []]
        self.target: list[int] = []
        self.room: list[int] = []

    def add_point(self) -> int:
        """A new point's number."""
        self.edges.append([])
        return len(self.edges) - 1

    def connect(self, start: int, end: int, capacity: int) -> None:
        """An edge from start to end."""
        for point, other, room in ((start, end, capacity), (end, start, 0)):
            self.edges[point].append(len(self.target))
            self.target.append(other)
            self.room.append(room)

    def beyond_cut(self) -> set[int]:
        """The points on the sink's side of the minimum cut that is nearest to the sink. Changes
        the capacities: a network is asked once."""
        while self._levels():
            pass
        return self._reaching_sink()

    # --- private -------------------------------------------------------------------------------

    def _levels(self) -> bool:
        """One phase: distances from the source, then paths that keep to them until none is left.
        Returns whether there was a path."""
        level = [-1] * len(self.edges)
        level[0] = 0
        queue = deque([0])
        while queue:
            point = queue.popleft()
            for edge in self.edges[point]:
                other = self.target[edge]
                if self.room[edge] and level[other] < 0:
                    level[other] = level[point] + 1
                    queue.append(other)
        if level[1] < 0:
            return False
        tried = [0] * len(self.edges)
        while self._augment(level, tried):
            pass
        return True

    def _augment(self, level: list[int], tried: list[int]) -> bool:
        """Send what fits along one path from source to sink; False where there is none."""
        path: list[int] = []
        point = 0
        while point != 1:
            edges = self.edges[point]
            while tried[point] < len(edges):
                edge = edges[tried[point]]
                other = self.target[edge]
                if self.room[edge] and level[other] == level[point] + 1:
                    path.append(edge)
                    point = other
                    break
                tried[point] += 1
            else:
                if not path:
                    return False
                point = self.target[path.pop() ^ 1]
                tried[point] += 1
        sent = min(self.room[edge] for edge in path)
        for edge in path:
            self.room[edge] -= sent
            self.room[edge ^ 1] += sent
        return True

    def _reaching_sink(self) -> set[int]:
        """The points from which something more could flow to the sink."""
        found = {1}
        queue = deque([1])
        while queue:
            for edge in self.edges[queue.popleft()]:
                other = self.target[edge]
                if self.room[edge ^ 1] and other not in found:
                    found.add(other)
                    queue.append(other)
        return found
