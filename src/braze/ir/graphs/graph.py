"""The functional ATen graph: one node an operator call, values in single-assignment form.

No node writes to a tensor that existed before it: mutation is kept apart, in `Graph.mutations`,
and replayed after the nodes. Aliasing of results is kept in `Output.alias`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, final

import torch

from braze.frozen import frozen
from braze.ir.origin import UNKNOWN, Origin
from braze.ir.types import ScalarType, Size, TensorType, ValueType
from braze.shapes.binding import NO_SIZES, Sizes
from braze.shapes.expr import Symbol


@final
@frozen(eq=False)
class Value:
    """One result. Compared by identity; `index` is its number in the printed graph."""

    index: int
    type: ValueType

    def __str__(self) -> str:
        return f"%{self.index}"


# Value, a Python constant (int, float, complex, bool, str, None, dtype, device, layout, memory
# format, Generator), or a list/tuple of those, nested at most once in ATen's schemas.
Argument: TypeAlias = Any


@final
@frozen(eq=False)
class Node:
    """One call of an ATen (or custom) operator.

    outputs: the tensors it returns, flattened in order; None where the operator returned an
        undefined tensor. How they are nested follows from the operator's schema. A number that
        sizes depend on has a symbol in its type (`%3: int(u0) = aten.sym_size.int(%2, 0)`).
    grad_enabled: the grad mode under which the call was made.
    An operator whose schema says that it writes to arguments gets clones of those; `outputs` then
    ends with the clones' contents after the call, in the order of the arguments, in place of the
    results that alias them.
    """

    op: torch._ops.OpOverload
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    outputs: tuple[Value | None, ...]
    origin: Origin = UNKNOWN
    grad_enabled: bool = True


@final
@frozen(eq=False)
class ViewStep:
    """An operator by which the program made a view of a tensor, with the arguments behind it:
    sizes, numbers and None."""

    op: torch._ops.OpOverload
    args: tuple[Argument, ...]


@final
@frozen(eq=False)
class Alias:
    """A result that is a view: `as_strided(base, shape, stride, offset)`; offset in elements,
    absolute within the base's storage minus the base's own storage offset. Where the output's
    dtype is not the base's (`view(dtype)`, `view_as_complex` of an input), all three count
    elements of the output's dtype.

    steps: the operators that lead from the base to the same view; () where they are not known.
        Autograd sees these, since the gradient of `as_strided` has other strides. They are not
        printed: values do not depend on them."""

    base: Value
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size
    steps: tuple[ViewStep, ...] = ()


@final
@frozen(eq=False)
class Output:
    """One result of the graph. With an alias, the caller gets a view of the alias's base (a graph
    input, or the value of another output) and `value` only says what it holds.

    detached: a view through which no gradient flows (`x.detach()`), though its base has some.
    is_piece: one of several views that one call made (`x.unbind()`): autograd refuses to write to
        it. is_plain: a view that one call made alone, with gradients enabled: it does not.
        is_untracked: a view made without gradients: it refuses what carries some.
    uncounted: a detached view with a version of its own (`x.data`): later writes to it do not
        raise the base's.
    version: of an output without an alias, how often the program wrote to it.
    """

    value: Value
    alias: Alias | None = None
    detached: bool = False
    is_piece: bool = False
    is_plain: bool = False
    is_untracked: bool = False
    uncounted: bool = False
    version: int = 0


@final
@frozen(eq=False)
class Mutation:
    """After the nodes ran, `input` receives the contents of `value` (same shape, dtype, device).

    tracked: the write was made with gradients enabled, so that under autograd it gives the input
        a new history; without, the input keeps the history that it had.
    count: by how much the input's version goes up: how often the program wrote to it, but for what
        it wrote through `x.data`.
    """

    input: Value
    value: Value
    tracked: bool = True
    count: int = 1


@final
@frozen(eq=False)
class Constant:
    """A real tensor captured from inside the program (`torch.tensor([1, 2])`), never written to."""

    value: Value
    tensor: torch.Tensor


@final
@frozen(eq=False)
class Graph:
    """sizes: what the graph needs of symbols and the sizes of its inputs do not say; its numbers
    are passed after the inputs.
    used_once: what memory held behind a write through a view of it, by which gradients flow: a
    backward through there leaves nothing to another one."""

    inputs: tuple[Value, ...]
    constants: tuple[Constant, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    mutations: tuple[Mutation, ...]
    sizes: Sizes = NO_SIZES
    used_once: frozenset[Value] = frozenset()


def devices_of(graph: Graph) -> frozenset[torch.device]:
    """The devices that the graph's tensors are on."""
    values = [*graph.inputs, *(constant.value for constant in graph.constants)]
    values += [value for node in graph.nodes for value in node.outputs if value is not None]
    types = [value.type for value in values]
    return frozenset(found.device for found in types if isinstance(found, TensorType))


