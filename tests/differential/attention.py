"""Random programs that write attention out: how products, scales, masks and casts are spelled, and
in which order and shapes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from braze.frozen import frozen

_LEAST = torch.finfo(torch.float32).min


@final
@frozen
class Step:
    """One thing that is done to scores; shape: of the mask that it takes, or None."""

    kind: str
    amount: float = 0.0
    shape: tuple[int, ...] | None = None


@final
@frozen
class AttentionProgram:
    """sizes: batch, heads, queries, keys, width. joined: the softmax sees heads as a batch."""

    sizes: tuple[int, int, int, int, int]
    product: str
    steps: tuple[Step, ...]
    joined: bool
    in_float32: bool
    heads_inside: bool
    seed: int

    def __call__(self, q: Any, k: Any, v: Any, *masks: Any) -> Any:
        """The program itself."""
        batch, heads, length, count, width = self.sizes
        scores, given = self._scores(q, k), iter(masks)
        for step in self.steps:
            mask = None if step.shape is None else next(given)
            scores = _STEPS[step.kind](scores, mask, step.amount)
        if self.joined:
            scores = scores.reshape(batch * heads, length, count)
        wide = torch.float64 if v.dtype == torch.float64 else torch.float32
        weights = torch.softmax(scores, -1, dtype=wide if self.in_float32 else None).to(v.dtype)
        if self.joined:
            values = v.reshape(batch * heads, count, width)
            return torch.bmm(weights, values).view(batch, heads, length, width)
        if self.product == "einsum":
            return torch.einsum("bhls,bhsd->bhld", weights, v)
        return weights @ v

    def _scores(self, q: Any, k: Any) -> Any:
        batch, heads, length, count, width = self.sizes
        if self.product == "einsum":
            return torch.einsum("bhld,bhsd->bhls", q, k)
        if self.product == "einsum of heads inside":
            q, k = q.transpose(1, 2), k.transpose(1, 2)
            return torch.einsum("blhd,bshd->bhls", q, k)
        if self.product == "bmm":
            q = q.reshape(batch * heads, length, width)
            k = k.reshape(batch * heads, count, width)
            return torch.bmm(q, k.transpose(1, 2)).view(batch, heads, length, count)
        return q @ k.transpose(-2, -1)

    def inputs(self) -> list[torch.Tensor]:
        """Query, keys, values, and the masks."""
        batch, heads, length, count, width = self.sizes
        random_numbers = torch.Generator().manual_seed(self.seed)

        def operand(rows: int) -> torch.Tensor:
            if self.heads_inside:
                shape = (batch, rows, heads, width)
                return torch.randn(shape, generator=random_numbers).transpose(1, 2)
            return torch.randn(batch, heads, rows, width, generator=random_numbers)

        masks = [
            _mask(step.kind, step.shape, random_numbers)
            for step in self.steps
            if step.shape is not None
        ]
        return [operand(length), operand(count), operand(count), *masks]


def random_program(seed: int) -> AttentionProgram:
    """The program of that number."""
    choose = random.Random(seed)
    batch, heads = choose.choice([1, 2, 3]), choose.choice([1, 2, 4])
    length, count = choose.choice([1, 5, 16]), choose.choice([1, 5, 16, 33])
    length = count if choose.random() < 0.3 else length
    sizes = (batch, heads, length, count, choose.choice([1, 4, 8]))
    products = ("matmul", "einsum", "einsum of heads inside", "bmm")
    return AttentionProgram(
        sizes=sizes,
        product=choose.choice(products),
        steps=tuple([_random_step(choose, sizes) for _ in range(choose.randint(0, 3))]),
        joined=choose.random() < 0.3,
        in_float32=choose.random() < 0.2,
        heads_inside=choose.random() < 0.5,
        seed=seed,
    )


def _random_step(choose: random.Random, sizes: Sequence[int]) -> Step:
    kind = choose.choice([*_STEPS])
    if kind in _WITHOUT_MASK:
        return Step(kind, choose.choice([0.25, 1.0, 2.0]))
    batch, heads, length, count, _ = sizes
    shapes = [(length, count), (batch, 1, 1, count), (batch, 1, length, count)]
    shapes += [(1, heads, length, count), (count,), (heads, 1, count), (1, 1, length, 1)]
    return Step(kind, shape=choose.choice(shapes))


def _mask(kind: str, shape: tuple[int, ...], random_numbers: torch.Generator) -> torch.Tensor:
    hidden = torch.rand(shape, generator=random_numbers) < 0.5
    if kind in ("fill", "choose", "keep", "fill with the least", "fill far below"):
        return hidden
    if kind == "add -inf":
        return torch.zeros(shape).masked_fill(hidden, -torch.inf)
    if kind == "add the least":
        return torch.zeros(shape).masked_fill(hidden, _LEAST)
    return torch.randn(shape, generator=random_numbers)


def _later(scores: Any) -> Any:
    return torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)


def _least_later(scores: Any) -> Any:
    least = torch.finfo(scores.dtype).min
    return torch.full(scores.shape[-2:], least, dtype=scores.dtype).triu(1)


_STEPS: dict[str, Callable[[Any, Any, float], Any]] = {
    "times": lambda scores, mask, amount: scores * amount,
    "of": lambda scores, mask, amount: amount * scores,
    "by": lambda scores, mask, amount: scores / amount,
    "later": lambda scores, mask, amount: scores.masked_fill(_later(scores), -torch.inf),
    "least later": lambda scores, mask, amount: scores + _least_later(scores),
    "fill": lambda scores, mask, amount: scores.masked_fill(mask, -torch.inf),
    "choose": lambda scores, mask, amount: torch.where(mask, -torch.inf, scores),
    "keep": lambda scores, mask, amount: torch.where(~mask, scores, -torch.inf),
    "fill with the least": lambda scores, mask, amount: scores.masked_fill(mask, _LEAST),
    "fill far below": lambda scores, mask, amount: scores.masked_fill(mask, -1e9),
    "add": lambda scores, mask, amount: scores + mask,
    "add to": lambda scores, mask, amount: mask + scores,
    "subtract": lambda scores, mask, amount: scores - mask,
    "add -inf": lambda scores, mask, amount: scores + mask,
    "add the least": lambda scores, mask, amount: scores + mask,
}
_WITHOUT_MASK = frozenset({"times", "of", "by", "later", "least later"})
