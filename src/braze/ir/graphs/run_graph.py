"""The reference executor: a graph run by PyTorch's own operators.

`run_graph` interprets; `compile_graph_runner` writes the same program as straight-line Python, for
use where eager kernels are the product (fallbacks, the aot_eager backend). Both are
differentiable: each node runs under the grad mode under which it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from braze.compat.torch.autograd_engine import (
    as_piece,
    as_plain_view,
    as_untracked_view,
    copy_uncounted,
    is_write_refused,
    note_write,
)
from braze.compat.torch.dispatcher import FAST_CALLS, direct_call, set_grad_enabled
from braze.compat.torch.grad_mode import is_autocast_on, without_autocast
from braze.compat.torch.registered_ops import end_pending, pending_writes
from braze.ir.captured.compile_request import after_effects, make_writes
from braze.ir.generated_code import define
from braze.ir.graphs.graph import Argument, Graph, Node, Output, Value, computed_symbol, operands
from braze.ir.graphs.op_effects import is_irrevocable
from braze.ir.graphs.version_counters import give_versions
from braze.ir.types import Size, TensorType
from braze.shapes.binding import Binding, SizeCheck, bind_symbols, python_text, raise_unmet
from braze.shapes.expr import Expr, Symbol


def run_graph(graph: Graph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The graph's outputs, in order; inputs that the graph mutates are written last.

    inputs: real tensors (or fake tensors) in the order of `graph.inputs`.
    """
    expected = len(graph.inputs) + len(graph.sizes.numbers)
    if len(inputs) != expected:
        raise ValueError(f"the graph has {expected} inputs, got {len(inputs)}")
    if bindings_of(graph) or any(map(computed_symbol, graph.nodes)):
        return list(compile_graph_runner(graph)(inputs))
    values: dict[Value, Any] = dict(zip(graph.inputs, inputs))
    values.update((constant.value, constant.tensor) for constant in graph.constants)
    ambient, versions = torch.is_grad_enabled(), _versions(graph)
    if ambient:
        for written in written_and_read(graph):
            values[written] = private_copy(values[written])
    for node in graph.nodes:
        with torch.set_grad_enabled(node.grad_enabled and ambient), without_autocast():
            returned = call_node(node, values)
        results = flat_tensors(returned) if node.outputs else []
        for value, result in zip(node.outputs, results, strict=True):
            if value is not None:
                values[value] = result
        made = [value for value in node.outputs if value is not None and value in versions]
        if made:
            give_versions([values[value] for value in made], [versions[value] for value in made])
    real = dict(zip(graph.inputs, inputs))
    check_writes([(real[m.input], values[m.value]) for m in graph.mutations if m.tracked])
    for mutation in graph.mutations:
        target, value = real[mutation.input], values[mutation.value]
        write_back(target, value, mutation.tracked, mutation.count)
    values.update(real)
    return [_output(output, values) for output in graph.outputs]


def _versions(graph: Graph) -> dict[Value, int]:
    """Of results that the program wrote to, how often. They are told when they are made: a history
    that saves one would take what is counted later for a write."""
    return {output.value: output.version for output in graph.outputs if output.version}


def bindings_of(graph: Graph) -> list[Binding]:
    """Where the values of the graph's symbols are found. A place is the number of an input and a
    text to put behind its name."""
    numbers: list[tuple[Any, Size]] = []
    for number, value in enumerate(graph.inputs):
        if isinstance(value.type, TensorType):
            for name, sizes in (("size", value.type.shape), ("stride", value.type.stride)):
                numbers += [((number, f".{name}({d})"), size) for d, size in enumerate(sizes)]
    after = len(graph.inputs)
    numbers += [((after + number, ""), size) for number, size in enumerate(graph.sizes.numbers)]
    return bind_symbols(numbers, graph.sizes.derived)


