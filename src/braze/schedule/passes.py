"""Builds the schedule of a loop program: inline, unroll, split, fuse, nest, place.

>>> schedule(program, options)       # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall, LoopProgram, Statement
from braze.ir.kernels.padding import NO_PADDING
from braze.ir.kernels.schedule import Refusal, Schedule, Step
from braze.options import Options
from braze.schedule.analysis.strides import reduces_over_lanes
from braze.schedule.analysis.uses import extern_reads, find_uses
from braze.schedule.fusion.build_kernel import build_kernel
from braze.schedule.fusion.fuse import Extern, Fused, fuse
from braze.schedule.fusion.fuse_scalars import join_numbers
from braze.schedule.matmul.attention_kernel import fuse_attention_kernels
from braze.schedule.matmul.matmul_fusion import ChooseProduct, fuse_products
from braze.schedule.matmul.unaligned_gemm import write_odd_rows
from braze.schedule.memory.allocate import Plannable, place
from braze.schedule.memory.copy_after_call import copy_early
from braze.schedule.memory.eager_slices import write_regions_early
from braze.schedule.memory.extern_out import plan_extern, step_of
from braze.schedule.memory.inplace_inputs import Rewritten, write_in_place
from braze.schedule.memory.inplace_scatter import Scattered, scatter_in_place
from braze.schedule.memory.rematerialize import compute_later
from braze.schedule.memory.reuse_dying_inputs import write_over
from braze.schedule.memory.split_live_ranges import keep_parts
from braze.schedule.padding.row_independence import find_padding
from braze.schedule.reductions.accumulate_chain import carry_sums
from braze.schedule.reductions.choose_unsplit import Attempts
from braze.schedule.reductions.column_epilogue import finish_columns
from braze.schedule.reductions.column_reduction import merge_columns
from braze.schedule.reductions.cooperative_reduction import spread_rows
from braze.schedule.reductions.one_pass_moments import SharedMoments, share_moments
from braze.schedule.reductions.producer_reduction import sum_where_made
from braze.schedule.reductions.split_reduction import split
from braze.schedule.simplify.early_index_checks import check_early
from braze.schedule.simplify.inline import inline
from braze.schedule.simplify.merge_concat import join_regions
from braze.schedule.simplify.normalize import Names, new_names, normalise
from braze.schedule.simplify.share_concat_buffers import share_regions
from braze.schedule.simplify.unroll import unroll
from braze.schedule.target import CPU, Target


def schedule(
    program: LoopProgram,
    options: Options,
    target: Target = CPU,
    choose: ChooseProduct | None = None,
) -> Schedule:
    """Kernels and extern calls that compute the program on a target, and the memory plan. choose:
    says which products of matrices are computed by kernels."""
    pads = target.records and options.pad_recordings_to
    padding = find_padding(program) if pads else NO_PADDING
    attempts = Attempts(target)
    given = [program]
    del program  # where one attempt is all there is, it goes: a large one is as large as its model
    planned = _planned(given[0] if target.spread_bytes else given.pop(), options, attempts, choose)
    while not attempts.succeeded(planned.final.steps):
        planned = _planned(given[0], options, attempts, choose)
    program, scattered, final = planned.program, planned.scattered, planned.final
    if target.writes_over:
        final = replace(final, steps=tuple(write_over(program, final.steps, target)))
    written = tuple([(buffer, _whole(buffer)) for buffer in scattered.inputs])
    lasting = replace(program, mutations=(*program.mutations, *written))
    placement = place(lasting, final.steps, target)
    return Schedule(
        inputs=program.inputs,
        constants=program.constants,
        steps=final.steps,
        slots=placement.slots,
        arena_size=placement.arena_size,
        fresh=placement.fresh,
        last_use=placement.last_use,
        outputs=program.outputs,
        mutations=final.mutations,
        in_place=(*scattered.inputs, *final.in_place),
        settled=final.settled,
        refusals=planned.refusals,
        sizes=program.sizes,
        sized=placement.sized,
        padding=padding,
        device=target.device,
    )


# --- private ---------------------------------------------------------------------------------


@frozen
class _Planned:
    """Steps, and what they were made of."""

    program: LoopProgram
    scattered: Scattered
    refusals: tuple[Refusal, ...]
    final: Rewritten


def _planned(
    program: LoopProgram, options: Options, attempts: Attempts, choose: ChooseProduct | None
) -> _Planned:
    """The program's kernels and extern calls."""
    names, target = new_names(), attempts.target
    statements = [_normalised(program.statements, names)]
    program = replace(program, statements=())
    scattered, late = _arranged(program, statements.pop(), names, attempts)
    program, apart, limit = scattered.program, scattered.positions, options.max_fusion_size
    groups = fuse(
        scattered.statements, names, limit, target, program.sizes, late, apart, scattered.inputs
    )
    steps = _steps(program, groups, names, target)
    final = write_in_place(program, steps)
    if target.merges_columns:
        final = finish_columns(program, merge_columns(final, names, target.merges_columns))
        final = join_numbers(sum_where_made(final))
    if target.joins_attention and options.numerics != "eager":
        joined, settled = fuse_attention_kernels(program, final.steps, final.settled)
        final = replace(final, steps=tuple(joined), settled=settled)
    if choose is not None:
        least = target.packed_products
        fused = fuse_products(program, final.steps, final.settled, names, choose, least)
        settled = final.settled - (len(final.steps) - len(fused))
        final = replace(final, steps=tuple(fused), settled=settled)
    if target.writes_odd_rows and options.numerics != "eager":
        final = replace(final, steps=write_odd_rows(program, final.steps, names))
    if target.spread_bytes:
        final = spread_rows(final, names, target)
    return _Planned(program, scattered, groups.refusals, final)


