"""Builds the schedule of a loop program: inline, unroll, split, fuse, nest, place.

>>> schedule(program, options)       # doctest: +SKIP

Tables of passes stand around fusion: `STATEMENT_PASSES` rewrite the definitions that are to be
fused, `STEP_PASSES` the kernels and calls that came of it, `MEMORY_PASSES` what memory these use.
A pass is called as the file that it lives in; a device that has no use for it says so in its
`Target`.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, final

from braze.ir.graphs.rerolled import RerolledGraph
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall, LoopProgram, Statement
from braze.ir.kernels.padding import NO_PADDING, Padding
from braze.ir.kernels.schedule import Kernel, Refusal, Schedule, Step
from braze.ir.kernels.verify_loops import verify_statements
from braze.ir.kernels.verify_schedule import verify_schedule, verify_steps
from braze.ir.passes import NotePass, Pass, PassManager
from braze.options import Options
from braze.schedule.analysis.strides import reduces_over_lanes
from braze.schedule.analysis.uses import Uses, extern_reads, find_uses
from braze.schedule.fusion.build_kernel import build_kernel
from braze.schedule.fusion.fuse import Extern, Fused, fuse
from braze.schedule.fusion.fuse_scalars import join_numbers
from braze.schedule.fusion.name_kernels import name_kernels
from braze.schedule.matmul.attention_backward_kernels import fuse_attention_backward
from braze.schedule.matmul.attention_kernel import fuse_attention_kernels
from braze.schedule.matmul.matmul_fusion import ChooseProduct, fuse_products
from braze.schedule.matmul.pack_weights import find_weights, pack_once
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
from braze.schedule.reductions.one_pass_moments import share_moments
from braze.schedule.reductions.producer_reduction import sum_where_made
from braze.schedule.reductions.split_reduction import split
from braze.schedule.simplify.early_index_checks import check_early
from braze.schedule.simplify.inline import inline
from braze.schedule.simplify.merge_concat import join_regions
from braze.schedule.simplify.normalize import Names, new_names, normalise
from braze.schedule.simplify.one_hot_sums import pick_one_hot
from braze.schedule.simplify.share_concat_buffers import share_regions
from braze.schedule.simplify.unroll import unroll
from braze.schedule.target import CPU, Target
from braze.schedule.unroll_blocks import unroll_blocks


def schedule(
    program: LoopProgram,
    options: Options,
    target: Target = CPU,
    choose: ChooseProduct | None = None,
    note: NotePass | None = None,
) -> Schedule:
    """Kernels and extern calls that compute the program on a target, and the memory plan. choose:
    says which products of matrices are computed by kernels. note: is told of each pass."""
    pads = target.records and options.pad_recordings_to
    padding = find_padding(program) if pads else NO_PADDING
    given = [program]
    del program  # where one attempt is all there is, it goes: a large one is as large as its model
    planned = _attempted(given, options, target, choose, note)
    return _finished(planned, padding, options, note)


def schedule_blocks(
    program: LoopProgram,
    rerolled: RerolledGraph,
    options: Options,
    target: Target = CPU,
    choose: ChooseProduct | None = None,
    note: NotePass | None = None,
) -> Schedule | None:
    """The schedule of a whole graph from the program of the short one; None where its blocks are
    not scheduled alike."""
    planned = _attempted([program], options, target, choose, note)
    if planned.state.scattered:
        return None
    whole = unroll_blocks(planned.state.program, planned.final, rerolled)
    if whole is None:
        return None
    planned.state.program, planned.final = whole
    return _finished(planned, NO_PADDING, options, note)


def lay_out(
    state: Arrangement,
    final: Rewritten,
    refusals: tuple[Refusal, ...] = (),
    padding: Padding = NO_PADDING,
) -> Schedule:
    """The schedule of steps, with its memory plan."""
    program, target = state.program, state.target
    steps = name_kernels(final.steps)
    both = zip(final.steps, steps, strict=True)
    named = {step: made for step, made in both if isinstance(made, Kernel)}
    alike = [(named[one], named[other]) for one, other in final.alike]
    written = tuple([(buffer, _whole(buffer)) for buffer in state.scattered])
    lasting = replace(program, mutations=(*program.mutations, *written))
    placement = place(lasting, steps, target)
    return Schedule(
        inputs=program.inputs,
        constants=program.constants,
        steps=steps,
        slots=placement.slots,
        arena_size=placement.arena_size,
        fresh=placement.fresh,
        last_use=placement.last_use,
        outputs=program.outputs,
        mutations=final.mutations,
        in_place=(*state.scattered, *final.in_place),
        settled=final.settled,
        refusals=refusals,
        sizes=program.sizes,
        sized=placement.sized,
        padding=padding,
        device=target.device,
        alike=tuple(alike),
    )


@final
@dataclass(slots=True)
class Arrangement:
    """What the passes over the statements of one program share.

    program: without its statements. late: buffers that stay behind the call before them. whole:
    sums that are not to be split; final_sums: targets of folds that are split as they are to be.
    scattered: inputs that are written to. positions: of indices, which kernels of their own check.
    """

    program: LoopProgram
    options: Options
    names: Names
    attempts: Attempts
    choose: ChooseProduct | None
    late: frozenset[Buffer] = frozenset()
    whole: frozenset[Buffer] = frozenset()
    final_sums: frozenset[Buffer] = frozenset()
    scattered: tuple[Buffer, ...] = ()
    positions: frozenset[Buffer] = frozenset()
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def target(self) -> Target:
        """The device that is scheduled for."""
        return self.attempts.target

    def uses(self, statements: Sequence[Statement]) -> Uses:
        """Who writes and reads what in the statements."""
        return find_uses(self.program, statements)

    def take(self, found: Scattered) -> list[Statement]:
        """Note what was found to be scattered; the statements."""
        self.program, self.positions = found.program, self.positions | found.positions
        self.scattered = found.inputs
        return found.statements


FUSION = "fuse"  # what stands between the two tables, as passes are noted

Statements: TypeAlias = list[Statement]
StatementPass: TypeAlias = Pass[Statements, Arrangement]
StepPass: TypeAlias = Pass[Rewritten, Arrangement]


# --- private ---------------------------------------------------------------------------------


def _compute_later(statements: Statements, state: Arrangement) -> Statements:
    later = compute_later(state.program, statements, state.names)
    # What writes in place comes last, and would keep what its kernel reads until then.
    state.late = later.targets | {view.buffer for _, view in state.program.mutations}
    return later.statements


def _choose_unsplit(statements: Statements, state: Arrangement) -> Statements:
    state.whole = state.final_sums = state.attempts.choose(statements)
    return statements


def _share_moments(statements: Statements, state: Arrangement) -> Statements:
    shared = share_moments(statements, state.names, state.target, state.whole)
    state.final_sums = shared.final
    return shared.statements


def _check_early(statements: Statements, state: Arrangement) -> Statements:
    """With indices checked before operators with effects: a device has no fault to meet then."""
    checked, positions = check_early(state.program, statements, state.names)
    state.positions |= positions
    return checked


STATEMENT_PASSES: tuple[StatementPass, ...] = (
    Pass("normalize", lambda s, state: _normalised(s, state.names)),
    Pass(
        "merge_concat",
        lambda s, state: join_regions(s, state.uses(s), state.names),
        applies=lambda state: state.target.joins,
    ),
    Pass("share_concat_buffers", lambda s, state: share_regions(s, state.uses(s))),
    Pass(
        "eager_slices",
        lambda s, state: write_regions_early(s),
        applies=lambda state: state.target.joins,
    ),
    Pass("one_hot_sums", lambda s, state: pick_one_hot(s)),
    Pass(
        "inline",
        lambda s, state: inline(s, state.uses(s), broadcasts_count=not state.target.computes_again),
    ),
    Pass(
        "accumulate_chain",
        lambda s, state: carry_sums(s, state.uses(s)),
        applies=lambda state: state.target.carries_sums,
    ),
    Pass("rematerialize", _compute_later, applies=lambda state: state.target.computes_later),
    Pass(
        "copy_after_call",
        lambda s, state: copy_early(state.program, s),
        applies=lambda state: state.target.computes_later,
    ),
    Pass(
        "split_live_ranges",
        lambda s, state: keep_parts(state.program, s, state.names),
        applies=lambda state: state.target.computes_later,
    ),
    Pass("choose_unsplit", _choose_unsplit, applies=lambda state: bool(state.target.spread_bytes)),
    Pass(
        "one_pass_moments", _share_moments, applies=lambda state: bool(state.target.moment_points)
    ),
    Pass("split_reduction", lambda s, state: _split(s, state)),
    Pass(
        "inplace_scatter",
        lambda s, state: state.take(scatter_in_place(state.program, s, state.names, state.target)),
    ),
    Pass("early_index_checks", _check_early, applies=lambda state: state.target.orders_scatters),
)


def _fuse_attention(final: Rewritten, state: Arrangement) -> Rewritten:
    through = state.target.computes_again
    least = state.target.float32_scores
    joined, settled = fuse_attention_kernels(
        state.program, final.steps, final.settled, through, least
    )
    if state.target.joins_attention_backward:
        joined, settled = fuse_attention_backward(state.program, joined, settled, least)
    return replace(final, steps=tuple(joined), settled=settled)


def _fuse_products(final: Rewritten, state: Arrangement) -> Rewritten:
    assert state.choose is not None, "a pass that does not apply"
    least = state.target.packed_products
    weights = find_weights(state.program, final) if state.target.packs_weights else frozenset()
    fused = fuse_products(
        state.program,
        final.steps,
        final.settled,
        state.names,
        state.choose,
        least,
        weights,
        state.target.least_rows,
    )
    settled = final.settled - (len(final.steps) - len(fused))
    return replace(final, steps=tuple(fused), settled=settled)


def _write_odd_rows(final: Rewritten, state: Arrangement) -> Rewritten:
    return replace(final, steps=write_odd_rows(state.program, final.steps, state.names))


def _write_over(final: Rewritten, state: Arrangement) -> Rewritten:
    made, alike = write_over(state.program, final.steps, state.target, final.alike)
    is_same = all(map(operator.is_, made, final.steps))
    return final if is_same else replace(final, steps=tuple(made), alike=tuple(alike))


STEP_PASSES: tuple[StepPass, ...] = (
    Pass(
        "column_reduction",
        lambda final, state: merge_columns(final, state.names, state.target.merges_columns),
        applies=lambda state: bool(state.target.merges_columns),
    ),
    Pass(
        "column_epilogue",
        lambda final, state: finish_columns(state.program, final),
        applies=lambda state: bool(state.target.merges_columns),
    ),
    Pass(
        "producer_reduction",
        lambda final, state: sum_where_made(final),
        applies=lambda state: bool(state.target.merges_columns),
    ),
    Pass(
        "fuse_scalars",
        lambda final, state: join_numbers(final),
        applies=lambda state: bool(state.target.merges_columns),
    ),
    Pass(
        "attention_fusion",
        _fuse_attention,
        applies=lambda state: state.target.joins_attention,
        keeps_rounding=False,
    ),
    Pass("matmul_fusion", _fuse_products, applies=lambda state: state.choose is not None),
    Pass(
        "unaligned_gemm",
        _write_odd_rows,
        applies=lambda state: state.target.writes_odd_rows,
        keeps_rounding=False,
    ),
    Pass(
        "cooperative_reduction",
        lambda final, state: spread_rows(final, state.names, state.target),
        applies=lambda state: bool(state.target.spread_bytes),
    ),
)

# Which follow a value through all steps, so that they come when equal blocks are in their places.
MEMORY_PASSES: tuple[StepPass, ...] = (
    Pass("reuse_dying_inputs", _write_over, applies=lambda state: state.target.writes_over),
    Pass(
        "pack_weights",
        lambda final, state: pack_once(final, state.names),
        applies=lambda state: state.target.packs_weights,
    ),
)


@final
@dataclass(slots=True)
class _Planned:
    """Steps, and what they were made of."""

    state: Arrangement
    refusals: tuple[Refusal, ...]
    final: Rewritten


def _attempted(
    given: list[LoopProgram],
    options: Options,
    target: Target,
    choose: ChooseProduct | None,
    note: NotePass | None,
) -> _Planned:
    """The kernels and extern calls of the one program of a list, which goes where it can."""
    attempts = Attempts(target)
    planned = _planned(
        given[0] if target.spread_bytes else given.pop(), options, attempts, choose, note
    )
    while not attempts.succeeded(planned.final.steps):
        planned = _planned(given[0], options, attempts, choose, note)
    return planned


def _finished(
    planned: _Planned, padding: Padding, options: Options, note: NotePass | None
) -> Schedule:
    """With memory for what the steps make."""
    state = planned.state
    finish = PassManager("schedule", _verify_finished if options.verify else None, note)
    final = finish.run(MEMORY_PASSES, planned.final, state)
    made = lay_out(state, final, planned.refusals, padding)
    if options.verify:
        verify_schedule(made)
    return made


def _planned(
    program: LoopProgram,
    options: Options,
    attempts: Attempts,
    choose: ChooseProduct | None,
    note: NotePass | None,
) -> _Planned:
    """The program's kernels and extern calls."""
    statements = [[*program.statements]]
    state = Arrangement(replace(program, statements=()), options, new_names(), attempts, choose)
    del program
    check = _verify_arranged if options.verify else None
    arrange = PassManager("schedule", check, note)
    statements = [arrange.run(STATEMENT_PASSES, statements.pop(), state)]
    program, names, target = state.program, state.names, attempts.target
    began = time.perf_counter()
    groups = fuse(
        statements.pop(), names, options.max_fusion_size, target, program.sizes,
        state.late, state.positions, state.scattered,
    )  # fmt: skip
    final = write_in_place(program, _steps(program, groups, names, target))
    if note is not None:
        note("schedule", FUSION, time.perf_counter() - began, True, final, state)
    exact = options.numerics == "eager"
    passes = [each for each in STEP_PASSES if each.keeps_rounding or not exact]
    finish = PassManager("schedule", _verify_finished if options.verify else None, note)
    return _Planned(state, groups.refusals, finish.run(passes, final, state))


def _verify_arranged(statements: Statements, state: Arrangement) -> None:
    verify_statements(state.program, statements)


def _verify_finished(final: Rewritten, state: Arrangement) -> None:
    program = state.program
    given = [*program.inputs, *(buffer for buffer, _ in program.constants)]
    verify_steps(final.steps, given, program.sizes.symbols())


def _whole(buffer: Buffer) -> BufferView:
    return BufferView(buffer, buffer.shape, buffer.stride, 0, buffer.dtype)


def _normalised(statements: Sequence[Statement], names: Names) -> list[Statement]:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, ExternCall):
            made.append(statement)
        else:
            made.extend(unroll(d) for d in normalise(statement, names))
    return made


def _split(statements: Statements, state: Arrangement) -> Statements:
    names, target = state.names, state.target
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, ExternCall):
            made.append(statement)
            continue
        if statement.target in state.final_sums:
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
