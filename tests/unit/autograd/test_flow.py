"""Minimum cuts against every cut of small random networks."""

from __future__ import annotations

import itertools
import random

from braze.autograd.flow import Network

Edges = list[tuple[int, int, int]]


def cut_of(edges: Edges, beyond: set[int]) -> int:
    """What leaves the source's side."""
    return sum(c for a, b, c in edges if a not in beyond and b in beyond)


def random_network(chance: random.Random, points: int) -> Edges:
    """Edges with small capacities, some of them parallel."""
    return [
        (chance.randrange(points), chance.randrange(points), chance.randrange(8))
        for _ in range(3 * points)
    ]


def test_no_cut_is_cheaper() -> None:
    chance = random.Random(0)
    for _ in range(200):
        points = chance.randrange(2, 8)
        edges = random_network(chance, points)
        network = Network()
        for _ in range(points - 2):
            network.add_point()
        for a, b, c in edges:
            network.connect(a, b, c)
        beyond = network.beyond_cut()
        assert 1 in beyond and 0 not in beyond
        others = range(2, points)
        subsets = itertools.chain.from_iterable(
            itertools.combinations(others, n) for n in range(points - 1)
        )
        costs = [cut_of(edges, {1, *subset}) for subset in subsets]
        assert cut_of(edges, beyond) == min(costs)


def test_the_cut_is_the_one_nearest_to_the_sink() -> None:
    network = Network()
    middle = network.add_point()
    network.connect(0, middle, 3)
    network.connect(middle, 1, 3)
    assert network.beyond_cut() == {1}
