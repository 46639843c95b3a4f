"""A loop program as Python that runs alone: each definition over grids of its indices.

b1[i0 < 4, i1 < 8] = exp(b0[i0, i1])

->

b1 = empty((4, 8), (8, 1), torch.float32, 'cpu')
i0, i1 = grid(4, 8)
b1[i0, i1] = torch.exp(b0[i0, i1])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from braze.diagnose.python_scalars import (
    TextNames,
    place_text,
    scalar_text,
    share,
    size_text,
    sizes_text,
    view_text,
)
from braze.interop.fx_graph import NotExpressible
from braze.ir.kernels.loops import (
    Buffer,
    BufferView,
    Definition,
    ExternCall,
    LoopProgram,
    Reduce,
    Scatter,
)
from braze.ir.kernels.print_loops import print_statement
from braze.ir.kernels.scalars import walk
from braze.ir.origin import UNKNOWN, Origin
from braze.ir.types import Size
from braze.shapes.binding import Binding, SizeCheck, Sizes, bind_symbols
from braze.shapes.expr import ZERO, Expr, Symbol, symbols

_NUMBERS = ("int", "float", "number", "bool", "SymInt")
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.memory_format, torch.layout)


def loop_script(program: LoopProgram) -> str:
    """The function `program(inputs)`: the program's outputs, in the order of the graph's. The
    constants are `constants[0]`, ... Raises NotExpressible where it has no such form."""
    lines = ScriptLines(program.sizes)
    lines.begin(program.inputs, [buffer for buffer, _ in program.constants])
    for statement in program.statements:
        if isinstance(statement, ExternCall):
            lines.call(statement)
        else:
            _define(statement, lines)
    lines.end(program.outputs, program.mutations)
    return lines.text()


@dataclass(slots=True)
class ScriptLines:
    """The lines of `program(inputs)` in the making. names: of the symbols of sizes."""

    given: Sizes
    lines: list[str] = field(default_factory=list)
    names: dict[Symbol, str] = field(default_factory=dict)
    made: set[Buffer] = field(default_factory=set)
    checked: list[SizeCheck] = field(default_factory=list)

    def begin(self, inputs: Sequence[Buffer], constants: Sequence[Buffer]) -> None:
        """Name the inputs and the constants, and the sizes that they say."""
        count = len(inputs)
        self.lines += [f"{b} = Memory(inputs[{n}])" for n, b in enumerate(inputs)]
        self.lines += [f"{b} = Memory(constants[{n}])" for n, b in enumerate(constants)]
        self.made = {*inputs, *constants}
        numbers: list[tuple[str, Size]] = []
        for buffer in inputs:
            for method, values in (("size", buffer.shape), ("stride", buffer.stride)):
                numbers += [(f"{buffer}.tensor.{method}({d})", n) for d, n in enumerate(values)]
        numbers += [(f"inputs[{count + n}]", size) for n, size in enumerate(self.given.numbers)]
        self._bind(bind_symbols(numbers, self.given.derived))

    def comment(self, text: str, origin: Origin = UNKNOWN) -> None:
        """What the lines that follow are of."""
        known = origin.file != UNKNOWN.file
        place = f"    {origin.file}:{origin.line} {origin.call}".rstrip() if known else ""
        self.lines.append(f"# {text}{place}")

    def make(self, buffers: Iterable[Buffer]) -> None:
        """Memory for those that have none."""
        for buffer in buffers:
            if buffer not in self.made:
                self.made.add(buffer)
                self.lines.append(f"{buffer} = empty({self._form(buffer)}, {str(buffer.device)!r})")

    def call(self, call: ExternCall) -> None:
        """A call of an operator."""
        self.comment(print_statement(call), call.origin)
        if call.computes is not None:
            view, *rest = [self._argument(value, None) for value in call.args]
            place = f"{view}.size({rest[0]})" if rest else f"{view}.item()"
            self._bind([Binding(call.computes, place, 1, ZERO)])
            self._bind(self.given.following(self.names.keys()))
            return
        schema = call.op._schema.arguments
        kinds = {argument.name: argument.type for argument in schema}
        args = [
            self._argument(value, schema[n].type if n < len(schema) else None)
            for n, value in enumerate(call.args)
        ]
        kwargs = [f"{n!r}: {self._argument(value, kinds.get(n))}" for n, value in call.kwargs]
        made = [None if b is None else self._result(b) for b in call.outputs]
        names = [
            "_" if b is None else f"new_{b}" if b in self.made else str(b) for b in call.outputs
        ]
        targets = "".join([f"{name}, " for name in names])
        text = f"extern({op_text(call.op)}, [{', '.join(args)}], {{{', '.join(kwargs)}}}, "
        text += f"[{', '.join(map(str, made))}])"
        self.lines.append(f"{targets}= {text}" if targets else text)
        for name in [name for name in names if name.startswith("new_")]:  # an argument, in place
            self.lines.append(f"{name[4:]}.tensor.copy_({name}.tensor)")
        self.made |= {b for b in call.outputs if b is not None}

    def end(
        self, outputs: Sequence[BufferView], mutations: Sequence[tuple[Buffer, BufferView]]
    ) -> None:
        """Name what is returned, and write what inputs are left with."""
        results = ", ".join([view_text(view, self.names) for view in outputs])
        self.lines.append(f"results = [{results}]")
        for number, (_, view) in enumerate(mutations):
            self.lines.append(f"m{number} = {view_text(view, self.names)}.clone()")
        for number, (target, _) in enumerate(mutations):
            self.lines.append(f"{target}.tensor.copy_(m{number})")
        self.lines.append("return results")

    def text(self) -> str:
        """The function."""
        return "\n".join(["def program(inputs):", *(f"    {line}" for line in self.lines)]) + "\n"

    def grid(self, loops: Sequence[tuple[Symbol, Size]]) -> None:
        """The indices of loops, each along a dimension of its own."""
        if loops:
            names = "".join(f"{symbol.name}, " for symbol, _ in loops).rstrip()
            sizes = ", ".join([size_text(size, self.names) for _, size in loops])
            names = names if len(loops) == 1 else names.rstrip(",")
            self.lines.append(f"{names} = grid({sizes})")

    def scatter(
        self, target: Buffer, body: Scatter, store: Any, names: TextNames, sizes: str
    ) -> None:
        """Store at places that are looked up. sizes: of the loops."""
        places = [s if p is None else p for p, s in zip(body.positions, store, strict=True)]
        at, value = place_text(places, names), scalar_text(body.value, names)
        self.lines.append(f"{target}.scatter(({at},), {value}, {sizes}, {body.kind == 'add'})")

    def _result(self, buffer: Buffer) -> str:
        """The form of a result; "..." for one row-major whose sizes are read of it later."""
        known = set().union(*map(symbols, (*buffer.shape, *buffer.stride))) <= self.names.keys()
        return f"({self._form(buffer)})" if known else "..."

    def _form(self, buffer: Buffer) -> str:
        shape, stride = (sizes_text(each, self.names) for each in (buffer.shape, buffer.stride))
        return f"{shape}, {stride}, {buffer.dtype}"

    def _argument(self, value: object, kind: object) -> str:
        if isinstance(value, BufferView):
            text = view_text(value, self.names)
            return f"{text}.item()" if value.is_number or str(kind) in _NUMBERS else text
        if isinstance(value, (list, tuple)):
            return f"[{', '.join([self._argument(each, None) for each in value])}]"
        if isinstance(value, (Expr, Symbol)):
            return size_text(value, self.names)
        if value is None or isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, torch.device):
            return f"torch.{value!r}"
        raise NotExpressible(f"an argument of type {type(value).__name__}")

    def _bind(self, bindings: Iterable[Binding]) -> None:
        for binding in bindings:
            text = binding.text(binding.place, self.names)
            name = self.names[binding.symbol] = f"n_{binding.symbol.name}"
            self.lines.append(f"{name} = {text}")
        for check in self.given.decided(self.names.keys(), self.checked):
            self.checked.append(check)
            text = check.text(self.names)
            self.lines.append(f"if not {text}: raise RuntimeError({check.message!r})")


def op_text(op: torch._ops.OpOverload) -> str:
    """An operator as an expression. Those in the namespace `braze` need Braze."""
    namespace, name = op._schema.name.split("::")
    return f"torch.ops.{namespace}.{name}.{op._overloadname}"


# --- private ---------------------------------------------------------------------------------


def _define(definition: Definition, lines: ScriptLines) -> None:
    """A definition over all points of its axes; those of folds are dimensions behind them."""
    body = definition.body
    lines.comment(print_statement(definition), definition.origin)
    lines.make([definition.target])
    folded = dict([axis for n in walk(body) if isinstance(n, Reduce) for axis in n.axes])
    loops = [*definition.axes, *folded.items()]
    lines.grid(loops)
    names = TextNames(lines.names, {}, {symbol: dim for dim, (symbol, _) in enumerate(loops)})
    lines.lines += share([body], names)
    if isinstance(body, Scatter):
        points = sizes_text([size for _, size in definition.axes], lines.names)
        lines.scatter(definition.target, body, definition.store, names, points)
        return
    at = place_text(definition.store, names)
    lines.lines.append(f"{definition.target}[{at}] = {scalar_text(body, names)}")
