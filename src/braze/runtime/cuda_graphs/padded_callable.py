"""A graph whose changing sizes are padded to multiples, so that few recordings serve all of them.

    inputs with the size     copied into larger ones, zero behind it
    the graph                is called, recorded and replayed for the padded size alone
    results with the size    copied out, in the strides that they have without padding

What may be padded is proven when a graph is scheduled (`braze.schedule.padding.row_independence`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from braze.compat.torch.grad_mode import set_grad_enabled
from braze.frozen import frozen
from braze.ir.generated_code import define
from braze.ir.graphs.joint_graph import PLAIN, Role
from braze.ir.kernels.padding import PaddedSize
from braze.ir.kernels.schedule import Schedule
from braze.ir.types import Size
from braze.runtime.launch.symbolic_sizes import compile_sizes
from braze.shapes.binding import bind_symbols
from braze.shapes.expr import Symbol


@final
@frozen
class PaddingPlan:
    """What a padded call needs of a schedule.

    sizes: that are padded; read: the numbers of `symbols` from a call's inputs. inputs: those with
    a padded size; results: those, in order. layouts: from the numbers, (shape, stride) of the
    inputs, and of the results with (dimension, outer, inner) of each padded size, last first.
    """

    sizes: tuple[PaddedSize, ...]
    symbols: tuple[Symbol, ...]
    read: Callable[[Sequence[Any]], tuple[int, ...]]
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    input_layouts: Callable[[Sequence[int]], Any]
    result_layouts: Callable[[Sequence[int]], Any]
    result_rows: tuple[tuple[int, ...], ...]  # places in `sizes`, for each result


def padding_plan(schedule: Schedule) -> PaddingPlan:
    """The plan for a schedule of which sizes may be padded."""
    sizes = schedule.padding.sizes
    symbols, read = _reader(schedule)
    inputs = tuple(sorted({number for size in sizes for number, _ in size.inputs}))
    rows: dict[int, list[tuple[int, Any]]] = {}
    for place, size in enumerate(sizes):
        for number, found in size.results:
            rows.setdefault(number, []).append((place, found))
    results = tuple(sorted(rows))
    for number in results:
        rows[number].sort(key=lambda pair: -pair[1].dim)  # a dimension that is cut becomes three
    views = [schedule.outputs[number] for number in results]
    cuts = [tuple([(f.dim, f.outer, f.inner) for _, f in rows[number]]) for number in results]
    layouts = tuple([(v.shape, v.stride, cut) for v, cut in zip(views, cuts, strict=True)])
    given = tuple([(schedule.inputs[n].shape, schedule.inputs[n].stride) for n in inputs])
    return PaddingPlan(
        sizes,
        symbols,
        read,
        inputs,
        results,
        compile_sizes(symbols, given),
        compile_sizes(symbols, layouts),
        tuple([tuple([place for place, _ in rows[number]]) for number in results]),
    )


def why_not_padded(schedule: Schedule, role: Role) -> tuple[str, ...]:
    """Why sizes of a schedule are not padded, a sentence each."""
    refused = schedule.padding.refused
    if role == PLAIN:
        return refused
    kept = "a backward reads what a forward saves at its size"
    return (*refused, *[f"{size.symbol}: {kept}" for size in schedule.padding.sizes])


def padding_text(size: PaddedSize, multiple: int) -> str:
    """That a size is padded, for people."""
    most = "" if size.most is None else f", up to {size.most}"
    return f"{size.symbol} is padded to multiples of {multiple}{most}"


@final
class PaddedGraph:
    """A `GraphCallable`.

    graph: what is called with padded inputs. multiple: what sizes are padded to. replays: whether
    its calls are replayed, or may come to be.
    """

    __slots__ = ("_graph", "_multiple", "_places", "_plan", "_replays", "text")

    def __init__(
        self,
        graph: Callable[[Sequence[object]], list[torch.Tensor]],
        plan: PaddingPlan,
        multiple: int,
        replays: Callable[[], bool] = lambda: True,
    ) -> None:
        self._graph, self._plan, self._multiple = graph, plan, multiple
        self._replays, self.text = replays, getattr(graph, "text", "")
        self._places = [plan.symbols.index(size.symbol) for size in plan.sizes]

    def __call__(self, inputs: Sequence[object]) -> list[torch.Tensor]:
        if not self._replays():
            return self._graph(inputs)
        numbers = self._plan.read(inputs)
        padded = self._padded(numbers)
        if padded == numbers:
            return self._graph(inputs)
        enabled = torch.is_grad_enabled()
        if enabled:
            set_grad_enabled(False)
        try:
            results = list(self._graph(self._filled(inputs, padded)))
            return self._cut(results, numbers, padded)
        finally:
            if enabled:
                set_grad_enabled(True)

    def _padded(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers with sizes padded: each that is not beyond the largest it may be run as."""
        padded, multiple = list(numbers), self._multiple
        for place, size in zip(self._places, self._plan.sizes, strict=True):
            made = -(-numbers[place] // multiple) * multiple
            if size.most is None or made <= size.most:
                padded[place] = made
        return tuple(padded)

    def _filled(self, inputs: Sequence[Any], padded: tuple[int, ...]) -> list[object]:
        given = list(inputs)
        layouts = self._plan.input_layouts(padded)
        for number, (shape, stride) in zip(self._plan.inputs, layouts, strict=True):
            given[number] = _filled(inputs[number], shape, stride)
        return given

    def _cut(
        self, results: list[torch.Tensor], numbers: tuple[int, ...], padded: tuple[int, ...]
    ) -> list[torch.Tensor]:
        plan = self._plan
        layouts = plan.result_layouts(numbers)
        for number, layout, of in zip(plan.results, layouts, plan.result_rows, strict=True):
            shape, stride, cuts = layout
            large = results[number]
            if large.shape == shape:
                continue
            made = large.new_empty_strided(shape, stride)
            source, target = large, made
            for (dim, outer, inner), place in zip(cuts, of, strict=True):
                rows = numbers[self._places[place]]
                all_rows = padded[self._places[place]]
                if outer == 1:
                    source = source.narrow(dim, 0, rows * inner)
                    continue
                source = source.unflatten(dim, (outer, all_rows, inner)).narrow(dim + 1, 0, rows)
                target = target.unflatten(dim, (outer, rows, inner))
            target.copy_(source)
            results[number] = made
        return results


# --- private ---------------------------------------------------------------------------------


def _filled(tensor: torch.Tensor, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A larger tensor that begins as this one does; the rest of it is zero."""
    made = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
    inside = made
    for dim, (size, larger) in enumerate(zip(tensor.shape, shape, strict=True)):
        if size != larger:
            inside.narrow(dim, size, larger - size).zero_()
            inside = inside.narrow(dim, 0, size)
    inside.copy_(tensor)
    return made


def _reader(
    schedule: Schedule,
) -> tuple[tuple[Symbol, ...], Callable[[Sequence[Any]], tuple[int, ...]]]:
    """The symbols that a call brings along, and what reads their numbers from its inputs."""
    numbers: list[tuple[str, Size]] = []
    for number, buffer in enumerate(schedule.inputs):
        for name, sizes in (("size", buffer.shape), ("stride", buffer.stride)):
            numbers += [(f"inputs[{number}].{name}({d})", size) for d, size in enumerate(sizes)]
    count = len(schedule.inputs)
    numbers += [(f"inputs[{count + n}]", size) for n, size in enumerate(schedule.sizes.numbers)]
    names: dict[Symbol, str] = {}
    lines = ["def read(inputs):"]
    for binding in bind_symbols(numbers, schedule.sizes.derived):
        text = binding.text(binding.place, names)
        names[binding.symbol] = f"n_{binding.symbol.name}"
        lines.append(f"    {names[binding.symbol]} = {text}")
    lines.append(f"    return ({', '.join(names.values())}{',' if names else ''})")
    return tuple(names), define(["\n".join(lines)], "<sizes of a schedule>", {})
