"""Operators that run whole graphs: the regions of control flow.

    %3 = region<cond>([%p, %0, %1], [])          # %p: which of two graphs runs
        graph { input %0; input %1; ... }        # taken where %p holds
        graph { input %0; input %1; ... }

A region reads its operands and nothing else, writes to nothing that it did not make, and returns
tensors of its own: never an operand, nor a view of one. The sizes behind the operands are the
numbers of the regions' graphs (`Graph.sizes`). Such a node stands in graphs of every stage; its
graphs are compiled with the graph that holds it, and a call runs only those that are taken.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any, TypeAlias, final

import torch

from braze.compat.python.other_compilers import unseen_by_other_compilers
from braze.compat.torch.autograd_engine import AutogradFunction
from braze.compat.torch.registered_ops import region
from braze.frozen import frozen
from braze.ir.graphs.graph import Graph, Node
from braze.ir.graphs.run_graph import compile_graph_runner
from braze.ir.types import TensorType, ValueType
from braze.shapes.expr import Expr, Symbol
from braze.shapes.linear import linear_in
from braze.shapes.substitution import evaluate

Program: TypeAlias = Callable[[Sequence[Any]], Sequence[torch.Tensor]]
# (operator, operands, sizes, types of the results) -> results: runs the operator, or records it.
Execute: TypeAlias = Callable[
    ["RegionOp", Sequence[Any], Sequence[Any], Sequence[object]], Sequence[Any]
]


class RegionKind(enum.Enum):
    """What a region's operator does with its graphs.

    COND: the first operand is a truth, by which one of two graphs runs on the others.
    WHILE: the first graph gives a truth; while it holds, the second gives new carried values, which
        are the first of its operands, as many as it has results.
    WHILE_GRADIENT: WHILE once more, and what it carried is kept; then the third graph, which is the
        gradient of the second, for each turn from the last to the first.
    CALL: the one graph runs.
    SCAN: the graph runs for each row of some operands, in order, on what is carried, the row and
        the other operands; it gives what is carried on, and a row of each of the other results.
    SCAN_GRADIENT: SCAN once more, and what it carried is kept; then the
        second graph, which is the gradient of the first, for each row in the other order.
    """

    COND = "cond"
    WHILE = "while_loop"
    WHILE_GRADIENT = "while_loop_gradient"
    CALL = "call"
    SCAN = "scan"
    SCAN_GRADIENT = "scan_gradient"


@final
@frozen
class LoopGradient:
    """flows: per value that a loop carries, whether gradients flow through it. given: per result,
    whether its gradient comes in. wanted: per operand, whether its gradient is a result."""

    flows: tuple[bool, ...]
    given: tuple[bool, ...]
    wanted: tuple[bool, ...]


@final
@frozen(eq=False)
class RegionOp:
    """In the place of a node's operator: `(operands, sizes) -> results`.

    differentiable: per result, whether gradients flow through it.
    differentiate: gives the operator for gradients of some operands, of some results' gradients.
    programs: what runs the graphs; empty until they are compiled.
    is_open: the sizes in the graphs are those of a trace that goes on.
    gradients: the operators that `differentiate` gave, by what was asked. runners: of the graphs,
    by eager kernels, once they ran so.
    turns: of the gradient of a scan, the calls of its graphs, once gradients flow through it.
    loop: of the gradient of a loop, which gradients there are.
    carried, rows: of a scan and its gradient, how many operands begin what is carried, and how many
        behind those are taken row by row.
    """

    kind: RegionKind
    graphs: tuple[Graph, ...]
    differentiable: tuple[bool, ...]
    differentiate: Callable[[RegionOp, tuple[bool, ...], tuple[bool, ...]], RegionOp]
    programs: tuple[Program, ...] = ()
    is_open: bool = False
    gradients: dict[Any, RegionOp] = field(default_factory=dict)
    runners: list[Program] = field(default_factory=list)
    turns: list[RegionOp] = field(default_factory=list)
    loop: LoopGradient | None = None
    carried: int = 0
    rows: int = 0

    @property
    def _schema(self) -> Any:
        return region._schema

    @property
    def _op(self) -> Callable[..., object]:
        return self.__call__

    @property
    def namespace(self) -> str:
        """As of an operator."""
        return str(region.namespace)

    @property
    def tags(self) -> tuple[()]:
        """As of an operator."""
        return ()

    def __str__(self) -> str:
        counts = f" {self.carried} {self.rows}" if self.rows else ""
        return f"region<{self.kind.value}{counts}>"

    def name(self) -> str:
        """As of an operator."""
        return f"{self.namespace}::{self}"

    def __call__(self, operands: Sequence[object], sizes: Sequence[int] = ()) -> list[torch.Tensor]:
        """Run what is taken; gradients flow where they are recorded."""
        return list(call_region(self, operands, sizes, (), _run))

    def gradient(self, wanted: tuple[bool, ...], given: tuple[bool, ...]) -> RegionOp:
        """`(operands, gradients of given results) -> gradients of wanted operands`."""
        key = wanted, given
        if key not in self.gradients:
            self.gradients[key] = self.differentiate(self, wanted, given)
        return self.gradients[key]


def is_region(node: Node) -> bool:
    """Whether a node runs graphs."""
    return isinstance(node.op, RegionOp)


def region_op(node: Node) -> RegionOp:
    """The operator of a node that runs graphs."""
    op: object = node.op
    assert isinstance(op, RegionOp), node.op
    return op


def compile_regions(graph: Graph, compile: Callable[[Graph], Program]) -> Graph:
    """The graph whose regions have programs; equal regions share one."""
    if not any(map(is_region, graph.nodes)):
        return graph
    made: dict[int, Program] = {}
    nodes = []
    for node in graph.nodes:
        op: Any = node.op
        if is_region(node) and not op.programs:
            for each in op.graphs:
                if id(each) not in made:
                    made[id(each)] = with_layouts(each, compile(each))
            programs = tuple([made[id(each)] for each in op.graphs])
            node = replace(node, op=replace(op, programs=programs))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def graphs_of(node: Node) -> tuple[Graph, ...]:
    """The graphs that a node holds."""
    op: Any = node.op
    return op.graphs if isinstance(op, RegionOp) else ()


def call_region(
    op: RegionOp,
    operands: Sequence[Any],
    sizes: Sequence[object],
    types: Sequence[object],
    execute: Execute,
) -> Sequence[Any]:
    """The results of a region as autograd sees them. types: of the results, for who records them:
    a type, or a tensor that a contiguous result has the shape, dtype and device of."""
    tracked = torch.is_grad_enabled() and any(op.differentiable)
    if tracked and any(operand.requires_grad for operand in operands):
        if op.kind is RegionKind.SCAN_GRADIENT and not sizes:
            return _scan_gradient_by_turns(op, operands, execute)
        return tuple(_TakenRegion.apply(op, sizes, types, execute, *operands))
    return execute(op, operands, sizes, types)


def with_layouts(graph: Graph, program: Program) -> Program:
    """The program with its inputs in the strides that it was compiled for: a pass over the graph
    around it, or the turn before, may have given them others."""
    kinds = [value.type for value in graph.inputs]
    strides = [_numbers(kind) for kind in kinds]
    if any(s is None and isinstance(kind, TensorType) for s, kind in zip(strides, kinds)):
        return _with_symbolic_layouts(kinds, program)

    def run(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        pairs = zip(inputs, strides)
        laid_out = [x if s is None or x.stride() == s else _laid_out(x, s) for x, s in pairs]
        return program([*laid_out, *inputs[len(strides) :]])

    return run


# --- private ---------------------------------------------------------------------------------


def _with_symbolic_layouts(kinds: Sequence[ValueType], program: Program) -> Program:
    """The same where strides are expressions of the sizes of inputs."""

    @functools.lru_cache(maxsize=8)
    def strides_at(shapes: tuple[object, ...]) -> list[tuple[int, ...] | None]:
        values = dict(_symbols_in(kinds, shapes))
        return [_numbers(kind, values) for kind in kinds]

    def run(inputs: Sequence[object]) -> Sequence[torch.Tensor]:
        shapes = tuple([x.shape if isinstance(x, torch.Tensor) else None for x in inputs])
        pairs = zip(inputs, strides_at(shapes[: len(kinds)]))
        laid_out = [x if s is None else _laid_out(x, s) for x, s in pairs]
        return program([*laid_out, *inputs[len(kinds) :]])

    return run


def _symbols_in(kinds: Sequence[ValueType], shapes: Sequence[Any]) -> Iterator[tuple[Symbol, int]]:
    """The symbols that are sizes of inputs, and what they are at these shapes."""
    for kind, shape in zip(kinds, shapes):
        if isinstance(kind, TensorType) and shape is not None:
            for size, number in zip(kind.shape, shape):
                found = linear_in(size) if isinstance(size, Expr) else None
                if found is not None and found[1:] == (1, 0):
                    yield found[0], number


def _numbers(
    kind: ValueType, values: Mapping[Symbol, int] = MappingProxyType({})
) -> tuple[int, ...] | None:
    """The strides of a type; None where some are symbols that have no value."""
    if not isinstance(kind, TensorType):
        return None
    try:
        return tuple([evaluate(step, values) for step in kind.stride])
    except KeyError:
        return None


def _laid_out(tensor: Any, stride: Any) -> object:
    """The tensor in other strides, copied where it has not got them."""
    if tensor.stride() == stride:
        return tensor
    return tensor.new_empty_strided(tensor.shape, stride).copy_(tensor)


def _run(
    op: RegionOp, operands: Sequence[object], sizes: Sequence[object], types: Sequence[object]
) -> Sequence[torch.Tensor]:
    programs: Sequence[Program] = op.programs
    if not programs:
        if not op.runners:
            op.runners.extend(map(compile_graph_runner, op.graphs))
        programs = op.runners
    with torch.no_grad():
        return _RUN[op.kind](op, programs, operands, sizes)


def _run_cond(
    op: RegionOp, programs: Sequence[Program], operands: Sequence[Any], sizes: Sequence[object]
) -> Sequence[torch.Tensor]:
    predicate, *rest = operands
    return programs[0 if predicate.item() else 1]([*rest, *sizes])


def _run_while(
    op: RegionOp, programs: Sequence[Program], operands: Sequence[Any], sizes: Sequence[Any]
) -> Sequence[torch.Tensor]:
    condition, body = programs
    count, values = len(op.differentiable), [*operands, *sizes]
    turns = 0
    while condition(values)[0].item():
        values[:count] = body(values)
        turns += 1
    return values[:count] if turns else [value.clone() for value in values[:count]]


def _run_while_gradient(
    op: RegionOp, programs: Sequence[Program], operands: Sequence[Any], sizes: Sequence[object]
) -> Sequence[torch.Tensor]:
    condition, body, gradient = programs
    loop = op.loop
    assert loop is not None
    count, first = len(loop.flows), len(loop.wanted)
    start, captured = list(operands[:count]), list(operands[count:first])
    tangents = iter(operands[first:])
    found = [next(tangents) if is_given else None for is_given in loop.given]
    flowing = [
        torch.zeros_like(value) if tangent is None else tangent
        for value, tangent, flows in zip(start, found, loop.flows, strict=True)
        if flows
    ]
    turns, carried = [], start
    while condition([*carried, *captured, *sizes])[0].item():
        turns.append(carried)
        carried = list(body([*carried, *captured, *sizes]))
    wanted = loop.wanted[count:]
    totals = [torch.zeros_like(x) for x, wants in zip(captured, wanted, strict=True) if wants]
    while turns:
        made = list(gradient([*turns.pop(), *captured, *flowing, *sizes]))
        flowing, more = made[: len(flowing)], made[len(flowing) :]
        for total, part in zip(totals, more, strict=True):
            total += part
    kept = [wants for wants, flows in zip(loop.wanted, loop.flows) if flows]
    return [*[t.clone() for t, wants in zip(flowing, kept, strict=True) if wants], *totals]


def _run_scan(
    op: RegionOp, programs: Sequence[Program], operands: Sequence[object], sizes: Sequence[object]
) -> Sequence[torch.Tensor]:
    carried, rows, captured = _parts_of_scan(op, operands)
    made = []
    for row in zip(*rows, strict=True):
        found = programs[0]([*carried, *row, *captured, *sizes])
        carried = list(found[: op.carried])
        made.append(found[op.carried :])
    return [*carried, *map(torch.stack, zip(*made, strict=True))]


def _run_scan_gradient(
    op: RegionOp, programs: Sequence[Program], operands: Sequence[Any], sizes: Sequence[Any]
) -> Sequence[torch.Tensor]:
    (body, gradient), loop, count = programs, op.loop, op.carried
    assert loop is not None
    first = len(loop.wanted)
    carried, rows, captured = _parts_of_scan(op, operands[:first])
    tangents = iter(operands[first:])
    found = [next(tangents) if is_given else None for is_given in loop.given]
    ends, columns = found[:count], [tangent for tangent in found[count:] if tangent is not None]
    flowing = [
        torch.zeros_like(value) if tangent is None else tangent
        for value, tangent, flows in zip(carried, ends, loop.flows, strict=True)
        if flows
    ]
    turns, slices = [carried], list(zip(*rows, strict=True))
    for row in slices[:-1]:
        turns.append(list(body([*turns[-1], *row, *captured, *sizes])[:count]))
    wanted = loop.wanted[count : count + op.rows]
    of_rows: list[Sequence[torch.Tensor]] = []
    totals = [
        torch.zeros_like(x) for x, wants in zip(captured, loop.wanted[count + op.rows :]) if wants
    ]
    for number in reversed(range(len(slices))):
        inside = [*turns.pop(), *slices[number], *captured, *flowing]
        made = list(gradient([*inside, *[column[number] for column in columns], *sizes]))
        flowing, made = made[: len(flowing)], made[len(flowing) :]
        of_rows.append(made[: sum(wanted)])
        for total, part in zip(totals, made[sum(wanted) :], strict=True):
            total += part
    kept = [wants for wants, flows in zip(loop.wanted, loop.flows) if flows]
    begun = [t for t, wants in zip(flowing, kept, strict=True) if wants]
    return [*begun, *map(torch.stack, zip(*reversed(of_rows), strict=True)), *totals]


def _scan_gradient_by_turns(
    op: RegionOp, operands: Sequence[object], execute: Execute
) -> Sequence[torch.Tensor]:
    """The same for gradients of gradients: a call of one graph for each row and each graph, all of
    which share two programs, and have gradients of any order themselves."""
    if not op.turns:
        for graph in op.graphs:
            flows = tuple([_is_floating(output.value.type) for output in graph.outputs])
            op.turns.append(RegionOp(RegionKind.CALL, (graph,), flows, op.differentiate))

    def program(call: RegionOp) -> Program:
        types = [output.value.type for output in call.graphs[0].outputs]
        return lambda inputs: call_region(call, inputs, (), types, execute)

    return _run_scan_gradient(op, list(map(program, op.turns)), operands, ())


def _is_floating(kind: ValueType) -> bool:
    assert isinstance(kind, TensorType)
    return kind.dtype.is_floating_point or kind.dtype.is_complex


def _parts_of_scan(
    op: RegionOp, operands: Sequence[object]
) -> tuple[list[Any], list[Any], list[Any]]:
    """What is carried, what is taken row by row, and what every turn is given."""
    first = op.carried + op.rows
    return list(operands[: op.carried]), list(operands[op.carried : first]), list(operands[first:])


def _run_call(
    op: RegionOp, programs: Sequence[Program], operands: Sequence[object], sizes: Sequence[object]
) -> Sequence[torch.Tensor]:
    return programs[0]([*operands, *sizes])


_RUN = {
    RegionKind.COND: _run_cond,
    RegionKind.WHILE: _run_while,
    RegionKind.WHILE_GRADIENT: _run_while_gradient,
    RegionKind.CALL: _run_call,
    RegionKind.SCAN: _run_scan,
    RegionKind.SCAN_GRADIENT: _run_scan_gradient,
}


@unseen_by_other_compilers
class _TakenRegion(AutogradFunction):
    @staticmethod
    def forward(
        ctx: Any,
        op: RegionOp,
        sizes: Any,
        types: Sequence[object],
        execute: Execute,
        *operands: Any,
    ) -> Any:
        ctx.op, ctx.sizes, ctx.execute = op, sizes, execute
        ctx.save_for_backward(*operands)
        ctx.set_materialize_grads(False)
        made = tuple(execute(op, operands, sizes, types))
        pairs = zip(made, op.differentiable, strict=True)
        ctx.strides = [result.stride() for result in made]
        ctx.mark_non_differentiable(*[result for result, flows in pairs if not flows])
        return made

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        op: RegionOp = ctx.op
        operands = ctx.saved_tensors
        wanted, given = ctx.needs_input_grad[4:], tuple([t is not None for t in tangents])
        if not any(given):
            return (None,) * len(ctx.needs_input_grad)
        present = [_laid_out(t, s) for t, s in zip(tangents, ctx.strides) if t is not None]
        like = [x for x, wants in zip(operands, wanted, strict=True) if wants]
        made = iter(
            call_region(
                op.gradient(wanted, given), (*operands, *present), ctx.sizes, like, ctx.execute
            )
        )
        return (None, None, None, None, *[next(made) if wants else None for wants in wanted])