def _whole(buffer: Buffer) -> BufferView:
    return BufferView(buffer, buffer.shape, buffer.stride, 0, buffer.dtype)


def _arranged(
    program: LoopProgram, statements: list[Statement], names: Names, attempts: Attempts
) -> tuple[Scattered, frozenset[Buffer]]:
    """The definitions that are to be fused; and those of them that stay behind the extern call
    before them."""
    target = attempts.target
    if target.joins:
        statements = join_regions(statements, find_uses(program, statements), names)
    statements = share_regions(statements, find_uses(program, statements))
    if target.joins:
        statements = write_regions_early(statements)
    statements = inline(
        statements, find_uses(program, statements), broadcasts_count=not target.computes_again
    )
    if target.carries_sums:
        statements = carry_sums(statements, find_uses(program, statements))
    late: frozenset[Buffer] = frozenset()
    if target.computes_later:
        later = compute_later(program, statements, names)
        # What writes in place comes last, and would keep what its kernel reads until then.
        written_back = {view.buffer for _, view in program.mutations}
        statements, late = copy_early(program, later.statements), later.targets | written_back
        statements = keep_parts(program, statements, names)
    whole: frozenset[Buffer] = frozenset()
    if target.spread_bytes:
        whole = attempts.choose(statements)
    shared = SharedMoments(statements, whole)
    if target.moment_points:
        shared = share_moments(statements, names, target, whole)
    scattered = scatter_in_place(program, _split(shared, names, target), names, target)
    return (_checked_early(scattered, names) if target.orders_scatters else scattered), late


def _checked_early(scattered: Scattered, names: Names) -> Scattered:
    """With indices checked before operators with effects: a device has no fault to meet then."""
    statements, positions = check_early(scattered.program, scattered.statements, names)
    positions |= scattered.positions
    return replace(scattered, statements=statements, positions=positions)


def _normalised(statements: Sequence[Statement], names: Names) -> list[Statement]:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, ExternCall):
            made.append(statement)
        else:
            made.extend(unroll(d) for d in normalise(statement, names))
    return made


def _split(shared: SharedMoments, names: Names, target: Target) -> list[Statement]:
    made: list[Statement] = []
    for statement in shared.statements:
        if isinstance(statement, ExternCall):
            made.append(statement)
            continue
        if statement.target in shared.final:
            made.extend(normalise(statement, names))
            continue
        for piece in split(statement, names, reduces_over_lanes(statement), target):
            made.extend(normalise(piece, names))
    return made


def _steps(program: LoopProgram, fused: Fused, names: Names, target: Target) -> list[Step]:
    outside = {view.buffer for view in program.outputs}
    needed = _needed(program, fused)
    readers = _readers(fused)
    plannable = Plannable.of(program, target)
    steps: list[Step] = []
    waiting = fused.places[::-1]
    fused.places.clear()  # a group goes when its kernel is built
    for position in range(len(waiting)):
        place_ = waiting.pop()
        if isinstance(place_, Extern):
            call = place_.call
            planned = target.plans_results
            steps.append(plan_extern(call, outside, plannable) if planned else step_of(call))
        else:
            made = place_.makers
            wanted = {b for b in made if b in needed or {*readers.get(b, ())} - {position}}
            name = f"k{len(steps)}"
            steps.append(build_kernel(place_, wanted, names, name, target))
    return steps


def _needed(program: LoopProgram, fused: Fused) -> set[Buffer]:
    """Buffers that must be in memory whoever reads them."""
    found = {view.buffer for view in program.outputs}
    found |= {view.buffer for _, view in program.mutations}
    found |= fused.shared_targets
    for place_ in fused.places:
        if isinstance(place_, Extern):
            found |= set(extern_reads(place_.call))
    return found


def _readers(fused: Fused) -> dict[Buffer, list[int]]:
    """The places of the groups that load from each buffer."""
    found: dict[Buffer, list[int]] = {}
    for position, place_ in enumerate(fused.places):
        if not isinstance(place_, Extern):
            for member in place_.members:
                for load in member.reads:
                    found.setdefault(load.buffer, []).append(position)
    return found
