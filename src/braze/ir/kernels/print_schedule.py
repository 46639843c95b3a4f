"""Prints a schedule: kernels with their phases, extern calls, the arena, and what was not fused.

kernel k0: rows i0 < 100; memory x, y; scratch t0[77]
  for r0 < 77:
    mx max= x[i0, r0]
  for r0 < 77:
    t0[r0] = exp((x[i0, r0] - mx[i0, 0]))
"""

from __future__ import annotations

from braze.ir.kernels.loops import Buffer
from braze.ir.kernels.print_loops import print_scalar, print_statement, print_view
from braze.ir.kernels.schedule import (
    Accumulate,
    AttentionGradients,
    AttentionProducts,
    ExternStep,
    Kernel,
    Loop,
    Matrix,
    Phase,
    Product,
    Schedule,
    Step,
    Store,
)


def print_schedule(schedule: Schedule) -> str:
    """The schedule's text, ending in a newline."""
    lines = []
    for step in schedule.steps:
        lines += print_step(step)
    for buffer, slot in schedule.slots:
        lines.append(f"arena {buffer}: {slot.offset} + {slot.size}")
    for buffer, sized in schedule.sized:
        behind = ", ".join(schedule.sized[place][0].name for place in sized.behind)
        lines.append(f"arena {buffer}: {sized.size}{behind and f', behind {behind}'}")
    if schedule.fresh:
        lines.append(f"fresh {', '.join(b.name for b in schedule.fresh)}")
    if schedule.in_place:
        names = ", ".join(buffer.name for buffer in schedule.in_place)
        lines.append(f"from step {schedule.settled} on, written in place: {names}")
    for target, view in schedule.mutations:
        lines.append(f"mutate {target} = {print_view(view)}")
    lines.append(f"return {', '.join(map(print_view, schedule.outputs))}".rstrip())
    return "\n".join(lines + _refusals(schedule)) + "\n"


def print_fusion(schedule: Schedule) -> str:
    """The memory of each kernel, and what was not fused with what, and why."""
    kernels = [step for step in schedule.steps if isinstance(step, Kernel)]
    lines = [f"{step.name}: {', '.join(b.name for b in step.memory)}" for step in kernels]
    return "\n".join(lines + _refusals(schedule)) + "\n"


def print_step(step: Step) -> list[str]:
    """The lines of a kernel or an extern call."""
    if isinstance(step, ExternStep):
        place = "" if step.out_op is None else "  (into the arena)"
        place = place if step.in_place_op is None else "  (in place)"
        return [f"{print_statement(step.call)}{place}"]
    head = f"kernel {step.name}:{_rows(step)} memory {', '.join(b.name for b in step.memory)}"
    if step.scratch:
        head += f"; scratch {', '.join(map(_sized, step.scratch))}"
    lines = [head]
    if step.spread is not None:
        spread = step.spread
        lines.append(
            f"  a row over {spread.parts} programs: {spread.length} points each, read once"
        )
    if step.product is not None:
        first, second = map(print_view, (step.product.first, step.product.second))
        how = " as tf32" if step.product.precision == "tf32" else ""
        how += f" packed in {step.product.packed}" if step.product.packed is not None else ""
        lines.append(f"  {step.product.target} = {first} @ {second}{how}")
        lines += _computed(step.product)
    if step.attention is not None:
        lines += _attention(step.attention)
    for phase in step.phases:
        lines += _phase(step, phase)
    for column in step.columns:
        body = print_scalar(column.body)
        lines.append(f"  over {step.block} rows: {column.target} sum= {body}")
    return lines


# --- private ---------------------------------------------------------------------------------


def _refusals(schedule: Schedule) -> list[str]:
    return [
        f"not fused: {refusal.consumer} with {producer}: {refusal.reason}"
        for refusal in schedule.refusals
        for producer in refusal.producers
    ]


def _computed(product: Product) -> list[str]:
    """A line for each matrix that is computed where it is multiplied."""
    lines = []
    for view, computed in zip((product.first, product.second), product.computed, strict=True):
        if computed is not None:
            at = ", ".join([symbol.name for symbol, _ in computed.loops])
            lines.append(f"    {view.buffer} at [{at}]: {print_scalar(computed.value)}")
    return lines


def _attention(attention: AttentionProducts | AttentionGradients) -> list[str]:
    """What its products and its softmax, or its sums, are of."""
    if isinstance(attention, AttentionGradients):
        return _gradients(attention)
    matrices = (attention.query, attention.keys, attention.values)
    query, keys, values = map(_matrix, matrices)
    empty = ", zero where all is -inf" if attention.empty_is_zero else ""
    return [
        f"  {attention.scores} = {query} @ {keys} transposed",
        f"  softmax over {_loop(attention.keys_loop)} of {print_scalar(attention.score)}{empty}",
        f"  @ {values}",
    ]


def _gradients(attention: AttentionGradients) -> list[str]:
    lines = [
        f"  {product.target} = {_matrix(product.rows)} @ {_matrix(product.columns)} transposed"
        for product in attention.products
    ]
    lines.append(f"  queries {_loop(attention.queries)}, keys {_loop(attention.keys)}")
    if attention.visible is not None:
        lines.append(f"  zero but where {print_scalar(attention.visible)}")
    lines += [
        f"  {each.target} = sum of {print_scalar(each.weight)} * {_matrix(each.matrix)}"
        for each in attention.sums
    ]
    return lines


def _matrix(matrix: Matrix) -> str:
    """Where its elements are: `b0{64 * i0}[:, 64][512, 1]`."""
    strides = f"[{matrix.down}, {matrix.right}]"
    return f"{matrix.buffer}{{{matrix.start}}}[:, {matrix.width}]{strides}"


def _rows(kernel: Kernel) -> str:
    rows = ", ".join(map(_loop, kernel.rows))
    lanes = f" in lanes of {kernel.lanes}" if kernel.lanes else ""
    return f" rows {rows}{lanes};" if rows else ""


def _loop(loop: Loop) -> str:
    return f"{loop[0]} < {loop[1]}"


def _sized(buffer: Buffer) -> str:
    return f"{buffer}[{', '.join(map(str, buffer.shape))}]"


def _phase(kernel: Kernel, phase: Phase) -> list[str]:
    lines = []
    if phase.body:
        loops = [_loop(loop) for loop in phase.loops]
        for number, chunk in enumerate(kernel.chunks):
            if chunk:
                loops[number] += f" by {chunk}"
        lines.append(f"  for {', '.join(loops)}:" if loops else "  once:")
        lines += [f"    {_statement(statement)}" for statement in phase.body]
    if phase.row:
        lines.append("  then:")
        lines += [f"    {_statement(statement)}" for statement in phase.row]
    return lines


def _statement(statement: Store | Accumulate) -> str:
    if isinstance(statement, Accumulate):
        at = "" if statement.position is None else f" at {statement.position}"
        return f"{statement.target} {statement.kind}= {print_scalar(statement.body)}{at}"
    coordinates = ", ".join(map(str, statement.coordinates))
    return f"{statement.target}[{coordinates}] = {print_scalar(statement.value)}"
