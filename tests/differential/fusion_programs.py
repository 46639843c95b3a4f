"""Random programs of operators that fuse: made, run by eager, and printed.

A program is a list of steps over numbered values, the inputs first. It is made while eager runs
it, so that every step is one that eager accepts. Values of floats are kept small. A value is
*exact* where no rounding lies behind it: only such values are compared with others or searched,
since a rounding less must not decide a branch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch

Tensor: TypeAlias = torch.Tensor
Operator: TypeAlias = Callable[..., Tensor]

F32, BF16, I64, BOOL = torch.float32, torch.bfloat16, torch.int64, torch.bool
DIMENSIONS = (0, 1, 1, 2, 3, 5, 7, 8, 13, 16, 17, 33, 64, 65, 130, 300)
MOST_ELEMENTS = 60000


@final
@dataclass(frozen=True, slots=True)
class Step:
    """One call: its text, with {0}, {1} for the operands, whose places are `operands`."""

    text: str
    operands: tuple[int, ...]
    function: Operator

    def __str__(self) -> str:
        return self.text.format(*(f"v{place}" for place in self.operands))


@final
@dataclass(frozen=True, slots=True)
class Program:
    """inputs; steps, whose values are numbered after the inputs'; the places of the results."""

    inputs: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        values = list(inputs)
        for step in self.steps:
            values.append(step.function(*(values[place] for place in step.operands)))
        return [values[place] for place in self.results]

    def __str__(self) -> str:
        lines = [
            f"v{i}: {x.dtype} {list(x.shape)} strides {x.stride()}"
            for i, x in enumerate(self.inputs)
        ]
        lines += [f"v{i} = {step}" for i, step in enumerate(self.steps, start=len(self.inputs))]
        return "\n".join([*lines, f"return {', '.join(f'v{i}' for i in self.results)}"])


def make_program(seed: int) -> Program:
    """The program of a seed, its inputs included."""
    return _Maker(random.Random(seed), torch.Generator().manual_seed(seed)).program()


# --- private ---------------------------------------------------------------------------------

_FLOAT = "sigmoid tanh relu neg abs sin square".split()
_PLAIN = "neg abs relu".split()
_PAIRS = "add sub mul maximum minimum".split()
_COMPARISONS = "lt le eq ne gt ge".split()


