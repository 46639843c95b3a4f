"""Checks that a graph is well formed; run between passes in tests and when asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.ir.graphs.graph import Graph, Node, Value, computed_symbol, operands
from braze.ir.graphs.print_graph import print_node
from braze.ir.origin import UNKNOWN, Origin
from braze.ir.passes import InvalidProgram
from braze.ir.types import TensorType, ValueType


class InvalidGraph(InvalidProgram):
    """A graph that breaks a rule: a bug of the stage that made it, not of the user's program."""

    def __init__(self, message: str, node: Node | None = None) -> None:
        self.node = node
        self.origin: Origin = node.origin if node is not None else UNKNOWN
        where = f"\n  {print_node(node)}" if node is not None else ""
        super().__init__(f"{message}{where}")


def verify_graph(graph: Graph) -> None:
    """Raise InvalidGraph unless: every value is defined once, before its uses, with a number of
    its own; calls fit their schemas; aliases name inputs or owned outputs; a write-back has its
    input's shape, dtype and device, and each input at most one."""
    defined: set[Value] = set()
    numbers: dict[int, Value] = {}

    def define(value: Value, node: Node | None) -> None:
        if value in defined:
            raise InvalidGraph(f"{value} is defined twice", node)
        if value.index in numbers:
            raise InvalidGraph(f"two values have the number {value}", node)
        _check_type(value.type, node)
        defined.add(value)
        numbers[value.index] = value

    for value in graph.inputs:
        define(value, None)
    for constant in graph.constants:
        define(constant.value, None)
        _check_constant(constant.value.type, constant.tensor)
    for node in graph.nodes:
        _check_uses(node, defined)
        _check_call(node)
        for result in node.outputs:
            if result is not None:
                define(result, node)
    _check_outputs(graph, defined)
    _check_mutations(graph, defined)


def _check_type(type: ValueType, node: Node | None) -> None:
    if isinstance(type, TensorType) and len(type.shape) != len(type.stride):
        raise InvalidGraph(f"{type}: shape and stride differ in length", node)


def _check_constant(type: ValueType, tensor: torch.Tensor) -> None:
    found = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
    if not isinstance(type, TensorType):
        raise InvalidGraph(f"a constant of type {type}")
    if found != (type.dtype, type.shape, type.stride, type.device):
        raise InvalidGraph(f"a constant's tensor is no {type}")


def _check_uses(node: Node, defined: set[Value]) -> None:
    for value in operands(node):
        if value not in defined:
            raise InvalidGraph(f"{value} is used before it is defined", node)


def _check_call(node: Node) -> None:
    schema = node.op._schema
    positional = [a for a in schema.arguments if not a.kwarg_only]
    if len(node.args) > len(positional):
        raise InvalidGraph(
            f"{len(node.args)} arguments where the operator takes {len(positional)}", node
        )
    given = {a.name for a in positional[: len(node.args)]}
    names = {a.name for a in schema.arguments}
    for name, _ in node.kwargs:
        if name not in names:
            raise InvalidGraph(f"the operator has no argument {name!r}", node)
        if name in given:
            raise InvalidGraph(f"argument {name!r} is given twice", node)
        given.add(name)
    for argument in schema.arguments:
        if argument.name not in given and not argument.has_default_value():
            raise InvalidGraph(f"argument {argument.name!r} is missing", node)
    _check_sizes((*node.args, *(argument for _, argument in node.kwargs)), node)
    _check_results(node)


def _check_sizes(arguments: Sequence[object], node: Node) -> None:
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            _check_sizes(argument, node)
        elif isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise InvalidGraph("an argument is a size of a trace that is over", node)


def _check_results(node: Node) -> None:
    schema = node.op._schema
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if len(node.outputs) < _count_written(node, {a.name for a in written}):
        raise InvalidGraph("what the operator writes to is no result of it", node)
    kinds = [str(r.type) for r in schema.returns if r.alias_info is None or not written]
    if any("List" in kind or "[]" in kind for kind in kinds) or computed_symbol(node) is not None:
        return
    if any("List" in str(a.type) or "Optional" in str(a.type) for a in written):
        return
    single = ("Tensor", "Optional[Tensor]", "number")
    expected = sum(kind in single for kind in kinds) + len(written)
    if len(node.outputs) != expected:
        raise InvalidGraph(f"{len(node.outputs)} results where there are {expected}", node)


def _count_written(node: Node, names: set[str]) -> int:
    """How many tensors are given as arguments of these names."""
    given = [*zip([a.name for a in node.op._schema.arguments], node.args), *node.kwargs]
    values = [value for name, value in given if name in names]
    parts = [part for value in values for part in (value if type(value) in _LISTS else (value,))]
    return sum(isinstance(part, Value) for part in parts)


_LISTS = frozenset({list, tuple})


def _check_outputs(graph: Graph, defined: set[Value]) -> None:
    owned = {output.value for output in graph.outputs if output.alias is None}
    inputs = set(graph.inputs)
    for output in graph.outputs:
        if output.value not in defined:
            raise InvalidGraph(f"output {output.value} is not defined")
        alias = output.alias
        if alias is None:
            continue
        if alias.base not in inputs and alias.base not in owned:
            raise InvalidGraph(
                f"output {output.value} is a view of {alias.base}, which no one owns"
            )
        if len(alias.shape) != len(alias.stride):
            raise InvalidGraph(f"output {output.value}: alias shape and stride differ in length")


def _check_mutations(graph: Graph, defined: set[Value]) -> None:
    inputs, seen = set(graph.inputs), set()
    for mutation in graph.mutations:
        if mutation.input not in inputs:
            raise InvalidGraph(f"{mutation.input} is written back and is no input")
        if mutation.input in seen:
            raise InvalidGraph(f"input {mutation.input} is written back twice")
        seen.add(mutation.input)
        if mutation.value not in defined:
            raise InvalidGraph(f"{mutation.value} is written back and is not defined")
        if not _same_contents(mutation.input.type, mutation.value.type):
            raise InvalidGraph(
                f"input {mutation.input} of type {mutation.input.type} is written back "
                f"from {mutation.value} of type {mutation.value.type}"
            )


def _same_contents(target: ValueType, value: ValueType) -> bool:
    if not isinstance(target, TensorType) or not isinstance(value, TensorType):
        return target == value
    return (target.dtype, target.shape, target.device) == (value.dtype, value.shape, value.device)
