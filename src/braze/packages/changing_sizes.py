"""Sizes of a packaged call that may change, one and zero among them.

One program serves every size from one on, where the size is an unbacked symbol: nothing that the
program asks has another answer for one. Where the program asks such a thing (a reshape whether it
is a view), the size is a symbol from two on, and one has a program of its own. So has zero, where
strides count a size as one.

    Dim("rows")                              rows >= 1                  and  rows = 0
    Dim("rows"), and it asks rows >= 2       rows >= 2,  rows = 1       and  rows = 0
    Dim("rows", min=2)                       rows >= 2
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, final

import torch

from braze.frozen import frozen
from braze.marks import DimensionMark, Marked, marks_of_dimensions, put_marks


class Span(enum.Enum):
    """The sizes that one program serves."""

    ANY = 1  # from one on
    SEVERAL = 2  # from two on


@final
@frozen
class ChangingSize:
    """One size that several dimensions of the arguments have.

    places: number of a leaf, dimension. least, most: its limits; None: no upper one. is_single:
    no other dimension is computed from it, so that it can be replaced by a number.
    """

    name: str
    places: tuple[tuple[int, int], ...]
    least: int
    most: int | None
    is_single: bool = True

    def numbers(self, span: Span) -> tuple[int, ...]:
        """The sizes within the limits that a program of this span does not serve."""
        return tuple(range(self.least, span.value)) if self.is_single else ()

    def mark(self, span: Span) -> Marked:
        """What dimensions of this size are marked with."""
        if span is Span.ANY:
            return Marked(DimensionMark.UNBACKED, max(self.least, 1), self.most)
        low = self.least if self.least > Span.SEVERAL.value else None
        return Marked(DimensionMark.DYNAMIC, low, self.most)


# By the names of sizes: what a program serves of each, a number or a span of them.
Choice: TypeAlias = Mapping[str, int | Span]
MOST_PROGRAMS = 9


def widest(sizes: Sequence[ChangingSize], serves: Callable[[Choice], bool]) -> dict[str, Span]:
    """The largest span of each size that one program serves. serves: whether it does."""
    spans = {s.name: Span.ANY if s.least < Span.SEVERAL.value else Span.SEVERAL for s in sizes}
    several = dict.fromkeys(spans, Span.SEVERAL)
    if spans == several or serves(spans):
        return spans
    wide = [name for name, span in spans.items() if span is Span.ANY]
    for name in wide if len(wide) > 1 else ():
        if serves({**several, name: Span.ANY}):
            several[name] = Span.ANY
    return several


def further_choices(
    sizes: Sequence[ChangingSize], spans: Mapping[str, Span]
) -> list[dict[str, int | Span]]:
    """What programs serve the sizes that the program of these spans does not; where they were too
    many, those in which one size is a number."""
    options: list[list[int | Span]] = [[spans[s.name], *s.numbers(spans[s.name])] for s in sizes]
    names = [size.name for size in sizes]
    made = [dict(zip(names, chosen)) for chosen in itertools.product(*options)][1:]
    if len(made) < MOST_PROGRAMS:
        return made
    return [choice for choice in made if sum(type(n) is int for n in choice.values()) == 1]


def in_words(choice: Choice) -> str:
    """The numbers of a choice."""
    return ", ".join([f"{name}={number}" for name, number in choice.items() if type(number) is int])


def chosen_tensors(
    tensors: Sequence[torch.Tensor], sizes: Sequence[ChangingSize], choice: Choice
) -> list[torch.Tensor] | None:
    """The arguments of an example call of these sizes; None where a tensor's strides do not say
    which it would have. What is one tensor stays one."""
    numbers: dict[int, dict[int, int]] = {}
    marks: dict[int, dict[int, Marked]] = {}
    for size in sizes:
        chosen = choice[size.name]
        for leaf, dim in size.places:
            key = id(tensors[leaf])
            if isinstance(chosen, Span):
                marks.setdefault(key, {})[dim] = size.mark(chosen)
                if tensors[leaf].shape[dim] < chosen.value and size.is_single:
                    numbers.setdefault(key, {})[dim] = max(chosen.value, size.least)
            else:
                numbers.setdefault(key, {})[dim] = chosen
                marks.setdefault(key, {})[dim] = Marked(DimensionMark.STATIC)
    made: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        if id(tensor) in made:
            continue
        changed = numbers.get(id(tensor))
        copy = tensor if changed is None else _resized(tensor, changed)
        if copy is None:
            return None
        if id(tensor) in marks:
            made[id(tensor)] = _marked(copy.detach(), tensor, marks[id(tensor)])
        else:
            made[id(tensor)] = copy
    return [made[id(tensor)] for tensor in tensors]


# --- private ---------------------------------------------------------------------------------


def _marked(copy: torch.Tensor, tensor: torch.Tensor, marks: Mapping[int, Marked]) -> torch.Tensor:
    put_marks(copy, {**marks_of_dimensions(tensor), **marks})
    return copy


def _resized(tensor: torch.Tensor, sizes: Mapping[int, int]) -> torch.Tensor | None:
    """A tensor with other sizes, its dimensions in the same order in memory; None where the tensor
    has gaps there, or overlaps."""
    stride, shape = tensor.stride(), list(tensor.shape)
    order = sorted(range(tensor.dim()), key=lambda dim: (stride[dim], shape[dim], -dim))
    expected = 1
    for dim in order:
        if shape[dim] != 1 and stride[dim] != expected:
            return None
        expected *= max(shape[dim], 1)
    made, step = list(stride), 1
    for dim in order:
        shape[dim] = sizes.get(dim, shape[dim])
        made[dim] = step
        step *= max(shape[dim], 1)
    # Zeros: indices into tables are in range.
    return torch.empty_strided(shape, made, dtype=tensor.dtype, device=tensor.device).zero_()
