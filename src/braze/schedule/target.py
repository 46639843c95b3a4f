"""Targets: the device properties that scheduling decisions depend on, a row per kind of device."""

from __future__ import annotations

import sys
from typing import final

from braze.frozen import frozen
from braze.ir.device_model import H200, DeviceModel

SHARED_BYTES = 150 << 10  # of a program that writes odd rows


@final
@frozen
class Target:
    """enough_tasks: results of a reduction that keep every processor busy; with fewer it is split.
    least_work, most_parts, least_part: of a split reduction; in elements, parts by number.
    part_tasks: tasks that its parts are to be, where they have one length; lane_part_tasks: where
        neighbours in memory are of different results; whole_part_tasks: where there is one result.
    pads_parts: parts have one length, the last one guarded, and may be of unknown length; else the
        rest is a reduction of its own.
    small_points: up to so many, definitions that have nothing in common share a kernel, where
        starting one costs as much as running it.
    few_rows: rows below which a reduction does not join a kernel of points.
    scratch_bytes: of the values of a row that a task keeps from one phase to the next.
    computes_again: what is not kept is computed again in later phases, not written to memory.
    joins: what several definitions write beside each other is one that chooses, where only loops
        read it; else each is written as soon as what it copies is there.
    plans_results: ATen writes its results into planned memory; else it allocates them.
    plans_symbols: values of symbolic size are in planned memory, too, laid out at a call.
    planned_bytes: larger values have memory of their own, which goes back after their last reader.
    shares_memory: large values have memory of their own, too, where results can lie in it later.
    merges_columns: over how many tasks partial sums over rows are computed by the kernel that reads
        the rows anyway; 0: by one of their own.
    moment_points: most points of a part over which a sum and the squares about a mean are computed
        in one read; 0: they are two reductions. lane_moment_points: where neighbours in memory are
        of different groups.
    tiles_stores: what is written across the order of its memory makes a tile, as what is read so.
    spread_bytes: rows of which all processors walk more than so many bytes at once, one a
        processor, are shared by programs that hold a part each; 0: none are. spread_parts: most
        programs that share a row.
    orders_scatters: points that are scattered to one element come in the order of the axes.
    carries_sums: operands of a sum that come one after the other carry the sum so far.
    computes_later: what is cheap and waits where most memory is taken is computed again, what a
        library made waits for no copy and no write-back behind the calls, and a part of a value
        that is read later waits without the rest.
    writes_over: a large value takes the memory of what its kernel reads for the last time.
    joins_attention: products around a softmax of a function of scores are one kernel with it.
    joins_attention_backward: and those of its backward two, which compute scores again.
    float32_scores: bytes that the scores of float32 queries must have for that: matrix units do not
        compute such products, and the library's are many times as fast as a kernel's without them.
    writes_odd_rows: large products of halves whose results have rows of any alignment are kernels,
        which need SHARED_BYTES.
    packed_products: products of float32 of at least so many multiplications may be kernels by
        themselves, which pack what they multiply; 0: they are kernels of the GPU's kind.
    packs_weights: weights that products of such kernels multiply are packed once, and kept.
    least_rows: that such a product must have: with fewer, a kernel that has to pack a weight after
        all would take longer than the library. 1 where weights are frozen.
    repeats_blocks: equal blocks of a graph are scheduled once.
    records: calls may be recorded as CUDA graphs, larger than they are if that is asked for.
    device: of a GPU, what it can do.
    """

    enough_tasks: int
    least_work: int
    most_parts: int
    least_part: int
    part_tasks: int
    lane_part_tasks: int
    whole_part_tasks: int
    pads_parts: bool
    small_points: int
    few_rows: int
    scratch_bytes: int
    computes_again: bool
    joins: bool
    plans_results: bool
    plans_symbols: bool
    planned_bytes: int
    shares_memory: bool
    merges_columns: int
    moment_points: int
    lane_moment_points: int
    tiles_stores: bool
    spread_bytes: int
    spread_parts: int
    orders_scatters: bool
    carries_sums: bool
    computes_later: bool
    writes_over: bool
    joins_attention: bool
    joins_attention_backward: bool
    float32_scores: int
    writes_odd_rows: bool
    packed_products: int
    packs_weights: bool
    repeats_blocks: bool
    records: bool
    device: DeviceModel = H200
    least_rows: int = 4


# Scratch: half of a small second-level cache with its neighbours.
CPU = Target(
    enough_tasks=24,
    least_work=65536,
    most_parts=64,
    least_part=4096,
    part_tasks=0,
    lane_part_tasks=0,
    whole_part_tasks=0,
    pads_parts=False,
    small_points=16384,
    few_rows=16,
    scratch_bytes=65536,
    computes_again=False,
    joins=False,
    plans_results=True,
    plans_symbols=True,
    planned_bytes=sys.maxsize,
    shares_memory=True,
    merges_columns=0,
    moment_points=0,
    lane_moment_points=0,
    tiles_stores=False,
    spread_bytes=0,
    spread_parts=0,
    orders_scatters=True,
    carries_sums=True,
    computes_later=True,
    writes_over=True,
    joins_attention=True,
    joins_attention_backward=False,
    float32_scores=0,
    writes_odd_rows=False,
    packed_products=1 << 22,
    packs_weights=False,  # but where no gradients are recorded
    repeats_blocks=True,
    records=False,
)


# What is computed again in a row that registers hold costs nothing: the value is there. The
# allocator is quicker than a view of planned memory.
def gpu_target(device: DeviceModel) -> Target:
    """What the schedule for a GPU decides by: two programs or more for each of its processors."""
    return Target(
        enough_tasks=device.tasks(264),
        least_work=device.tasks(262144),
        most_parts=4096,
        least_part=16384,
        part_tasks=device.tasks(1056),
        lane_part_tasks=device.tasks(512),
        whole_part_tasks=device.tasks(4096),
        pads_parts=True,
        small_points=device.tasks(131072),
        few_rows=device.tasks(128),
        scratch_bytes=0,
        computes_again=True,
        joins=True,
        plans_results=False,
        plans_symbols=False,
        planned_bytes=1 << 20,
        shares_memory=False,
        merges_columns=device.tasks(264),
        moment_points=8192,
        lane_moment_points=256,
        tiles_stores=True,
        spread_bytes=device.cache_bytes // 25 * 24,
        spread_parts=min(64, device.processors),  # all of them must run at once
        orders_scatters=False,
        carries_sums=False,
        computes_later=False,
        writes_over=True,
        joins_attention=True,
        joins_attention_backward=True,
        float32_scores=8 << 30,
        writes_odd_rows=device.shared_bytes >= SHARED_BYTES,
        packed_products=0,
        packs_weights=False,
        repeats_blocks=True,
        records=True,
        device=device,
    )


CUDA = gpu_target(H200)
