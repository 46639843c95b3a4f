"""Decides which matrix products become kernels, with fused prologues and epilogues.

    kernel k0: b1[i0, r0] = bf16(f32(w[i0, r0]) * s[i0])
    b2 = aten.mm(x, b1 transposed)
    kernel k1: y[i0, r0] = gelu(b2[i0, r0])
may stay, become k0 and one kernel of the other two (`product_kernels`), or one kernel of all
(`computed_operands`). Where something makes an operand, or reads the result, the ways are listed,
and somebody else chooses: times are not known here.

An operand that others read, too, is still written; it is computed a second time only where that
reads fewer bytes.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall, LoopProgram, bytes_of
from braze.ir.kernels.scalars import loads
from braze.ir.kernels.schedule import ComputedMatrix, ExternStep, Kernel, Step
from braze.schedule.matmul.conv_as_gemm import convolution_operands
from braze.schedule.matmul.matmul_kernel import Operands, is_pointwise, operands_of, product_kernel
from braze.schedule.matmul.packed_gemm import in_tiles, is_worth_packing
from braze.schedule.matmul.prologue import (
    computed_operand,
    is_read_in_order,
    without_store,
)
from braze.schedule.memory.allocate import memory_of, written
from braze.schedule.simplify.normalize import Names
from braze.shapes.expr import constant_value

# Ways to compute the same, as the steps of each; the first as it is -> the number of one.
ChooseProduct: TypeAlias = Callable[[Sequence[tuple[Step, ...]]], int]

_LOG = logging.getLogger("braze.fusion")


def fuse_products(
    program: LoopProgram,
    steps: Sequence[Step],
    settled: int,
    names: Names,
    choose: ChooseProduct,
    packed: int = 0,
    weights: frozenset[Buffer] = frozenset(),
    least_rows: int = 4,
) -> list[Step]:
    """The steps, with products as they are chosen; as many fewer as were joined to others. Nothing
    from the step `settled` on is touched. packed: as `Target.packed_products`; weights: what is
    most likely the same at the next call; least_rows: as `Target.least_rows`."""
    kept = {view.buffer for view in program.outputs} | {v.buffer for _, v in program.mutations}
    makers = _makers(steps[:settled])
    readers = _readers(steps)
    work = _Work(list(steps), settled, names, kept, readers, makers, packed, weights, least_rows)
    for number in range(settled):
        site = work.site(number)
        if site is None:
            continue
        ways = list(work.ways(site))
        if len(ways) < 2:
            continue
        chosen = ways[choose([way.steps for way in ways])]
        work.take(chosen)
        _note(site, ways, chosen)
    return [step for step in work.steps if step is not None]


# --- private ---------------------------------------------------------------------------------


@final
@frozen
class _Site:
    """A product: where its call is, and the kernel of points that alone reads its result."""

    number: int
    call: ExternCall
    operands: Operands
    target: Buffer
    reader: int | None


@final
@frozen
class _Way:
    """changes: what stands at some places, None for nothing; what: in words, for the log."""

    changes: tuple[tuple[int, Step | None], ...]
    what: str

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple([step for _, step in self.changes if step is not None])


_Sides: TypeAlias = tuple[ComputedMatrix | None, ComputedMatrix | None]


@dataclass(slots=True)
class _Work:
    """steps: as they are by now. readers: of each buffer, the steps that ever touched it; makers:
    the step that writes it."""

    steps: list[Step | None]
    settled: int
    names: Names
    kept: set[Buffer]
    readers: dict[Buffer, set[int]]
    makers: Mapping[Buffer, int]
    packed: int
    weights: frozenset[Buffer]
    least_rows: int

    def take(self, way: _Way) -> None:
        """Put a way in the place of what was there."""
        for place, step in way.changes:
            self.steps[place] = step
            for buffer in memory_of(step) if step is not None else ():
                self.readers.setdefault(buffer, set()).add(place)

    def site(self, number: int) -> _Site | None:
        """The product that a step calls."""
        step = self.steps[number]
        if not isinstance(step, ExternStep) or len(step.call.outputs) != 1:
            return None
        (target,) = step.call.outputs
        operands: Operands | str | None = operands_of(step.call)
        if self.packed:
            if not isinstance(operands, Operands):
                return None
            stays = self._stays(operands)
            if not is_worth_packing(operands, self.packed, stays, self.least_rows):
                return None
        elif operands is None:
            operands = convolution_operands(step.call)
        if isinstance(operands, str):
            _log(f"{step.call.op} to {target} is left to the library: {operands}")
        if operands is None or target is None or isinstance(operands, str):
            return None
        return _Site(number, step.call, operands, target, self._reader(target))

    def _reader(self, target: Buffer) -> int | None:
        reading = self._touching(target)
        if len(reading) != 1 or reading[0] >= self.settled:
            return None
        kernel = self.steps[reading[0]]
        if not isinstance(kernel, Kernel) or not all(map(_is_known, kernel.memory)):
            return None
        return reading[0] if is_pointwise(kernel) else None

    def _touching(self, buffer: Buffer) -> list[int]:
        """The steps that read the buffer, and a kernel that writes it."""
        found = []
        for place in sorted(self.readers.get(buffer, ())):
            step = self.steps[place]
            if step is not None and buffer in memory_of(step):
                found.append(place)
        return found

    def ways(self, site: _Site) -> Iterator[_Way]:
        """As it is, then with as much in one kernel as can be, then with less."""
        views = (site.operands.first, site.operands.second)
        found = [
            None if fixed is not None else self._operand(site, view, number)
            for number, (view, fixed) in enumerate(zip(views, site.operands.computed), 1)
        ]
        touched = {self.makers[view.buffer] for view, made in zip(views, found) if made}
        touched |= {site.number} | ({site.reader} if site.reader is not None else set())
        before = {place: self.steps[place] for place in sorted(touched)}
        yield _Way(tuple(before.items()), "separate")
        rest = None if site.reader is None else self.steps[site.reader]
        assert rest is None or isinstance(rest, Kernel)
        if rest is None and not any(found) and not self.packed:
            return
        is_kept = site.target in self.kept
        first, second = ([x, None] if x else [None] for x in found)
        for sides in itertools.product(first, second):
            at = site.number if site.reader is None else site.reader
            made = self._kernel(site, rest, is_kept, sides)
            if made is None and rest is not None and (any(found) or self.packed):
                at, made = site.number, self._kernel(site, None, is_kept, sides)
            if made is None:
                continue
            changes = {**before, site.number: None}
            for view, side in zip(views, sides, strict=True):
                if side is not None:
                    self._drop(view.buffer, site.number, changes)
            ordered = sorted({**changes, at: made}.items(), key=lambda pair: pair[0])
            yield _Way(tuple(ordered), _words(views, sides, at != site.number))

    def _kernel(
        self, site: _Site, rest: Kernel | None, is_kept: bool, sides: _Sides
    ) -> Kernel | None:
        """All in one at the place of the rest, or of the call; None where that cannot be."""
        at = site.number if rest is None else site.reader
        assert at is not None
        made = product_kernel(site.call, site.operands, rest, self.names, is_kept, sides)
        if made is not None and self.packed:
            made = in_tiles(made, self._stays(site.operands))
        if made is None or not self._stay(made.memory, site.number, at):
            return None
        for view, side in zip((site.operands.first, site.operands.second), sides, strict=True):
            if side is None:
                continue
            read = [load.buffer for load in loads(side.value)]
            if not self._stay(read, self.makers[view.buffer], at):
                return None
        return made

    def _stays(self, operands: Operands) -> bool:
        second = operands.second
        return second.buffer in self.weights and len(second.shape) == 2

    def _stay(self, buffers: Iterable[Buffer], start: int, until: int) -> bool:
        """Whether no step behind the first and before the other writes to the buffers."""
        between = [step for step in self.steps[start + 1 : until] if step is not None]
        changed = {buffer for step in between for buffer in written(step)}
        return not changed & {*buffers}

    def _operand(self, site: _Site, view: BufferView, number: int) -> ComputedMatrix | None:
        """The operand as something to compute, if it pays to try."""
        if self.packed:
            return None
        place = self.makers.get(view.buffer)
        kernel = None if place is None else self.steps[place]
        if place is None or place >= site.number or not isinstance(kernel, Kernel):
            return None
        if view.buffer not in written(kernel) or not all(map(_is_known, kernel.memory)):
            return None
        made = computed_operand(kernel, view, number)
        if not isinstance(made, str) and self._is_read_by_others(view.buffer, site.number):
            read = {load.buffer for load in loads(made.value)}
            if sum(map(bytes_of, read)) >= bytes_of(view.buffer):
                made = "others read it, and it is no larger than what it is computed from"
        has_windows = site.operands.computed[0] is not None
        if has_windows and isinstance(made, ComputedMatrix) and not is_read_in_order(made):
            made = "what it is computed from lies in memory in another order"
        if isinstance(made, str):
            _log(f"{view.buffer} is not computed in {site.call.op}: {made}")
            return None
        return made

    def _is_read_by_others(self, buffer: Buffer, number: int) -> bool:
        others = {*self._touching(buffer)} - {number, self.makers[buffer]}
        return bool(others) or buffer in self.kept

    def _drop(self, buffer: Buffer, number: int, changes: dict[int, Step | None]) -> None:
        """What makes the operand does so no longer, where nobody else reads it."""
        place = self.makers[buffer]
        kernel = changes[place]
        if not self._is_read_by_others(buffer, number) and isinstance(kernel, Kernel):
            changes[place] = without_store(kernel, buffer)


def _readers(steps: Sequence[Step]) -> dict[Buffer, set[int]]:
    found: dict[Buffer, set[int]] = {}
    for number, step in enumerate(steps):
        for buffer in memory_of(step):
            found.setdefault(buffer, set()).add(number)
    return found


def _makers(steps: Sequence[Step]) -> dict[Buffer, int]:
    """The step that writes each buffer; none of what several write to."""
    found: dict[Buffer, list[int]] = {}
    for number, step in enumerate(steps):
        for buffer in written(step):
            found.setdefault(buffer, []).append(number)
    return {buffer: numbers[0] for buffer, numbers in found.items() if len(numbers) == 1}


def _is_known(buffer: Buffer) -> bool:
    return all(constant_value(n) is not None for n in (*buffer.shape, *buffer.stride))


def _words(views: Sequence[BufferView], sides: _Sides, with_rest: bool) -> str:
    names = [str(view.buffer) for view, side in zip(views, sides) if side is not None]
    parts = [*(f"{name} computed in it" for name in names), *(["its reader in it"] * with_rest)]
    return f"a kernel of ours{', ' if parts else ''}{', '.join(parts)}"


def _note(site: _Site, ways: Sequence[_Way], chosen: _Way) -> None:
    others = "; ".join([way.what for way in ways if way is not chosen])
    _log(f"{site.call.op} to {site.target}: {chosen.what} (not: {others})")


def _log(text: str) -> None:
    _LOG.info("%s", text, extra={"origin": "", "artefact": "fusion"})
