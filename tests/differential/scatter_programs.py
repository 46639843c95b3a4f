"""Random programs of scatters, gathers and products that read and write each other's values.

They add, copy and scatter rows of small integers, so that sums are exact in any order: results and
arguments are eager's bit for bit. Some rows are named more than once, some programs write to their
arguments, and some return one of them.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch

_PARAMETERS = "a, b, c, s, i, j, p, q, g"


@final
@dataclass(frozen=True, slots=True)
class ScatterProgram:
    """source: of a function `f`; rows, columns, names: the sizes of its tensors, and how many rows
    an index names."""

    seed: int
    source: str
    rows: int
    columns: int
    names: int

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The program, with lines that are found."""
        name = f"<scatters {self.seed}>"
        lines = self.source.splitlines(True)
        linecache.cache[name] = (len(self.source), None, lines, name)
        space: dict[str, Any] = {"torch": torch}
        exec(compile(self.source, name, "exec"), space)
        made: Callable[..., tuple[torch.Tensor, ...]] = space["f"]
        return made

    def arguments(self) -> list[torch.Tensor]:
        """a, b, c: of the same sizes; s: rows to take from; i, j: rows, some of them twice; p:
        rows, each once; q: a square matrix that changes nothing; g: columns."""
        numbers = torch.Generator().manual_seed(self.seed)

        def integers(low: int, high: int, *shape: int) -> torch.Tensor:
            return torch.randint(low, high, shape, generator=numbers)

        rows, columns = self.rows, self.columns
        return [
            *(integers(-4, 5, n, columns).float() for n in (rows, rows, rows, _MOST_ROWS)),
            *(integers(0, rows, self.names) for _ in range(2)),
            torch.randperm(rows, generator=numbers)[: min(3, self.names)],
            torch.eye(columns),
            integers(0, columns, rows, 2),
        ]


_MOST_ROWS = 64
_ON_ONE = 0.6  # the share of programs that begin so


def scatter_program(seed: int, sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> ScatterProgram:
    """The program of a seed. sizes: from which rows and columns are chosen."""
    draw = random.Random(seed)
    rows, columns = draw.choice(sizes[0]), draw.choice(sizes[1])
    names = draw.choice((1, 3, 50))
    values, lines = ["a", "b", "c"], []
    if draw.random() < _ON_ONE:  # writes to one tensor, each over parts of those before
        lines.append(f"v = {draw.choice(('a * 1', 'a.clone()', 'torch.zeros_like(a)', 'a'))}")
        lines += [draw.choice(_writes(draw, "v", values)) for _ in range(draw.randint(2, 5))]
        values.append("v")
    for number in range(draw.randint(0 if lines else 3, 9 - len(lines))):
        made, line = _step(draw, f"v{number}", values, columns)
        lines.append(line)
        values += made
    results = draw.sample(values, min(len(values), draw.randint(1, 4)))
    body = "\n    ".join([*lines, f"return ({', '.join(results)},)"])
    return ScatterProgram(seed, f"def f({_PARAMETERS}):\n    {body}\n", rows, columns, names)


def _writes(draw: random.Random, x: str, values: list[str]) -> tuple[str, ...]:
    """Lines that write to x: to rows that are named, to a part of it, or to all of it."""
    y, i, n = draw.choice(values), draw.choice("ij"), draw.randint(1, 3)
    return (
        f"{x}.index_add_(0, {i}, {y}[{i}] * 2)",
        f"{x}[p] = {y}[:p.shape[0]] * {n}",
        f"{x}.index_copy_(0, p, s[:p.shape[0]] + {n})",
        f"{x}[p, {n}] = 7",
        f"{x}[{y} > {n}] = -1",
        f"{x}.add_({y})" if x != y else f"{x}.mul_(2)",
        f"{x}[:, {n}] = {n}",
        f"{x}[:, -{n}:] = {n}",
        f"{x}[:, {n} - 1] *= 2",
        f"{x}[:, :{n}] *= 2",
        f"{x}[{n}:] = {y}[{n}:] + 1",
        f"{x}[-{n}:] *= 3",
        f"{x}[{n}] = {y}[0] * 2",
    )


def _step(draw: random.Random, new: str, values: list[str], columns: int) -> tuple[list[str], str]:
    """What a line makes, and the line."""
    x, y = draw.choice(values), draw.choice(values)
    i, j, n = draw.choice("ij"), draw.choice("ij"), draw.randint(1, 3)
    writes = _writes(draw, x, values)
    makes = (
        f"{x}.index_add(0, {i}, {y}[{j}] * {n})",
        f"{x}.index_copy(0, p, {y}[{i}][:p.shape[0]] + {n})",
        f"{x} * 2 + {y}",
        f"{x} - {y}",
        f"torch.zeros_like({x}).index_put(({i},), {y}[{j}], accumulate=True)",
        f"{x}.flip(0).scatter(0, {i}[:, None].expand(-1, {columns}), {n})",
        f"torch.mm({x}, q)",
        f"{x}.scatter_add(1, g, {y}[:, :2])",
        f"{x}.gather(1, g).sum(1, keepdim=True) + {y}",
    )
    at = draw.randrange(len(writes) + len(makes))
    return ([], writes[at]) if at < len(writes) else ([new], f"{new} = {makes[at - len(writes)]}")
