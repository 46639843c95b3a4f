"""Finds library calls that can update the program's inputs themselves.

    p1, _, m1 = aten._fused_adamw([p], [g], [m])            aten._fused_adamw_([p], [g], [m])
    mutate p = p1; mutate m = m1                     ->

The functional form of an operator that updates lists of tensors copies all of them, and what it
gives is copied back: four times the memory traffic of the update. An operator qualifies by an
in-place form that takes the same arguments, and writes lists which the functional one returns in
that order.

Refused: calls of which a new value is read by another step or is a result, those that write to what
is no input, or to an input whose old contents a later step reads.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from braze.compat.torch.dispatcher import overloads
from braze.frozen import frozen
from braze.ir.graphs.op_effects import untouched_arguments
from braze.ir.kernels.loops import Buffer, BufferView, LoopProgram
from braze.ir.kernels.schedule import ExternStep, Step
from braze.schedule.analysis.uses import extern_reading, extern_reads
from braze.schedule.memory.allocate import memory_of


@final
@frozen
class ListUpdate:
    """An operator's in-place form. written: the places of the lists that it writes, in the order of
    the functional form's results."""

    op: torch._ops.OpOverload
    written: tuple[int, ...]


@final
@frozen
class CallUpdate:
    """A call that can update inputs. targets: by the buffer of the new value, the input."""

    form: ListUpdate
    targets: Mapping[Buffer, Buffer]

    def made(self, step: ExternStep, places: Mapping[Buffer, Buffer]) -> ExternStep:
        """The call in its in-place form. places: of buffers that are somewhere else now."""
        call = extern_reading(step.call, dict(places))
        outputs = tuple([None if b is None else self.targets.get(b) for b in call.outputs])
        return replace(step, call=replace(call, outputs=outputs), in_place_op=self.form.op)


def find_updates(program: LoopProgram, steps: Sequence[Step]) -> dict[int, CallUpdate]:
    """The library calls that can update inputs, by their numbers."""
    found: dict[int, CallUpdate] = {}
    forms = {
        number: form
        for number, step in enumerate(steps)
        if isinstance(step, ExternStep) and (form := list_update(step.call.op)) is not None
    }
    if not forms:
        return found
    touches = Counter(b for step in steps for b in {*memory_of(step)})
    last = {b: number for number, step in enumerate(steps) for b in memory_of(step)}
    new = Counter(view.buffer for _, view in program.mutations)
    wanted = {
        view.buffer: target
        for target, view in program.mutations
        if _is_all_of(view, view.buffer) and new[view.buffer] == 1 and target not in new
    }
    results = {view.buffer for view in program.outputs}
    for number, form in forms.items():
        step = steps[number]
        assert isinstance(step, ExternStep)
        targets = _targets(step, form, wanted, results, touches)
        if targets is not None and all(last[target] == number for target in targets.values()):
            found[number] = CallUpdate(form, targets)
    return found


@functools.cache
def list_update(op: torch._ops.OpOverload) -> ListUpdate | None:
    """The in-place form of an operator that gives new lists of tensors; None if it has none."""
    schema = op._schema
    if not schema.returns or any(str(r.type) != "List[Tensor]" for r in schema.returns):
        return None
    namespace, name = schema.name.split("::")
    taken = [(a.name, str(a.type)) for a in schema.arguments]
    for candidate in overloads(namespace, f"{name}_"):
        arguments = candidate._schema.arguments
        written = [n for n, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]
        same = [(a.name, str(a.type)) for a in arguments] == taken
        if same and not candidate._schema.returns and len(written) == len(schema.returns):
            return ListUpdate(candidate, tuple(written))
    return None


# --- private ---------------------------------------------------------------------------------


def _targets(
    step: ExternStep,
    form: ListUpdate,
    wanted: Mapping[Buffer, Buffer],
    results: Collection[Buffer],
    touches: Mapping[Buffer, int],
) -> dict[Buffer, Buffer] | None:
    """By the new value's buffer, the input that the call writes in its place; None if it writes to
    anything else. wanted: the inputs that take a new value; touches: how many steps read each, or
    store to it."""
    call = step.call
    names = [argument.name for argument in call.op._schema.arguments]
    untouched = untouched_arguments(call.op, dict(call.kwargs))
    lists = [(names[n], call.args[n]) for n in form.written if n < len(call.args)]
    pairs = [(name, view) for name, views in lists for view in views]
    if len(lists) != len(form.written) or len(pairs) != len(call.outputs):
        return None
    reads = Counter(extern_reads(call))
    found: dict[Buffer, Buffer] = {}
    for (name, view), made in zip(pairs, call.outputs, strict=True):
        is_read = made is not None and (touches[made] > 0 or made in results)
        if name in untouched and not is_read and made not in wanted:
            continue
        target = None if made is None or is_read else wanted.get(made)
        if target is None or not isinstance(view, BufferView) or view.buffer is not target:
            return None
        if not _is_all_of(view, target) or not _is_alike(made, target) or reads[target] > 1:
            return None
        assert made is not None
        found[made] = target
    return found


def _is_all_of(view: BufferView, buffer: Buffer) -> bool:
    whole = (buffer.shape, buffer.stride, buffer.dtype)
    return view.offset == 0 and (view.shape, view.stride, view.dtype) == whole


def _is_alike(one: Buffer | None, other: Buffer) -> bool:
    if one is None:
        return False
    first, second = ((b.dtype, b.shape, b.stride, b.device) for b in (one, other))
    return first == second
