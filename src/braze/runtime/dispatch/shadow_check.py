"""The option `check`: some calls of a graph are compared with eager, on copies of their inputs.

A checked call runs the operators and the kernels on copies of the inputs, from the same random
states; what they return and write is compared. Where it agrees, the kernels run on the inputs
themselves; else the call, and all later ones of the graph, run by the operators.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch

from braze.frozen import frozen
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.tolerances import ROUNDINGS, TOLERANCES
from braze.runtime.autograd.rng_state import RandomStates


@final
@frozen
class Difference:
    """Where a checked call was wrong.

    place: "result 0", or "input 2" of one that is written to.
    largest: the difference over the largest value; infinite where one of the two is no number.
    inputs: copies of the call's inputs as they were.
    """

    place: str
    largest: float
    inputs: Sequence[Any]


@final
class ShadowCheck:
    """A graph's callable with one call in `every` checked.

    run: by kernels; eager: by the operators. devices: whose generators the graph draws on.
    report: told of the first difference, before the call goes on.
    """

    def __init__(
        self,
        run: GraphCallable,
        eager: GraphCallable,
        every: int,
        devices: Iterable[torch.device],
        report: Callable[[Difference], None],
    ) -> None:
        self._run, self._eager, self._every = run, eager, every
        self._devices, self._report = tuple(devices), report
        self._count = itertools.count()
        self._differs = False

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if not self._differs and next(self._count) % self._every == 0:
            difference = self._difference(inputs)
            if difference is not None:
                self._differs = True
                self._report(difference)
        return self._eager(inputs) if self._differs else self._run(inputs)

    def _difference(self, inputs: Sequence[object]) -> Difference | None:
        states = RandomStates(self._devices)
        try:
            expected = self._on_copies(self._eager, inputs)
            states.restore()
            found = self._on_copies(self._run, inputs)
        finally:
            states.restore()
        names = [f"result {n}" for n in range(len(expected[0]))]
        names += [f"input {n}" for n in range(len(expected[1]))]
        largest_input = max([largest_of(x) for x in inputs], default=0.0)
        pairs = zip(names, [*found[0], *found[1]], [*expected[0], *expected[1]])
        for name, mine, theirs in pairs:
            if isinstance(theirs, torch.Tensor):
                error = error_of(mine, theirs, largest_input)
                if error:
                    return Difference(name, error, copies_of(inputs))
        return None

    def _on_copies(
        self, run: GraphCallable, inputs: Sequence[object]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """What it returns, and what its inputs hold then."""
        copies = copies_of(inputs)
        return list(run([*copies])), copies


def leaves_memory(op: torch._ops.OpOverload) -> bool:
    """Whether an operator returns what memory held before: no two calls agree on it."""
    name = op._schema.name
    return "empty" in name or name.endswith("mkldnn_rnn_training")  # whose workspace is a result


def copies_of(inputs: Sequence[object]) -> list[Any]:
    """Copies with the strides and offsets of the inputs; those that share memory share it still."""
    memory: dict[int, torch.UntypedStorage] = {}
    with torch.no_grad():
        return [_copy(x, memory) if isinstance(x, torch.Tensor) else x for x in inputs]


def _copy(tensor: torch.Tensor, memory: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return tensor.detach().clone()
    storage = tensor.untyped_storage()
    known = memory.get(storage.data_ptr())
    if known is None:
        known = memory[storage.data_ptr()] = storage.clone()
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(known, tensor.storage_offset(), tensor.size(), tensor.stride())


def largest_of(value: object) -> float:
    """The largest finite value of a tensor of floating point numbers; of anything else 0."""
    if not isinstance(value, torch.Tensor) or value.dtype not in TOLERANCES or not value.numel():
        return 0.0
    with torch.no_grad():
        sizes = value.detach().abs().double()
        return float(torch.where(sizes.isfinite(), sizes, 0).max())


_NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def error_of(mine: torch.Tensor, theirs: torch.Tensor, largest_input: float) -> float:
    """The largest difference over the largest value, where it is more than rounding; else 0."""
    with torch.no_grad():
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return float("inf")
        dtype = _precision(mine, theirs)
        tolerance = TOLERANCES.get(dtype)
        if tolerance is None:  # whole numbers, and formats of a few bits
            same = torch.equal(mine.double(), theirs.double())
            return 0.0 if same else float("inf")
        wide = torch.complex128 if theirs.is_complex() else torch.float64
        a, b = mine.detach().to(wide), theirs.detach().to(wide)
        same_or_none = (a == b) | (a.isnan() & b.isnan())
        if bool((a.isfinite() != b.isfinite()).logical_and(~same_or_none).any()):
            return float("inf")
        apart = torch.where(same_or_none, 0, a - b).abs()
        if not apart.numel():
            return 0.0
        scale, difference = largest_of(theirs), float(apart.nan_to_num(nan=float("inf")).max())
        noise = ROUNDINGS * torch.finfo(dtype).eps * largest_input
        is_wrong = difference > tolerance * scale and difference > noise
        return difference / (scale or 1.0) if is_wrong else 0.0


def _precision(mine: torch.Tensor, theirs: torch.Tensor) -> torch.dtype:
    """The type in which values were computed: a float64 that a narrower one was converted to
    (`float(x.sum())`) has the roundings of that one."""
    narrower = _NARROWER.get(theirs.dtype)
    if narrower is None or any(
        not torch.equal(x, x.to(narrower).to(x.dtype)) for x in (mine, theirs)
    ):
        return theirs.dtype
    return narrower
