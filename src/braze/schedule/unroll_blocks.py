"""Puts back the equal blocks that a schedule was made without.

    embed, k0(w0), k1(w1), k1(w2), k1(w3), k2(w4), head         5 layers, scheduled
becomes
    embed, k0(w0), k1(w1), k1(w2), ..., k1(w46), k2(w47), head  48 layers

Two blocks in a row that were scheduled alike, and the half of a third, each on the next one's
weights and on what the one before it made, are the proof that the blocks between would be, too.
Refused: schedules in which there are none, where a step reads what a block made that is not the one
before it, where a block's weights are read anywhere else than in its steps, and where results of
all blocks wait for a step behind them. Such a graph is scheduled whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast, final

from braze.ir.graphs.rerolled import RerolledGraph, RerolledOutput
from braze.ir.kernels.loops import Buffer, BufferView, LoopProgram
from braze.ir.kernels.schedule import Kernel, Step
from braze.ir.kernels.step_form import StepForm, StepForms, StepTemplate
from braze.ir.repeats import Operation, Repeats, find_repeats, makers
from braze.schedule.memory.allocate import written
from braze.schedule.memory.inplace_inputs import Rewritten

_ALIKE = 2  # whole blocks in a row


def unroll_blocks(
    program: LoopProgram, final: Rewritten, rerolled: RerolledGraph
) -> tuple[LoopProgram, Rewritten] | None:
    """The steps of the whole graph, and its program (without statements), from those of the short
    one; None where they are refused."""
    if final.mutations or final.in_place:
        return None
    forms = StepForms()
    found = [forms.of(step) for step in final.steps]
    chains = _Chains.of(program, rerolled)
    operations = [_operation(*pair) for pair in zip(final.steps, found, strict=True)]
    repeats = find_repeats(operations, _ALIKE, chains.follows)
    if repeats is None or repeats.matched * 2 < repeats.length * 3:
        return None
    try:
        return _Unrolling(program, final.steps, rerolled, chains, found, operations, repeats).run()
    except _NotUniform:
        return None


# --- private ---------------------------------------------------------------------------------


@final
class _NotUniform(Exception):
    """A step or a result belongs to a block in another way than those of the other blocks."""


def _operation(step: Step, form: StepForm) -> Operation[Buffer]:
    made = {*written(step)}
    return Operation(form.number, form.touched, tuple([b for b in form.touched if b in made]))


@dataclass(slots=True)
class _Chains:
    """Inputs that belong to the blocks. places: of a buffer of the short schedule, its chain and
    its place there. buffers: of each chain, those of the whole schedule."""

    inputs: tuple[Buffer, ...]
    places: dict[Buffer, tuple[int, int]]
    buffers: list[list[Buffer]]

    @classmethod
    def of(cls, program: LoopProgram, rerolled: RerolledGraph) -> _Chains:
        """With a buffer for each input that was left out."""
        known = dict(zip(rerolled.inputs, program.inputs, strict=True))
        places: dict[Buffer, tuple[int, int]] = {}
        buffers = []
        for number, chain in enumerate(rerolled.chains):
            like = known[chain[0]]
            for n in chain:
                if n not in known:
                    known[n] = replace(like, name=f"{like.name}_{n}")
            buffers.append([known[n] for n in chain])
            kept = buffers[-1][: len(chain) - rerolled.dropped]
            places.update({buffer: (number, at) for at, buffer in enumerate(kept)})
        return cls(tuple([known[n] for n in sorted(known)]), places, buffers)

    def follows(self, one: Buffer, other: Buffer) -> bool:
        """Whether an input is the next one of its chain."""
        first, second = self.places.get(one), self.places.get(other)
        if first is None or second is None:
            return False
        return first[0] == second[0] and first[1] + 1 == second[1]

    def later(self, buffer: Buffer, periods: int) -> Buffer | None:
        """The input that stands so many periods later; None where the buffer is of no chain."""
        at = self.places.get(buffer)
        if at is None:
            return None
        chain = self.buffers[at[0]]
        if at[1] + periods >= len(chain):
            raise _NotUniform
        return chain[at[1] + periods]


@dataclass(slots=True)
class _Unrolling:
    """One schedule being unrolled.

    The second of the blocks that were scheduled alike is repeated; all steps behind it are those of
    blocks that come `dropped` periods later than in the short schedule.
    """

    program: LoopProgram
    steps: tuple[Step, ...]
    rerolled: RerolledGraph
    chains: _Chains
    forms: list[StepForm]
    operations: list[Operation[Buffer]]
    repeats: Repeats[Buffer]
    made: dict[Buffer, tuple[int, int]] = field(default_factory=dict)
    copies: list[dict[Buffer, Buffer]] = field(default_factory=list)

    @property
    def first(self) -> int:
        """Where the block that is repeated begins."""
        return self.repeats.start + self.repeats.length

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.first + self.repeats.length

    def run(self) -> tuple[LoopProgram, Rewritten]:
        """The whole program and its steps. Raises _NotUniform."""
        dropped = self.rerolled.dropped
        self.made = makers(self.operations)
        self._check_chains()
        block = range(self.first, self.end)
        origins = self._origins(block)
        made = [b for n in block for b in self._results(n) if self.made[b][0] == n]
        for number in range(1, dropped + 1):
            self.copies.append({b: replace(b, name=f"{b.name}_{number}") for b in made})
        steps = [*self.steps[: self.end]]
        templates = [self._template(n, origins) for n in block]
        for number in range(1, dropped + 1):
            others = {b: self._in_copy(b, origin, number) for b, origin in origins.items()}
            _add(steps, templates, others)
        behind = range(self.end, len(self.steps))
        touched = {b for n in behind for b in self.forms[n].touched}
        moved = {b: to for b in touched if (to := self._behind(b)) is not b}
        _add(steps, [self._template(n, moved) for n in behind], moved)
        forms = [self.forms[n].number for n in (*range(self.end), *[*block] * dropped, *behind)]
        outputs: list[BufferView] = []
        for output in self.rerolled.outputs:
            view = self.program.outputs[output.number]
            outputs.append(replace(view, buffer=self._later(view.buffer, output)))
        whole = replace(self.program, inputs=self.chains.inputs, outputs=tuple(outputs))
        return whole, Rewritten(tuple(steps), len(steps), (), (), _alike(steps, forms))

    def _results(self, number: int) -> tuple[Buffer, ...]:
        """What a step writes, in the order of its form."""
        return cast("tuple[Buffer, ...]", self.operations[number].results)

    def _template(self, number: int, buffers: Collection[Buffer]) -> StepTemplate:
        return StepTemplate(self.steps[number], buffers)

    # --- buffers -----------------------------------------------------------------------------

    def _check_chains(self) -> None:
        """Each step reads weights of blocks on its own side of what is put in."""
        read: dict[int, list[int]] = {}
        for number in range(self.first, self.end):
            for buffer in self.forms[number].touched:
                if (at := self.chains.places.get(buffer)) is not None:
                    read.setdefault(at[0], []).append(at[1])
        for number, form in enumerate(self.forms):
            for buffer in form.touched:
                at = self.chains.places.get(buffer)
                if at is None:
                    continue
                here = read.get(at[0])
                if here is None:
                    raise _NotUniform
                is_apart = at[1] > max(here) if number < self.end else at[1] <= min(here)
                if is_apart:
                    raise _NotUniform

    def _origins(self, block: Iterable[int]) -> dict[Buffer, Buffer | None]:
        """What the block touches: of what the block before it made, what it makes in its place;
        None for what is made in it or belongs to a chain. Left out: what all blocks share."""
        found: dict[Buffer, Buffer | None] = {}
        for number in block:
            before = self.operations[number - self.repeats.length].operands
            for other, buffer in zip(before, self.operations[number].operands, strict=True):
                assert isinstance(buffer, Buffer)
                if other is buffer or buffer in found:
                    continue
                found[buffer] = None
                if buffer in self.chains.places or self.made[buffer][0] >= self.first:
                    continue
                maker, at = self.made[buffer]
                if maker < self.repeats.start:
                    raise _NotUniform
                found[buffer] = self._results(maker + self.repeats.length)[at]
        return found

    def _in_copy(self, buffer: Buffer, origin: Buffer | None, number: int) -> Buffer:
        """What stands for a buffer of the block in one of its copies."""
        if origin is not None:
            return self.copies[number - 2][origin] if number > 1 else origin
        later = self.chains.later(buffer, number)
        return self.copies[number - 1][buffer] if later is None else later

    def _behind(self, buffer: Buffer) -> Buffer:
        """What stands for a buffer in the steps behind the copies."""
        later = self.chains.later(buffer, self.rerolled.dropped)
        if later is not None:
            return later
        at = self.made.get(buffer)
        if at is None or not self.repeats.start <= at[0] < self.end:
            return buffer
        if at[0] < self.first:
            raise _NotUniform
        return self.copies[-1][buffer]

    def _later(self, buffer: Buffer, output: RerolledOutput) -> Buffer:
        """What holds, so many periods later, what a buffer holds of a result."""
        found = self.chains.later(buffer, output.later)
        if found is not None:
            return found
        at, start, length = self.made.get(buffer), self.repeats.start, self.repeats.length
        if at is None:
            return buffer
        if not start <= at[0] < self.repeats.end:
            if output.in_block:
                raise _NotUniform
            return buffer
        block, step = divmod(at[0] - start, length)
        block += output.later
        if 1 < block <= 1 + self.rerolled.dropped:
            return self.copies[block - 2][self._results(self.first + step)[at[1]]]
        if block > 1:
            block -= self.rerolled.dropped
        number = start + block * length + step
        if number >= self.repeats.end:
            raise _NotUniform
        return self._results(number)[at[1]]


def _add(
    steps: list[Step], templates: Iterable[StepTemplate], others: Mapping[Buffer, Buffer]
) -> None:
    """Append steps on other buffers."""
    for template in templates:
        made: Step = template.on(others)
        if isinstance(made, Kernel):
            made = replace(made, name=f"k{len(steps)}")
        steps.append(made)


def _alike(steps: Sequence[Step], forms: Sequence[int]) -> tuple[tuple[Kernel, Kernel], ...]:
    """Each kernel but the first of its form, with that one."""
    first: dict[int, Kernel] = {}
    found = []
    for step, form in zip(steps, forms, strict=True):
        if isinstance(step, Kernel) and first.setdefault(form, step) is not step:
            found.append((step, first[form]))
    return tuple(found)