def with_gradients(
    run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
) -> Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]:
    """A graph of a frame that is entered without gradients and enables them on its way."""

    def run_with_gradients(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        with torch.enable_grad():
            return run(inputs)

    return run_with_gradients


def in_inference_mode(
    run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
) -> Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]:
    """A graph of a frame that enters inference mode before all that it computes."""

    def run_in_inference_mode(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        with torch.inference_mode():
            return run(inputs)

    return run_in_inference_mode


def _needs_gradient(given: object) -> bool:
    return isinstance(given, torch.Tensor) and given.requires_grad


def untracked(
    run: Callable[[Sequence[Any]], Sequence[torch.Tensor]],
) -> Callable[[Sequence[object]], Sequence[torch.Tensor]]:
    """A graph whose results need no gradients, on inputs that might: it may have been rewritten to
    one without the `detach` that said so. Numbers among the inputs need none."""

    def run_untracked(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        if not torch.is_grad_enabled() or not any(map(_needs_gradient, inputs)):
            return run(inputs)
        return run([x.detach() if _needs_gradient(x) else x for x in inputs])

    return run_untracked


def written_and_read(graph: Graph) -> list[Value]:
    """Mutated inputs that nodes read under gradients. Autograd may save them, and the write-back
    must not change what it saved."""
    read: set[Value] = set()
    for node in graph.nodes:
        if node.grad_enabled:
            read.update(operands(node))
    return [m.input for m in graph.mutations if m.input in read]


def private_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, differentiable."""
    copy = tensor.clone()
    if copy.stride() == tensor.stride():
        return copy
    return tensor.detach().new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor)


def call_node(node: Node, values: dict[Value, object]) -> Any:
    """Run one node; operators that write get clones, whose contents are returned last."""
    args = [_bind(argument, values) for argument in node.args]
    kwargs = {name: _bind(argument, values) for name, argument in node.kwargs}
    schema = node.op._schema
    written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
    if not any(written):
        return node.op(*args, **kwargs)
    return _call_on_clones(node.op, written, args, kwargs)


def _call_on_clones(
    op: torch._ops.OpOverload, written: list[bool], args: list[Any], kwargs: dict[str, Any]
) -> list[object]:
    clones: list[Any] = []
    for position, argument in enumerate(op._schema.arguments):
        if not written[position]:
            continue
        given = args[position] if position < len(args) else kwargs.get(argument.name)
        if given is None:
            continue
        clone = [t.clone() for t in given] if isinstance(given, list) else given.clone()
        clones.extend(clone if isinstance(clone, list) else [clone])
        if position < len(args):
            args[position] = clone
        else:
            kwargs[argument.name] = clone
    result = op(*args, **kwargs)
    if result is None:
        returned: tuple[Any, ...] = ()
    else:
        returned = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    fresh = [
        value
        for value, described in zip(returned, op._schema.returns)
        if described.alias_info is None
    ]
    return [*fresh, *clones]


def flat_tensors(result: object) -> list[Any]:
    """An operator's tensors and numbers, flattened in order; None stays for an undefined tensor."""
    if result is None or isinstance(result, (torch.Tensor, float, torch.SymFloat)):
        return [result]
    if isinstance(result, (tuple, list)):
        return [tensor for item in result for tensor in flat_tensors(item)]
    return []


def check_writes(writes: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Raise RuntimeError if autograd will refuse one of the tracked writes, before the first is
    made: whoever answers by running the program must find what it writes to as it was."""
    if torch.is_grad_enabled():
        for target, value in writes:
            if is_write_refused(target, value.requires_grad):
                raise RuntimeError("autograd refuses a write to an input of the graph")


def checking_writes(
    graph: Graph, run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
) -> Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]:
    """`run`, which makes the graph's writes in the program's order, asked for only where autograd
    refuses none of those to inputs that need gradients."""
    written = {m.input for m in graph.mutations if m.tracked}
    places = [
        number
        for number, value in enumerate(graph.inputs)
        if value in written and getattr(value.type, "requires_grad", False)
    ]
    if not places or len(graph.mutations) < 2:
        return run

    def run_checked(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        check_writes([(inputs[place], inputs[place]) for place in places])
        return run(inputs)

    return run_checked


def write_back(target: torch.Tensor, value: torch.Tensor, tracked: bool, count: int = 1) -> None:
    """Give a mutated input its new contents: an in-place copy that autograd records where it
    recorded the write in eager, and counts as often as it counted writes."""
    if not count:
        with torch.no_grad():
            copy_uncounted(target, value)
    elif tracked and (value.requires_grad or target.requires_grad):
        target.copy_(value)
    else:
        with torch.no_grad():
            target.copy_(value)
    if count > 1:
        note_write((target,) * (count - 1))


def _bind(argument: Argument, values: dict[Value, object]) -> object:
    if type(argument) is Value:
        return values[argument]
    if isinstance(argument, (tuple, list)):
        return [_bind(a, values) for a in argument]
    return argument


def _output(output: Output, values: dict[Value, Any]) -> torch.Tensor:
    alias = output.alias
    if alias is None:
        result: torch.Tensor = values[output.value]
        return result
    return view_for(values[alias.base], output)


def view_for(
    base: torch.Tensor, output: Output, place: tuple[object, object, object] | None = None
) -> torch.Tensor:
    """The result that an output with an alias is: a view of the alias's base. place: the alias's
    (shape, stride, offset) in numbers, where it has symbols."""
    alias = output.alias
    assert alias is not None and isinstance(output.value.type, TensorType)
    shape, stride, offset = place or (tuple(alias.shape), tuple(alias.stride), alias.offset)
    is_other = output.uncounted or output.detached or output.is_piece
    make = untracked_view_of if output.is_untracked and not is_other else view_of
    view = make(base, shape, stride, offset, output.value.type.dtype)
    if output.uncounted:
        return view.data
    if output.detached:
        return view.detach()
    return as_piece(view) if output.is_piece else view


def _as_made(view: torch.Tensor) -> torch.Tensor:
    """A result that the program made as a view with gradients enabled, and the graph perhaps
    without: behind a write, contents are read by the trace."""
    return as_plain_view(view) if torch.is_grad_enabled() and not view.requires_grad else view


def untracked_view_of(
    base: torch.Tensor, shape: object, stride: object, offset: object, dtype: torch.dtype
) -> torch.Tensor:
    """`view_of`, as made without gradients: of a base that requires grad it does, too, and has no
    history."""
    with torch.no_grad():
        return as_untracked_view(view_of(base, shape, stride, offset, dtype))


def view_of(
    base: torch.Tensor, shape: Any, stride: Any, offset: Any, dtype: torch.dtype
) -> torch.Tensor:
    """`as_strided` of a tensor, in elements of `dtype`."""
    if base.dtype is not dtype and dtype.to_real() is base.dtype.to_real():
        if base.is_complex():
            base = torch.view_as_real(base)
        else:
            pairs = tuple([2 * step for step in stride])
            real = base.as_strided((*shape, 2), (*pairs, 1), base.storage_offset() + 2 * offset)
            return torch.view_as_complex(real)
    if base.dtype is dtype:
        return base.as_strided(shape, stride, base.storage_offset() + offset)
    start = base.storage_offset() * base.element_size() // dtype.itemsize
    view = torch.empty(0, dtype=dtype, device=base.device)
    return view.set_(base.untyped_storage(), start + offset, shape, stride)


# --- compiled to Python --------------------------------------------------------------------------

GraphRunner = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


def compile_graph_runner(
    graph: Graph, takes_inputs: bool = False, *, at_first_call: bool = False
) -> GraphRunner:
    """The same as `run_graph(graph, ...)`, written out once as a Python function that frees each
    value after its last use; inputs as well, where it may take them over (their list is emptied).
    Raises PartlyRun for what fails behind a write to an input or an operator with effects.
    at_first_call: it is written out then, which few of some graphs get.
    """
    if at_first_call:
        return _written_at_first_call(graph, takes_inputs)
    source = _RunnerSource(graph, takes_inputs)
    text = source.write()
    file = f"<graph of {len(graph.nodes)} operators>"
    runner: GraphRunner = define([text], file, dict(source.names))

    def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if is_autocast_on():
            with without_autocast():
                return runner(inputs)
        return runner(inputs)

    return run


def _written_at_first_call(graph: Graph, takes_inputs: bool) -> GraphRunner:
    """It holds the graph until then."""
    given, made = [graph], list[GraphRunner]()
    del graph

    def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        for graph in given[:1]:  # another thread may have been first
            made.append(compile_graph_runner(graph, takes_inputs))
            given.clear()
        return made[0](inputs)

    return run


class _RunnerSource:
    """Writes the function `run(inputs)`; `names` are the objects that its text refers to."""

    def __init__(self, graph: Graph, takes_inputs: bool) -> None:
        self.graph = graph
        self.takes_inputs = takes_inputs
        self.names: dict[str, Any] = {
            "flat_tensors": flat_tensors,
            "call_on_clones": _call_on_clones,
            "as_made": _as_made,
            "as_piece": as_piece,
            "untracked_view_of": untracked_view_of,
            "after_effects": after_effects,
            "make_writes": make_writes,
            "check_writes": check_writes,
            "write_back": write_back,
            "give_versions": give_versions,
            "private_copy": private_copy,
            "view_of": view_of,
            "is_grad_enabled": torch.is_grad_enabled,
            "set_grad": set_grad_enabled,
        }
        for constant in graph.constants:
            self.names[_name(constant.value)] = constant.tensor
        self.lines: list[str] = []
        self._operators: dict[Any, str] = {}
        self._symbols: dict[Symbol, str] = {}
        self._checked: list[SizeCheck] = []
        self._written = {m.input for m in graph.mutations}
        self._switches = any(not node.grad_enabled for node in graph.nodes)

    def write(self) -> str:
        graph = self.graph
        last_use, versions = _last_uses(graph), _versions(graph)
        pad = "        " if self._switches else "    "
        lines = ["def run(inputs):"]
        names = [*map(_name, graph.inputs), *(f"n{i}" for i in range(len(graph.sizes.numbers)))]
        if names:
            lines.append(f"    ({', '.join(names)},) = inputs")
        for binding in bindings_of(graph):
            number, suffix = binding.place or (0, "")
            lines.append(f"    {self._bound(binding, f'{names[number]}{suffix}')}")
        if self.takes_inputs:
            lines.append("    inputs.clear()")
        lines += [f"    real_{_name(m.input)} = {_name(m.input)}" for m in graph.mutations]
        copied = [_name(value) for value in written_and_read(graph)]
        if copied:
            lines.append("    if is_grad_enabled():")
            lines += [f"        {name} = private_copy({name})" for name in copied]
        if self._switches:
            lines += ["    ambient = is_grad_enabled()", "    try:"]
        enabled, commits = True, False
        for index, node in enumerate(graph.nodes):
            if not commits and is_irrevocable(node.op):
                commits = True
                lines.append(f"{pad}commits = True")
            if node.grad_enabled is not enabled:
                enabled = node.grad_enabled
                lines.append(f"{pad}set_grad({'ambient' if enabled else 'False'})")
            lines += [f"{pad}{line}" for line in (self._call(node), *self._known(node))]
            if made := [v for v in node.outputs if v is not None and v in versions]:
                told = ", ".join(map(_name, made)), [versions[value] for value in made]
                lines.append(f"{pad}give_versions([{told[0]}], {told[1]})")
            if last_use[index]:
                lines.append(f"{pad}{' = '.join(map(_name, last_use[index]))} = None")
        if self._switches:
            lines += [f"{pad}pass", "    finally:", "        set_grad(ambient)"]
        tracked = [(f"real_{_name(m.input)}", _name(m.value)) for m in graph.mutations if m.tracked]
        if tracked and len(graph.mutations) > 1:
            pairs = "".join(f"({target}, {value}), " for target, value in tracked)
            lines.append(f"    check_writes(({pairs}))")
        if graph.mutations:
            commits = True
            lines.append("    commits = True")
        for mutation in graph.mutations:
            target, value = f"real_{_name(mutation.input)}", _name(mutation.value)
            flags = f"{mutation.tracked}, {mutation.count}"
            lines.append(f"    write_back({target}, {value}, {flags})")
        lines.append(f"    return [{', '.join(map(self._output, graph.outputs))}]")
        return "\n".join(_partly_run(lines) if commits else lines) + "\n"

    def _bound(self, binding: Binding, place: str) -> str:
        text = binding.text(place, self._symbols)
        name = self._symbols[binding.symbol] = f"n_{binding.symbol.name}"
        return f"{name} = {text}"

    def _known(self, node: Node) -> list[str]:
        """What follows from the number that a node computed, and what has to hold of it."""
        symbol = computed_symbol(node)
        if symbol is None:
            return []
        name = self._symbols[symbol] = f"n_{symbol.name}"
        (value,) = node.outputs
        assert value is not None
        lines = [f"{name} = {_name(value)}"]
        sizes = self.graph.sizes
        lines += [self._bound(b, "") for b in sizes.following(self._symbols.keys())]
        for check in sizes.decided(self._symbols.keys(), self._checked):
            self._checked.append(check)
            self.names["raise_unmet"] = raise_unmet
            text = check.text(self._symbols)
            lines.append(f"if not {text}: raise_unmet({check.message!r}, {check.raises})")
        return lines

    def _call(self, node: Node) -> str:
        if node.op is pending_writes:
            targets, values, counts = node.args
            names = [f"real_{_name(t)}" if t in self._written else _name(t) for t in targets]
            told = zip(names, map(_name, values), counts)
            return f"pending = [{', '.join(f'({t}, {v}, {n})' for t, v, n in told)}]"
        if node.op is end_pending:
            return "pending = ()"
        args = [self._argument(argument) for argument in node.args]
        kwargs = [f"{name}={self._argument(argument)}" for name, argument in node.kwargs]
        schema = node.op._schema
        written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        targets = [_name(value) if value is not None else "_" for value in node.outputs]
        left = f"{', '.join(targets)}{',' if len(targets) == 1 else ''}"
        if any(written):
            keywords = ", ".join(
                f"{name!r}: {self._argument(argument)}" for name, argument in node.kwargs
            )
            call = (
                f"call_on_clones({self._object(node.op)}, {written}, "
                f"[{', '.join(args)}], {{{keywords}}})"
            )
            return f"{left} = {call}" if targets else call
        call = f"{self._operator(node.op)}({', '.join([*args, *kwargs])})"
        kinds = [str(result.type) for result in schema.returns]
        if kinds == ["Tensor"] or computed_symbol(node) is not None:
            return f"{targets[0]} = {call}"
        if kinds == ["List[Tensor]"] or (kinds and all(kind == "Tensor" for kind in kinds)):
            return f"{left} = {call}" if targets else call
        return f"{left} = flat_tensors({call})" if targets else call

    def _operator(self, op: torch._ops.OpOverload) -> str:
        name = self._operators.get(op)
        if name is None:
            name = self._operators[op] = f"{op._schema.name.split('::')[1]}_{len(self._operators)}"
            self.names[name] = FAST_CALLS.get(op) or direct_call(op)
        return name

    def _object(self, value: object) -> str:
        name = f"object_{len(self.names)}"
        self.names[name] = value
        return name

    def _argument(self, argument: Argument) -> str:
        if type(argument) is Value:
            return _name(argument)
        if isinstance(argument, (tuple, list)):
            return f"[{', '.join(map(self._argument, argument))}]"
        if argument is None or type(argument) in (bool, int, str):
            return repr(argument)
        if type(argument) is Expr:
            return python_text(argument, self._symbols)
        if isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            # C++ would compute with 7777777 in its place.
            raise TypeError("an operator of the graph takes a size of a trace that is over")
        return self._object(argument)

    def _output(self, output: Output) -> str:
        if output.alias is None:
            name = _name(output.value)
            return f"as_made({name})" if output.is_plain and self._switches else name
        assert isinstance(output.value.type, TensorType)
        alias, dtype = output.alias, self._object(output.value.type.dtype)
        base = alias.base
        name = f"real_{_name(base)}" if base in self._written else _name(base)
        parts = map(self._argument, (tuple(alias.shape), tuple(alias.stride), alias.offset))
        detach = ".data" if output.uncounted else ".detach()" if output.detached else ""
        wrap = "as_piece" if output.is_piece and not detach else ""
        make = "untracked_view_of" if output.is_untracked and not (wrap or detach) else "view_of"
        return f"{wrap}({make}({name}, {', '.join(parts)}, {dtype}){detach})"


def _partly_run(lines: list[str]) -> list[str]:
    """A function that sets `commits`; from there on it raises PartlyRun for what fails."""
    return [
        lines[0],
        "    commits, pending = False, ()",
        "    try:",
        *[f"    {line}" for line in lines[1:]],
        "    except Exception as fault:",
        "        if commits: raise after_effects(fault, pending) from None",
        "        raise",
        "    except BaseException:",
        "        make_writes(pending)",
        "        raise",
    ]


def _name(value: Value) -> str:
    return f"v{value.index}"


def _last_uses(graph: Graph) -> list[list[Value]]:
    """For each node, the values that nothing reads after it."""
    kept = {constant.value for constant in graph.constants}
    for output in graph.outputs:
        kept.add(output.value if output.alias is None else output.alias.base)
    for mutation in graph.mutations:
        kept.update((mutation.input, mutation.value))
    result: list[list[Value]] = []
    for node in reversed(graph.nodes):
        used = [value for value in node.outputs if value is not None]
        used += operands(node)
        dying = list(dict.fromkeys(value for value in used if value not in kept))
        kept.update(dying)
        result.append(dying)
    result.reverse()
    return result
