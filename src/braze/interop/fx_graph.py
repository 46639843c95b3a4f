"""Graphs as `torch.fx.GraphModule`: what user backends, `export` and logs take.

`to_fx` gives the program as the user wrote it, in torch-level calls; `aten_to_fx` the functional
ATen graph, with its write-backs as `copy_` at the end. Both take the graph's inputs in order, one
placeholder each, and return a tuple of the graph's outputs.
"""

from __future__ import annotations

import itertools
import operator
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from braze.compat.torch.aten import aten
from braze.compat.torch.autograd_engine import as_piece, copy_uncounted
from braze.compat.torch.dispatcher import set_grad_enabled
from braze.interop.example_values import complete_examples, example_value, note_example
from braze.interop.fx_casts import CastNodes, CastsOf
from braze.interop.fx_constants import (
    said_constant,
    said_dtype,
    said_function,
    said_method,
    said_target,
)
from braze.interop.fx_sizes import SizeNodes
from braze.interop.fx_text import ORIGIN, TYPE
from braze.ir.captured.frame import CapturedFrame, TorchCall
from braze.ir.graphs.graph import (
    Alias,
    Argument,
    Graph,
    Node,
    Output,
    Value,
    computed_symbol,
    first_result,
    needs_gradients,
    operands,
    values_in,
)
from braze.ir.graphs.run_graph import bindings_of, flat_tensors
from braze.ir.origin import Origin
from braze.ir.types import ScalarType, TensorType
from braze.shapes.expr import Expr, Symbol


class NotExpressible(ValueError):
    """A graph that `torch.fx` nodes cannot say; the message names what."""


class _NotNamed(Exception):
    """A value that torch-level calls cannot make."""


def to_fx(frame: CapturedFrame) -> fx.GraphModule:
    """The frame's torch-level calls as a GraphModule.

    Values that no call names (what was done inside of a transform) are computed by ATen calls.
    Where such a value needs a tensor that calls have written to since, or a call needs one that
    the graph does not make, or numbers are computed, all is ATen calls. Raises NotExpressible where
    these cannot say it.
    """
    names = _distinct([placeholder_name(str(source)) for source in frame.inputs])
    is_sized = bool(bindings_of(frame.graph))
    holds_backward = frame.saves and not needs_gradients(frame.graph)  # no call of torch says it
    if holds_backward or _computes_numbers(frame.graph) or (is_sized and not frame.calls):
        return aten_to_fx(frame.graph, names, frame.grad_enabled, frame.casts)
    try:
        return _torch_level(frame, names)
    except _NotNamed:
        return aten_to_fx(frame.graph, names, frame.grad_enabled, frame.casts)


def _torch_level(frame: CapturedFrame, names: Sequence[str]) -> fx.GraphModule:
    builder = _FxBuilder(frame.graph, names, frame.written_names)
    builder.gradients, builder.casts.entered = frame.grad_enabled, frame.casts
    producers = {v: node for node in frame.graph.nodes for v in node.outputs if v is not None}
    live = _live_calls(frame)
    _check_writes(frame, live)
    for call in live:
        if not call.is_plain:
            raise _NotNamed(call.result)  # it would be another one under the state outside
        builder.switch(call.grad_enabled, call.casts)
        builder.add_call(call, producers)
    builder.switch(frame.grad_enabled, frame.casts)
    results = frame.call_results or [output.value for output in frame.graph.outputs]
    return builder.finish([builder.value(result, producers) for result in results])


def aten_to_fx(
    graph: Graph, names: Sequence[str] = (), entered_with: bool = True, casts: CastsOf = ()
) -> fx.GraphModule:
    """The ATen graph as a GraphModule; `names` for the placeholders; `entered_with`: the grad
    mode in which it is called; `casts`: what autocast does there, whose casts the graph has."""
    count = len(graph.inputs) + len(graph.sizes.numbers)
    builder = _FxBuilder(graph, names or [f"arg{i}_1" for i in range(count)])
    builder.gradients, builder.casts.entered = entered_with, casts
    builder.casts.switch(())
    builder.own_reads = _reads_of_in_place_operators(graph)
    builder.add_nodes(graph.nodes)
    for mutation in graph.mutations:
        builder.switch_gradients(mutation.tracked)
        builder.call(
            aten.copy_.default if mutation.count else copy_uncounted,
            (builder.known[mutation.input], builder.known[mutation.value]),
        )
    builder.switch(entered_with, casts)
    return builder.finish([builder.output(output) for output in graph.outputs])