def without_nodes(graph: Graph) -> Graph:
    """What those who call a graph ask of it: its inputs, results and writes."""
    return replace(graph, constants=(), nodes=())


def needs_gradients(graph: Graph) -> bool:
    """Whether a result of the graph must carry gradients back to its inputs."""
    return any(node.grad_enabled for node in graph.nodes) and any(
        getattr(value.type, "requires_grad", False) for value in graph.inputs
    )


def first_result(node: Node) -> Value:
    """The first tensor that a node returns, of an operator that always defines it."""
    value = node.outputs[0]
    assert value is not None, node.op
    return value


def computed_symbol(node: Node) -> Symbol | None:
    """The symbol that stands for the number that a node computes: it is known from there on."""
    if len(node.outputs) != 1 or node.outputs[0] is None:
        return None
    kind = node.outputs[0].type
    return kind.symbol if isinstance(kind, ScalarType) else None


def main_device(devices: frozenset[torch.device]) -> torch.device | None:
    """The one that kernels run on: the CPU if there is no other; None if there are several."""
    others = [device for device in devices if device.type != "cpu"]
    if not others:
        return torch.device("cpu")
    return others[0] if len(others) == 1 else None


def values_in(argument: object) -> list[Value]:
    """The values in an argument or result, however nested, in order."""
    found: list[Value] = []
    _add_values(found, (argument,))
    return found


def operands(node: Node) -> list[Value]:
    """The values that a node reads, in order."""
    found: list[Value] = []
    _add_values(found, node.args)
    for _, argument in node.kwargs:
        _add_values(found, (argument,))
    return found


# What most arguments are that hold no values: passes ask each node of a graph many times.
_PLAIN_ARGUMENTS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})


def _add_values(found: list[Value], arguments: Iterable[Any]) -> None:
    """Add the values in arguments to `found`, in order."""
    for argument in arguments:
        kind = type(argument)
        if kind is Value:
            found.append(argument)
        elif kind in _PLAIN_ARGUMENTS:
            continue
        elif isinstance(argument, (tuple, list)):
            _add_values(found, argument)
        elif isinstance(argument, dict):
            _add_values(found, argument.values())
        elif isinstance(argument, slice):
            _add_values(found, (argument.start, argument.stop, argument.step))


def replace_in(argument: object, replacements: Mapping[Value, Value]) -> Any:
    """The argument with values replaced."""
    if type(argument) is Value:
        return replacements.get(argument, argument)
    if isinstance(argument, (list, tuple)) and values_in(argument):
        return type(argument)([replace_in(item, replacements) for item in argument])
    return argument


def replace_operands(node: Node, replacements: Mapping[Value, Value]) -> Node:
    """The node reading the replacements; the node itself where nothing changes."""
    if not replacements or not any(value in replacements for value in operands(node)):
        return node
    args = tuple(replace_in(argument, replacements) for argument in node.args)
    kwargs = tuple((name, replace_in(value, replacements)) for name, value in node.kwargs)
    return replace(node, args=args, kwargs=kwargs)