@final
class _Maker:
    def __init__(self, choice: random.Random, generator: torch.Generator) -> None:
        self.choice, self.generator = choice, generator
        self.values: list[Tensor] = []
        self.exact: list[bool] = []
        self.steps: list[Step] = []

    def program(self) -> Program:
        shape = [self.choice.choice(DIMENSIONS) for _ in range(self.choice.randint(1, 4))]
        while torch.Size(shape).numel() > MOST_ELEMENTS:
            shape[self.choice.randrange(len(shape))] = self.choice.choice((1, 2, 5))
        for _ in range(self.choice.randint(1, 3)):
            self.values.append(self._input(shape))
            self.exact.append(True)
        inputs = tuple(self.values)
        wanted = self.choice.randint(2, 10)
        for _ in range(8 * wanted):
            if len(self.steps) == wanted:
                break
            self._try(self.choice.choice(_KINDS))
        last = len(self.values) - 1
        others = [self.choice.randrange(len(inputs), last + 1) for _ in range(2) if self.steps]
        return Program(inputs, tuple(self.steps), tuple(dict.fromkeys([last, *others])))

    def _input(self, shape: Sequence[int]) -> Tensor:
        kept = [1 if self.choice.random() < 0.15 else n for n in shape]
        dtype = self.choice.choice((F32, F32, BF16, I64, BOOL))
        layout = self.choice.choice(("plain", "plain", "transposed", "strided", "expanded"))
        if layout == "transposed":
            return self._filled(kept[::-1], dtype).permute(*range(len(kept))[::-1])
        if layout == "strided":
            return self._filled([*kept[:-1], 2 * kept[-1] + 1], dtype)[..., 1::2]
        if layout == "expanded":
            axis = self.choice.randrange(len(kept))
            one = [1 if d == axis else n for d, n in enumerate(kept)]
            return self._filled(one, dtype).expand(kept)
        return self._filled(kept, dtype)

    def _filled(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if dtype in (I64, BOOL):
            low, high = (0, 2) if dtype == BOOL else (-9, 10)
            return torch.randint(low, high, list(shape), generator=self.generator).to(dtype)
        return torch.randn(list(shape), generator=self.generator).to(dtype)

    def _try(self, kind: Callable[[_Maker], tuple[str, tuple[int, ...], Operator, bool]]) -> None:
        try:
            text, operands, function, exact = kind(self)
            made = function(*(self.values[place] for place in operands))
        except (RuntimeError, IndexError, TypeError, ValueError):
            return
        if made.dtype not in (F32, BF16, I64, BOOL) or made.numel() > MOST_ELEMENTS:
            return
        self.steps.append(Step(text, operands, function))
        self.values.append(made)
        self.exact.append((exact or not made.is_floating_point()) and self._all_exact(operands))

    def _all_exact(self, operands: Sequence[int]) -> bool:
        return all(self.exact[place] for place in operands)

    def _pick(self, exact: bool = False) -> int:
        places = [i for i in range(len(self.values)) if self.exact[i] or not exact]
        return self.choice.choice(places[-6:] if self.choice.random() < 0.7 else places)

    def _axis(self, place: int) -> int:
        return self.choice.randrange(self.values[place].dim())

    # --- kinds of steps ------------------------------------------------------------------------

    def unary(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        place = self._pick()
        name = self.choice.choice(_FLOAT if self.values[place].is_floating_point() else _PLAIN)
        return f"{name}({{0}})", (place,), getattr(torch, name), name in _PLAIN

    def pair(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        name = self.choice.choice(_PAIRS)
        exact = name in ("maximum", "minimum")
        return f"{name}({{0}}, {{1}})", (self._pick(), self._pick()), getattr(torch, name), exact

    def comparison(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        name = self.choice.choice(_COMPARISONS)
        places = self._pick(exact=True), self._pick(exact=True)
        return f"{name}({{0}}, {{1}})", places, getattr(torch, name), True

    def where(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        places = self._pick(exact=True), self._pick(), self._pick()
        text = "where({0} != 0, {1}, {2})"
        return text, places, lambda c, x, y: torch.where(c != 0, x, y), True

    def convert(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        place = self._pick()
        inexact = self.values[place].is_floating_point() and not self.exact[place]
        dtype = self.choice.choice((F32, BF16) if inexact else (F32, BF16, I64, BOOL))
        return f"{{0}}.to({dtype})", (place,), lambda x: x.to(dtype), True

    def reduction(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        place, keep = self._pick(), self.choice.random() < 0.5
        count = self.choice.randint(1, self.values[place].dim())
        axes = sorted(self.choice.sample(range(self.values[place].dim()), count))
        name = self.choice.choice("sum mean amax amin any all".split())
        text = f"{name}({{0}}, dim={axes}, keepdim={keep})"
        function = getattr(torch, name)
        if name in ("any", "all") and not self.exact[place]:
            name = "amax"
        return text, (place,), lambda x: function(x, dim=axes, keepdim=keep), name[:2] == "am"

    def search(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        place, keep = self._pick(exact=True), self.choice.random() < 0.5
        axis, name = self._axis(place), self.choice.choice(("argmax", "argmin"))
        text, function = f"{name}({{0}}, {axis}, {keep})", getattr(torch, name)
        return text, (place,), lambda x: function(x, axis, keep), True

    def softmax(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        place = self._pick()
        axis = self._axis(place)
        return f"softmax({{0}}, {axis})", (place,), lambda x: torch.softmax(x, axis), False

    def reorder(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        place = self._pick()
        order = self.choice.sample(range(self.values[place].dim()), self.values[place].dim())
        return f"{{0}}.permute({order})", (place,), lambda x: x.permute(order), True

    def reshape(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        place = self._pick()
        shape = list(self.values[place].shape)
        if self.choice.random() < 0.5 and len(shape) > 1:
            axis = self.choice.randrange(len(shape) - 1)
            shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
        else:
            axis = self.choice.randrange(len(shape))
            factor = self.choice.choice([n for n in (1, 2, 3, 5, 8) if shape[axis] % n == 0])
            shape[axis : axis + 1] = [factor, shape[axis] // factor]
        return f"{{0}}.reshape({shape})", (place,), lambda x: x.reshape(shape), True

    def part(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        place = self._pick()
        axis, start = self._axis(place), self.choice.randrange(3)
        step = self.choice.choice((1, 1, 2, 3))
        where = (slice(None),) * axis + (slice(start, None, step),)
        text = f"{{0}}[{':, ' * axis}{start}::{step}]"
        return text, (place,), lambda x: x[where], True

    def stretch(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        place = self._pick()
        axis, count = (
            self.choice.randint(0, self.values[place].dim()),
            self.choice.choice((1, 2, 7)),
        )
        shape = list(self.values[place].shape)
        shape.insert(axis, count)
        text = f"{{0}}.unsqueeze({axis}).expand({shape})"
        return text, (place,), lambda x: x.unsqueeze(axis).expand(shape), True

    def joined(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        first = self._pick()
        likely = [i for i, v in enumerate(self.values) if v.dim() == self.values[first].dim()]
        places = (first, *(self.choice.choice(likely) for _ in range(self.choice.randint(1, 2))))
        axis = self._axis(first)
        named = ", ".join(f"{{{i}}}" for i in range(len(places)))
        return f"cat([{named}], {axis})", places, lambda *xs: torch.cat(xs, axis), True

    def padded(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        place = self._pick()
        count = self.choice.randint(1, self.values[place].dim())
        widths = [self.choice.choice((-1, 0, 1, 2)) for _ in range(2 * count)]
        value = self.choice.choice((0, 1))
        pad = torch.nn.functional.pad
        text = f"pad({{0}}, {widths}, value={value})"
        return text, (place,), lambda x: pad(x, widths, value=value), True

    def flipped(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        place = self._pick()
        axis = self._axis(place)
        return f"{{0}}.flip({axis})", (place,), lambda x: x.flip(axis), True

    def gathered(self) -> tuple[str, tuple[int, ...], Operator, bool]:
        place = self._pick()
        index = self.choice.choice([i for i, v in enumerate(self.values) if v.dtype == I64])
        axis = self._axis(place)
        size = self.values[place].shape[axis]
        text = f"{{0}}.index_select({axis}, ({{1}} % {size}).reshape(-1))"

        def function(x: Tensor, at: Tensor) -> Tensor:
            return x.index_select(axis, (at % size).reshape(-1))

        return text, (place, index), function, True


_KINDS = [
    getattr(_Maker, name)
    for name in (
        "unary unary pair pair pair comparison where convert reduction reduction search softmax "
        "reorder reshape part stretch joined joined padded flipped gathered"
    ).split()
]