def _computes_numbers(graph: Graph) -> bool:
    """Whether numbers that the program reads of tensors are not known before the graph runs."""
    made = [value for node in graph.nodes for value in node.outputs if value is not None]
    return any(isinstance(value.type, ScalarType) for value in made)


def placeholder_name(source: str) -> str:
    """`L['x']` as `l_x_`."""
    name = re.sub(r"[^0-9a-zA-Z]+", "_", source).lower()
    return name if name and not name[0].isdigit() else f"arg_{name}"


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that came before: sources that differ in punctuation
    only (`x.a_b`, `x.a.b`) have one name, and fx would print a function with a parameter twice."""
    found: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}_{count}" for count in itertools.count(1))
        found[next(n for n in itertools.chain([name], numbered) if n not in found)] = None
    return list(found)


class _FxBuilder:
    """An fx graph in the making; `known` maps values to the fx nodes that hold them."""

    def __init__(
        self, graph: Graph, names: Sequence[str], written: frozenset[Value] = frozenset()
    ) -> None:
        self._written = written
        self.root = torch.nn.Module()
        self.graph = fx.Graph()
        self.known: dict[Value, fx.Node] = {}
        self.gradients = True
        self.casts = CastNodes(self.graph)
        self.own_reads: frozenset[Node] = frozenset()
        inputs = [self.graph.placeholder(name) for name in names]
        self.known.update(zip(graph.inputs, inputs))
        for index, constant in enumerate(graph.constants):
            name = f"_tensor_constant{index}"
            self.root.register_buffer(name, constant.tensor)
            self.known[constant.value] = self.graph.get_attr(name)
        self.sizes = SizeNodes(graph, self.graph)
        self.sizes.bind(graph, inputs)

    def finish(self, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        for value, node in self.known.items():
            _note_type(node, value)
        self.graph.output(tuple(outputs))
        self.sizes.drop_unused()
        complete_examples(self.graph)
        self.graph.lint()
        return fx.GraphModule(self.root, self.graph)

    def call(self, target: Callable[..., object], args: Any, kwargs: Any = None) -> fx.Node:
        return self.graph.call_function(target, args, kwargs or {})

    # --- ATen nodes

    def switch(self, gradients: bool, casts: CastsOf) -> None:
        """Let what follows be called in this grad mode and under this autocast."""
        self.switch_gradients(gradients)
        self.casts.switch(casts)

    def switch_gradients(self, enabled: bool) -> None:
        if enabled is not self.gradients:
            self.call(set_grad_enabled, (enabled,))
            self.gradients = enabled

    def add_nodes(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.switch_gradients(node.grad_enabled)
            self.add_node(node)

    def add_node(self, node: Node) -> None:
        args = [self._bound(argument) for argument in node.args]
        kwargs = {name: self._bound(argument) for name, argument in node.kwargs}
        if node in self.own_reads:
            args[0] = self.call(aten.clone.default, (args[0],))
        clones = self._clone_written(node, args, kwargs)
        target = node.op if hasattr(node.op, "__name__") else said_target(node.op)
        made = self.call(target, tuple(args), kwargs)
        _note_origin(made, node.origin)
        if computed_symbol(node) is not None:
            self.known[first_result(node)] = made
            self.sizes.note(node, made)
            return
        fresh = len(node.outputs) - len(clones)
        for value, result in zip(node.outputs[fresh:], clones):
            if value is not None:
                self.known[value] = result
        self._name_results(node, made, fresh)

    def _name_results(self, node: Node, made: fx.Node, fresh: int) -> None:
        kinds = [str(r.type) for r in node.op._schema.returns if r.alias_info is None or not fresh]
        if kinds == ["Tensor"] or [str(r.type) for r in node.op._schema.returns] == ["Tensor"]:
            if fresh and node.outputs[0] is not None:
                self.known[node.outputs[0]] = made
            return
        plain = all(str(r.type) == "Tensor" for r in node.op._schema.returns)
        if not plain and [str(r.type) for r in node.op._schema.returns] != ["List[Tensor]"]:
            made = self.call(flat_tensors, (made,))
        for index, value in enumerate(node.outputs[:fresh]):
            if value is not None:
                self.known[value] = self.call(operator.getitem, (made, index))

    def _clone_written(self, node: Node, args: list[Any], kwargs: dict[str, Any]) -> list[fx.Node]:
        clones: list[fx.Node] = []
        for position, argument in enumerate(node.op._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            if given is None:
                continue
            many = isinstance(given, list)
            copies = [self.call(aten.clone.default, (one,)) for one in (given if many else [given])]
            clones += copies
            replaced = copies if many else copies[0]
            if position < len(args):
                args[position] = replaced
            else:
                kwargs[argument.name] = replaced
        return clones

    def output(self, output: Output) -> fx.Node:
        alias = output.alias
        if alias is None:
            return self.known[output.value]
        base, made = alias.base.type, output.value.type
        if not isinstance(base, TensorType) or not isinstance(made, TensorType):
            raise NotExpressible("a view of a number")
        if base.dtype is not made.dtype:
            raise NotExpressible(f"a result that views an input of {base.dtype} as {made.dtype}")
        before = self.gradients
        if output.is_untracked:
            self.switch_gradients(False)
        view = self._view(self.known[alias.base], alias)
        self.switch_gradients(before)
        if output.uncounted:
            return self.call(getattr, (view, "data"))
        if output.detached:
            return self.call(aten.detach.default, (view,))
        return self.call(as_piece, (view,)) if output.is_piece else view

    def _view(self, base: fx.Node, alias: Alias) -> fx.Node:
        """`as_strided`, whose offset is left out: it would count from the start of the storage, and
        the base may begin anywhere."""
        start: Any = alias.offset
        if start:
            steps: Any = zip(alias.shape, alias.stride)
            reach = start + sum((size - 1) * step for size, step in steps) + 1
            end = self._bound(reach)
            base = self.call(aten.as_strided.default, (base, [end], [1]))
            base = self.call(aten.slice.Tensor, (base, 0, self._bound(start), end))
        arguments = (base, self._bound(alias.shape), self._bound(alias.stride))
        return self.call(aten.as_strided.default, arguments)

    def _bound(self, argument: Argument) -> object:
        if type(argument) is Value:
            return self.known[argument]
        if isinstance(argument, (tuple, list)):
            return [self._bound(a) for a in argument]
        if isinstance(argument, (Expr, Symbol)):
            return self.sizes.number(argument)
        return said_constant(self.root, self.graph, argument)

    # --- torch-level calls

    def value(self, value: Value, producers: dict[Value, Node]) -> fx.Node:
        """The fx node of a value; made by ATen calls where no torch-level call named it."""
        found = self.known.get(value)
        if found is not None:
            return found
        node = producers.get(value)
        if node is None or value in self._written:  # a value made again has memory of its own
            raise _NotNamed(value)
        for needed in operands(node):
            if needed in self._written:
                raise _NotNamed(value)
            self.value(needed, producers)
        # Of the call that needs it, which may come long after.
        mode, casts = self.gradients, self.casts.now
        self.switch(node.grad_enabled, ())
        self.add_node(node)
        self.switch(mode, casts)
        return self.known[value]

    def add_call(self, call: TorchCall, producers: dict[Value, Node]) -> None:
        is_own = getattr(call.target, "__module__", "torch") == _APPLYING  # takes types as such
        dtype = _same if is_own else said_dtype
        args = tuple(self._argument(dtype(a), producers) for a in call.args)
        kwargs = {name: self._argument(dtype(a), producers) for name, a in call.kwargs}
        if isinstance(call.target, str):
            original = said_method(call.target)
            if original is None:
                made = self.graph.call_method(call.target, args, kwargs)
            else:
                made = self.call(original, args, kwargs)
        elif type(call.target) is types.MethodDescriptorType:  # the tensor's class has its own
            made = self.call(said_function(call.target, call.target.__name__), args, kwargs)
        elif type(call.target) is types.MethodWrapperType:  # x.data, x.T: a descriptor's __get__
            descriptor = call.target.__self__
            assert hasattr(descriptor, "__name__")
            made = self.call(getattr, (*args, descriptor.__name__))
        else:
            made = self.call(_target_for(said_target(call.target), args), args, kwargs)
        _note_origin(made, call.origin)
        self._name_result(call.result, made)

    def _argument(self, argument: object, producers: dict[Value, Node]) -> Any:
        if type(argument) is Value:
            return self.value(argument, producers)
        if isinstance(argument, (tuple, list)):
            items = [self._argument(a, producers) for a in argument]
            if hasattr(argument, "_fields"):
                return type(argument)(*items)
            return items if isinstance(argument, list) else tuple(items)
        if isinstance(argument, dict):
            return {name: self._argument(a, producers) for name, a in argument.items()}
        if isinstance(argument, slice):
            parts = (argument.start, argument.stop, argument.step)
            return slice(*(self._argument(part, producers) for part in parts))
        if isinstance(argument, (Expr, Symbol)):
            if not self.sizes.knows(argument):
                raise _NotNamed(argument)
            return self.sizes.number(argument)
        return said_constant(self.root, self.graph, argument)

    def _name_result(self, result: object, made: fx.Node) -> None:
        if type(result) is Value:
            _note_type(made, result)  # a write to it names another node
            self.known[result] = made
        elif isinstance(result, (tuple, list)):
            for index, item in enumerate(result):
                if values_in(item):
                    self._name_result(item, self.call(operator.getitem, (made, index)))
        elif isinstance(result, dict):
            for key, item in result.items():
                if values_in(item):
                    self._name_result(item, self.call(operator.getitem, (made, key)))


def _reads_of_in_place_operators(graph: Graph) -> frozenset[Node]:
    """The nodes that read, as their first argument, what an input was before a write that autograd
    follows. As in-place operators they save a copy; saved itself, it would be written to. Where an
    operator wrote to a view (`z[0].sin_()`), it read the view, and its result was put into a copy.
    """
    makers = {value: node for node in graph.nodes for value in node.outputs}
    found: set[Node] = set()
    if not any(getattr(value.type, "requires_grad", False) for value in graph.inputs):
        return frozenset()
    for mutation in graph.mutations:
        asked: list[Argument] = [mutation.value] if mutation.tracked else []
        seen: set[Node] = set()
        while asked:
            value = asked.pop()
            node = makers.get(value) if isinstance(value, Value) else None
            if node is None or node in seen or not node.args:
                continue
            seen.add(node)
            asked.extend(node.args[: 2 if node.op in _SCATTERS else 1])
            keeps = node.grad_enabled and not node.op.is_view
            if keeps and _viewed(node.args[0], makers) is mutation.input:
                found.add(node)
    return frozenset(found)


def _viewed(value: Argument, makers: Mapping[Value | None, Node]) -> Argument:
    """What a value is a view of; of another value, that value."""
    while isinstance(value, Value) and value in makers and makers[value].op.is_view:
        value = makers[value].args[0]
    return value


_SCATTERS = frozenset(
    {
        aten.slice_scatter.default,
        aten.select_scatter.default,
        aten.diagonal_scatter.default,
        aten.as_strided_scatter.default,
    }
)
"""`(tensor, source, ...)`: what a write to a view becomes."""


# The module of what applies a program's own autograd function.
_APPLYING = "braze.capture.training.autograd_functions"


def _same(value: object) -> Any:
    return value


def _note_type(node: fx.Node, value: Value) -> None:
    """What a node holds, in our form and in those that PyTorch's backends ask for."""
    if TYPE in node.meta:
        return
    node.meta[TYPE] = value.type
    example = example_value(value, requires_grad=node.op == "placeholder")
    if example is not None:
        note_example(node, example)


