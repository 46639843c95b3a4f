"""Random programs about shapes: views, broadcasting, cat, split, slicing, padding, convolutions.

A program is a list of steps on one tensor, decided by the rank and by which dimensions vary, so
that the same program runs at any size: sizes are only spoken of as `x.shape[d]`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch.nn import functional

Step: TypeAlias = tuple[str, Callable[[torch.Tensor], torch.Tensor]]


@final
@dataclass(frozen=True, slots=True)
class ShapeProgram:
    """steps: what is done, with a text each; calls: tensors of one rank, in several sizes."""

    steps: tuple[Step, ...]
    calls: tuple[torch.Tensor, ...]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for _, step in self.steps:
            x = step(x)
        return x

    def kinds(self) -> int:
        """How many kinds of call there are: sizes of zero and one, and gaps in memory, are programs
        of their own."""
        return len({self._kind(x) for x in self.calls})

    def _kind(self, x: torch.Tensor) -> tuple[Any, ...]:
        found = []
        for _, step in self.steps:
            x = step(x)
            found.append((*(min(size, 2) for size in x.shape), x.is_contiguous()))
        return tuple(found)

    def __str__(self) -> str:
        lines = [text for text, _ in self.steps]
        return "\n".join([*lines, f"on {[tuple(x.shape) for x in self.calls]}"])


def shape_program(seed: int, calls: int = 5) -> ShapeProgram:
    """The program of a seed; every call's tensor runs in eager."""
    generator = random.Random(seed)
    rank = generator.randint(1, 4)
    varying = [d for d in range(rank) if generator.random() < 0.6] or [0]
    fixed = [generator.choice((2, 3, 4, 8)) for _ in range(rank)]
    tensors = []
    torch.manual_seed(seed)
    for _ in range(calls):
        shape = [generator.randint(4, 17) if d in varying else fixed[d] for d in range(rank)]
        tensors.append(_laid_out(torch.randn(shape), seed))
    steps: list[Step] = []
    wanted = generator.randint(2, 6)
    for _ in range(wanted * 6):
        if len(steps) == wanted:
            break
        step = generator.choice(_STEPS)(generator)
        trial = ShapeProgram((*steps, step), tuple(tensors))
        if _runs(trial):
            steps.append(step)
    return ShapeProgram(tuple(steps), tuple(tensors))


def _laid_out(x: torch.Tensor, seed: int) -> torch.Tensor:
    """Some programs start from transposed or expanded memory."""
    if seed % 7 == 3 and x.dim() > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if seed % 11 == 5:
        return x[..., :1].contiguous().expand(x.shape)
    return x


def _runs(program: ShapeProgram) -> bool:
    for x in program.calls:
        try:
            y = program(x.clone() if x.is_contiguous() else x)
        except (RuntimeError, IndexError, ValueError):
            return False
        if not 0 < y.numel() < 20000 or y.dim() > 5 or not torch.isfinite(y).all():
            return False
    return True


# --- steps ---------------------------------------------------------------------------------------

_MAKERS: TypeAlias = Callable[[random.Random], Step]


def _dim(g: random.Random) -> int:
    return g.randint(-4, 3)


def _flatten(g: random.Random) -> Step:
    a = g.randint(0, 2)
    return f"flatten({a})", lambda x: x.flatten(a)


def _reshape(g: random.Random) -> Step:
    d, n = _dim(g), g.choice((2, 3, 4))
    return f"reshape(.., -1, {n}) at {d}", lambda x: x.reshape(
        *x.shape[: d % x.dim()], -1, n, *x.shape[d % x.dim() + 1 :]
    )


def _view_pair(g: random.Random) -> Step:
    return "view(a * b, -1)", lambda x: x.contiguous().view(x.shape[0] * x.shape[1], -1)


def _transpose(g: random.Random) -> Step:
    a, b = _dim(g), _dim(g)
    return f"transpose({a}, {b})", lambda x: x.transpose(a, b)


def _slice(g: random.Random) -> Step:
    d, start, step = _dim(g), g.randint(0, 2), g.choice((1, 1, 2))
    return f"slice from {start} by {step} at {d}", lambda x: x.movedim(d, 0)[start::step].movedim(
        0, d
    )


def _half(g: random.Random) -> Step:
    d = _dim(g)
    return f"narrow to half at {d}", lambda x: x.narrow(d, 0, x.shape[d] // 2)


def _last(g: random.Random) -> Step:
    n = g.randint(1, 3)
    return f"[-{n}:]", lambda x: x[-n:]


def _cat(g: random.Random) -> Step:
    d, n = _dim(g), g.randint(1, 3)
    return f"cat with a part at {d}", lambda x: torch.cat([x, x.narrow(d, 0, n), x * 2], d)


def _split(g: random.Random) -> Step:
    d, n = _dim(g), g.choice((1, 2, 3))
    return (
        f"split off {n} at {d}",
        lambda x: (
            sum(part.mean() for part in x.split([n, x.shape[d] - n], d))
            + x.split([n, x.shape[d] - n], d)[1]
        ),
    )


def _pad(g: random.Random) -> Step:
    a, b = g.randint(0, 3), g.randint(-1, 3)
    return f"pad({a}, {b})", lambda x: functional.pad(x, (a, b))


def _broadcast(g: random.Random) -> Step:
    d = _dim(g)
    return f"minus mean at {d}", lambda x: x - x.mean(d, keepdim=True)


def _arange(g: random.Random) -> Step:
    return "plus arange", lambda x: x + torch.arange(x.shape[-1]) / x.shape[0]


def _reduce(g: random.Random) -> Step:
    d = _dim(g)
    return f"sum({d})", lambda x: x.sum(d) if x.dim() > 1 else x.cumsum(0)


def _softmax(g: random.Random) -> Step:
    d = _dim(g)
    return f"softmax({d})", lambda x: x.softmax(d)


def _expand(g: random.Random) -> Step:
    return "unsqueeze and expand", lambda x: x.unsqueeze(0).expand(3, *x.shape) * 0.5


def _matmul(g: random.Random) -> Step:
    return "x @ x.mT", lambda x: (x @ x.mT) / x.shape[-1]


def _convolve(g: random.Random) -> Step:
    k, s, p = g.randint(1, 3), g.randint(1, 2), g.randint(0, 1)
    return f"conv1d({k}, {s}, {p})", lambda x: functional.conv1d(
        x.reshape(x.shape[0], 1, -1), torch.ones(2, 1, k) / k, stride=s, padding=p
    )


def _pool(g: random.Random) -> Step:
    k = g.randint(2, 3)
    return f"max_pool2d({k})", lambda x: functional.max_pool2d(
        x.reshape(1, 1, x.shape[0], -1), k, padding=1
    )


def _flip(g: random.Random) -> Step:
    d = _dim(g)
    return f"flip({d})", lambda x: x.flip(d)


def _triangle(g: random.Random) -> Step:
    n = g.randint(-1, 1)
    return f"tril({n})", lambda x: x.tril(n)


def _relu(g: random.Random) -> Step:
    return "relu(x * n)", lambda x: torch.relu(x * x.shape[-1])


_STEPS: list[Any] = [
    *(_flatten, _reshape, _view_pair, _transpose, _slice, _half, _last, _cat, _split, _pad),
    *(_broadcast, _arange, _reduce, _softmax, _expand, _matmul, _convolve, _pool, _flip),
    *(_triangle, _relu),
]