def _note_origin(node: fx.Node, origin: Origin) -> None:
    """Where the user's program made the call, in our form and in the one that fx prints."""
    node.meta[ORIGIN] = origin
    node.stack_trace = f'File "{origin.file}", line {origin.line}, in {origin.function}'


def _target_for(target: Callable[..., object], args: tuple[object, ...]) -> Callable[..., object]:
    """`0 -= x` is no Python: with a number on its left an in-place operator is a plain one."""
    name = getattr(target, "__name__", "")
    if getattr(operator, name, None) is not target or not name.startswith("i"):
        return target
    plain: Callable[..., Any] | None = getattr(operator, name[1:], None)
    return target if plain is None or isinstance(args[0], fx.Node) else plain


def _check_writes(frame: CapturedFrame, calls: Sequence[TorchCall]) -> None:
    """Raise _NotNamed where an input is written to, and no call takes it or a view of it: the write
    is of an operator that no call says."""
    taken = frame.written_names.union(
        *[values_in((call.args, dict(call.kwargs))) for call in calls]
    )
    for mutation in frame.graph.mutations:
        if mutation.input not in taken:
            raise _NotNamed(mutation.input)


def _live_calls(frame: CapturedFrame) -> list[TorchCall]:
    """The calls whose tensors the graph can make: one whose arguments only dead operators made is
    itself dead. Raises _NotNamed where such a call might write."""
    graph = frame.graph
    made: set[Value] = set(graph.inputs)
    made.update(constant.value for constant in graph.constants)
    made.update(value for node in graph.nodes for value in node.outputs if value is not None)
    live: list[TorchCall] = []
    for call in frame.calls:
        if all(value in made for value in values_in((call.args, dict(call.kwargs)))):
            live.append(call)
            made.update(values_in(call.result))
        elif not frame.written_names.isdisjoint(values_in((call.args, call.result))):
            raise _NotNamed(call)  # it may write to memory that is not its own
    return live
