"""The text of a graph, and back. One line an input, constant, node, output and write-back:

    graph {
      input %0: f32[2, 3][3, 1]cpu grad
      constant %1: f32[3][1]cpu = [1.0, 2.0, 3.0]
      %2: f32[2, 3][3, 1]cpu = aten.add.Tensor(%0, %1, alpha=2)  # model.py:7 in f -> torch.add
      (%3: f32[2][1]cpu, %4: i64[2][1]cpu) = aten.max.dim(%2, 1) no_grad
      output %3
      output %2 view of %0 [3, 2][1, 3] + 0 detached
      write %0 <- %2
    }

`parse_graph(print_graph(graph))` prints the same text. Constants of more than 16 elements print as
a digest of their contents, and generators as `generator`; a text with either can be parsed only
with the tensors given.
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from braze.ir.graphs.graph import Alias, Argument, Constant, Graph, Mutation, Node, Output, Value
from braze.ir.graphs.region import RegionKind, RegionOp, graphs_of
from braze.ir.origin import UNKNOWN, Origin
from braze.ir.types import (
    DTYPE_NAMES,
    DTYPES_BY_NAME,
    ScalarType,
    Size,
    TensorType,
    ValueType,
    known_sizes,
)
from braze.shapes.binding import SizeCheck, Sizes
from braze.shapes.expr import (
    Expr,
    IntLike,
    Symbol,
    as_expr,
    floor_div,
    maximum,
    minimum,
    modulo,
    simplified,
    symbols,
)

_INLINE_ELEMENTS = 16
_FORMATS = {
    str(f).removeprefix("torch."): f
    for f in (
        torch.contiguous_format,
        torch.preserve_format,
        torch.channels_last,
        torch.channels_last_3d,
        torch.strided,
        torch.sparse_coo,
    )
}
_SCALAR_TYPES = {t.__name__: t for t in (int, float, bool, complex)}
_FLOAT_NAMES = {"inf": math.inf, "nan": math.nan}


class GraphSyntaxError(ValueError):
    """A line that is no part of a graph's text."""


# --- printing ------------------------------------------------------------------------------------


def print_graph(
    graph: Graph,
    *,
    origins: bool = True,
    values: bool = True,
    known: Callable[[Node], str] | None = None,
) -> str:
    """The text of a graph, with or without the comments that say where nodes come from, and the
    values of its constants. known: gives the lines of nodes, for one who has printed most of them
    before."""
    lines = ["graph {"]
    lines += [f"  {_print_symbol(s)}" for s in _symbols_of(graph)]
    lines += [f"  input {_print_value(value)}" for value in graph.inputs]
    lines += [f"  number {size}" for size in graph.sizes.numbers]
    lines += [f"  derived {symbol} = {expr}" for symbol, expr in graph.sizes.derived]
    lines += [
        f"  check {c.expr} {c.kind} 0 {c.message!r}{' raises' * c.raises}"
        for c in graph.sizes.checks
    ]
    lines += [
        f"  constant {_print_value(c.value)}{f' = {print_data(c.tensor)}' if values else ''}"
        for c in graph.constants
    ]
    for node in graph.nodes:
        lines.append(f"  {print_node(node, origins=origins) if known is None else known(node)}")
        for held in graphs_of(node):
            inner = print_graph(held, origins=origins, values=values)
            lines += [f"    {line}" for line in inner.splitlines()]
    lines += [f"  output {_print_output(output)}" for output in graph.outputs]
    lines += [
        f"  write {m.input} <- {m.value}{'' if m.tracked else ' no_grad'}"
        f"{'' if m.count == 1 else f' times {m.count}'}"
        for m in graph.mutations
    ]
    lines.append("}")
    return "\n".join(lines) + "\n"


def places_of(graph: Graph) -> list[str]:
    """`file:line` of the program's lines that a graph computes, each once."""
    found = dict.fromkeys((n.origin.file, n.origin.line) for n in graph.nodes if n.origin.line)
    return [f"{file}:{line}" for file, line in found]


def print_node(node: Node, *, origins: bool = True) -> str:
    """One node as one line."""
    outputs = [_print_value(value) if value is not None else "_" for value in node.outputs]
    results = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
    arguments = [print_argument(argument) for argument in node.args]
    arguments += [f"{name}={print_argument(argument)}" for name, argument in node.kwargs]
    text = f"{results} = {node.op}({', '.join(arguments)})"
    if not node.grad_enabled:
        text += " no_grad"
    if origins and node.origin != UNKNOWN:
        text += f"  # {_print_origin(node.origin)}"
    return text


def print_argument(argument: Argument) -> str:
    """One argument of a node."""
    if isinstance(argument, Value):
        return str(argument)
    if isinstance(argument, (tuple, list)):
        items = ", ".join(print_argument(item) for item in argument)
        return f"[{items}]"
    if isinstance(argument, torch.dtype):
        return DTYPE_NAMES.get(argument, str(argument))
    if isinstance(argument, torch.device):
        return f"device('{argument}')"
    if isinstance(argument, (torch.memory_format, torch.layout)):
        return str(argument).removeprefix("torch.")
    if isinstance(argument, torch.Generator):
        return "generator"
    if isinstance(argument, (Expr, Symbol)):
        return f"size({argument})"
    if isinstance(argument, complex):
        return f"complex({argument.real!r}, {argument.imag!r})"
    return repr(argument)


def print_data(tensor: torch.Tensor) -> str:
    """A small tensor's elements, a large one's digest."""
    plain = tensor.detach().cpu()
    if plain.numel() <= _INLINE_ELEMENTS:
        return print_argument(plain.reshape(-1).tolist())
    raw = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"digest {hashlib.sha256(raw).hexdigest()}"


def _print_value(value: Value) -> str:
    grad = isinstance(value.type, TensorType) and value.type.requires_grad
    return f"{value}: {value.type}{' grad' if grad else ''}"


def _print_output(output: Output) -> str:
    alias = output.alias
    if alias is None:
        return f"{output.value} version {output.version}" if output.version else str(output.value)
    shape = ", ".join(map(str, alias.shape))
    stride = ", ".join(map(str, alias.stride))
    text = f"{output.value} view of {alias.base} [{shape}][{stride}] + {alias.offset}"
    text += " detached" if output.detached else ""
    text += " piece" if output.is_piece else ""
    return f"{text} uncounted" if output.uncounted else text


def _print_origin(origin: Origin) -> str:
    text = f"{origin.file}:{origin.line}"
    if origin.function:
        text += f" in {origin.function}"
    return f"{text} -> {origin.call}" if origin.call else text


def _print_symbol(symbol: Symbol) -> str:
    return f"symbol {symbol.name} in [{symbol.lower}, {symbol.upper}]"


def _symbols_of(graph: Graph) -> list[Symbol]:
    found: set[Symbol] = set()
    for value in values_of(graph):
        if isinstance(value.type, TensorType):
            for size in (*value.type.shape, *value.type.stride):
                if not isinstance(size, int):
                    found |= symbols(size)
        elif value.type.symbol is not None:
            found.add(value.type.symbol)
    found |= graph.sizes.symbols()
    return sorted(found, key=str)


def values_of(graph: Graph) -> Iterable[Value]:
    """Every value that the graph defines, in order."""
    yield from graph.inputs
    for constant in graph.constants:
        yield constant.value
    for node in graph.nodes:
        yield from (value for value in node.outputs if value is not None)


# --- parsing -------------------------------------------------------------------------------------

_TYPE = r"(?:\w+\[[^\]]*\]\[[^\]]*\][a-z]+(?::\d+)?(?: grad)?|int\(\w+\)|int|float|bool|complex)"
_VALUE = re.compile(rf"%(?P<index>\d+): (?P<type>{_TYPE})|_")
_TENSOR = re.compile(
    r"(?P<dtype>[\w.]+)\[(?P<shape>[^\]]*)\]\[(?P<stride>[^\]]*)\]"
    r"(?P<device>[a-z]+(?::\d+)?)(?P<grad> grad)?"
)
_NODE = re.compile(
    r"(?P<results>\(.*?\)|%\d+: .*?|_) = (?P<op>\w+\.\w+\.\w+|region<[\w ]+>)\((?P<arguments>.*?)\)"
    r"(?P<no_grad> no_grad)?(?:  # (?P<origin>.*))?"
)
_ORIGIN = re.compile(r"(?P<file>.*?):(?P<line>\d+)(?: in (?P<function>\S+))?(?: -> (?P<call>.*))?")
_OUTPUT = re.compile(
    r"%(?P<value>\d+)(?: view of %(?P<base>\d+) \[(?P<shape>[^\]]*)\]\[(?P<stride>[^\]]*)\]"
    r" \+ (?P<offset>.*?)(?P<detached> detached)?(?P<piece> piece)?"
    r"(?P<uncounted> uncounted)?| version (?P<version>\d+))?"
)
_WRITE = re.compile(
    r"%(?P<input>\d+) <- %(?P<value>\d+)(?P<no_grad> no_grad)?(?: times (?P<count>\d+))?"
)
_SYMBOL = re.compile(r"(?P<name>\w+) in \[(?P<lower>-?\d+|None), (?P<upper>-?\d+|None)\]")
_CHECK = re.compile(
    r"(?P<expr>.*?) (?P<kind>==|!=|>=) 0 (?P<message>['\"].*['\"])(?P<raises> raises)?"
)
_CONSTANT = re.compile(rf"%(?P<index>\d+): (?P<type>{_TYPE}) = (?P<data>.*)")


def parse_graph(text: str, constants: Mapping[int, torch.Tensor] | None = None) -> Graph:
    """The graph of a text. constants: tensors by value index, for those printed as a digest.

    Raises GraphSyntaxError with the line.
    """
    return _Parser(constants or {}).parse(text)


class _Parser:
    """Reads line by line; `values` holds what has been defined so far."""

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        self.tensors = tensors
        self.values: dict[int, Value] = {}
        self.symbols: dict[str, Symbol] = {}
        self.inputs: list[Value] = []
        self.numbers: list[Expr] = []
        self.derived: list[tuple[Symbol, Expr]] = []
        self.checks: list[SizeCheck] = []
        self.constants: list[Constant] = []
        self.nodes: list[Node] = []
        self.outputs: list[Output] = []
        self.mutations: list[Mutation] = []

    def parse(self, text: str) -> Graph:
        lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
        if not lines or lines[0] != "graph {" or lines[-1] != "}":
            raise GraphSyntaxError("a graph's text starts with 'graph {' and ends with '}'")
        for line in self._without_regions(lines[1:-1]):
            keyword, _, rest = line.partition(" ")
            try:
                _LINE_PARSERS.get(keyword, _Parser.parse_node)(
                    self, rest if keyword in _LINE_PARSERS else line
                )
            except GraphSyntaxError:
                raise
            except (KeyError, ValueError, AttributeError, SyntaxError) as error:
                raise GraphSyntaxError(f"{line!r}: {error!r}") from error
        return Graph(
            tuple(self.inputs),
            tuple(self.constants),
            tuple(self.nodes),
            tuple(self.outputs),
            tuple(self.mutations),
            Sizes(tuple(self.numbers), tuple(self.derived), tuple(self.checks)),
        )

    def _without_regions(self, lines: list[str]) -> Iterable[str]:
        """The lines of the graph itself; the graphs of a region belong to the node before them."""
        inner: list[str] = []
        for line in lines:
            if inner or line == "graph {":
                inner.append(line)
                if inner.count("graph {") == inner.count("}"):
                    self._add_region(parse_graph("\n".join(inner), self.tensors))
                    inner = []
            else:
                yield line

    def _add_region(self, graph: Graph) -> None:
        node = self.nodes.pop()
        op = node.op
        if not isinstance(op, RegionOp):
            raise GraphSyntaxError("a graph behind a node that is no region")
        self.nodes.append(replace(node, op=replace(op, graphs=(*op.graphs, graph))))

    def parse_symbol(self, text: str) -> None:
        found = _matched(_SYMBOL, text)
        lower, upper = (None if found[k] == "None" else int(found[k]) for k in ("lower", "upper"))
        self.symbols[found["name"]] = Symbol(found["name"], lower, upper)

    def parse_input(self, text: str) -> None:
        (value,) = self._definitions(text)
        assert value is not None
        self.inputs.append(value)

    def parse_number(self, text: str) -> None:
        self.numbers.append(as_expr(self._size(text)))

    def parse_derived(self, text: str) -> None:
        name, _, expr = text.partition(" = ")
        self.derived.append((self.symbols[name], as_expr(self._size(expr))))

    def parse_check(self, text: str) -> None:
        found = _matched(_CHECK, text)
        expr = as_expr(self._size(found["expr"]))
        message, raises = ast.literal_eval(found["message"]), found["raises"] is not None
        self.checks.append(SizeCheck(expr, found["kind"], message, raises))

    def parse_constant(self, text: str) -> None:
        found = _matched(_CONSTANT, text)
        value = self._define(int(found["index"]), found["type"])
        self.constants.append(Constant(value, self._data(value, found["data"])))

    def parse_node(self, text: str) -> None:
        found = _matched(_NODE, text)
        op: Any
        if found["op"].startswith("region<"):
            count = len(_VALUE.findall(found["results"]))
            kind, *counts = found["op"][7:-1].split()
            op = RegionOp(RegionKind(kind), (), (False,) * count, _undifferentiable)
            if counts:
                op = replace(op, carried=int(counts[0]), rows=int(counts[1]))
        else:
            namespace, name, overload = found["op"].split(".")
            op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        call = ast.parse(f"call({_python(found['arguments'])})", mode="eval").body
        assert isinstance(call, ast.Call)
        args = tuple(self._argument(node) for node in call.args)
        kwargs = tuple((str(k.arg), self._argument(k.value)) for k in call.keywords)
        outputs = tuple(self._definitions(found["results"]))
        origin = _parse_origin(found["origin"])
        self.nodes.append(Node(op, args, kwargs, outputs, origin, not found["no_grad"]))

    def parse_output(self, text: str) -> None:
        found = _matched(_OUTPUT, text)
        value = self.values[int(found["value"])]
        alias = None
        if found["base"]:
            alias = Alias(
                self.values[int(found["base"])],
                self._sizes(found["shape"]),
                self._sizes(found["stride"]),
                self._size(found["offset"]),
            )
        output = Output(
            value,
            alias,
            detached=bool(found["detached"]),
            is_piece=bool(found["piece"]),
            uncounted=bool(found["uncounted"]),
            version=int(found["version"] or 0),
        )
        self.outputs.append(output)

    def parse_write(self, text: str) -> None:
        found = _matched(_WRITE, text)
        target, value = self.values[int(found["input"])], self.values[int(found["value"])]
        count = int(found["count"] or 1)
        self.mutations.append(Mutation(target, value, not found["no_grad"], count))

    # --- parts of lines

    def _definitions(self, text: str) -> list[Value | None]:
        return [
            self._define(int(found["index"]), found["type"]) if found["index"] else None
            for found in _VALUE.finditer(text)
        ]

    def _define(self, index: int, type: str) -> Value:
        if index in self.values:
            raise GraphSyntaxError(f"%{index} is defined twice")
        value = self.values[index] = Value(index, self._type(type))
        return value

    def _type(self, text: str) -> ValueType:
        if text in _SCALAR_TYPES:
            return ScalarType(_SCALAR_TYPES[text])
        if text.startswith("int("):
            return ScalarType(int, self.symbols[text[4:-1]])
        found = _matched(_TENSOR, text)
        return TensorType(
            DTYPES_BY_NAME[found["dtype"]],
            self._sizes(found["shape"]),
            self._sizes(found["stride"]),
            torch.device(found["device"]),
            bool(found["grad"]),
        )

    def _sizes(self, text: str) -> tuple[Size, ...]:
        if not text:
            return ()
        parsed = ast.parse(f"[{text}]", mode="eval").body
        assert isinstance(parsed, ast.List)
        return tuple(simplified(self._expression(item)) for item in parsed.elts)

    def _size(self, text: str) -> Size:
        return simplified(self._expression(ast.parse(text, mode="eval").body))

    def _expression(self, node: ast.expr) -> IntLike:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return as_expr(self.symbols[node.id])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -as_expr(self._expression(node.operand))
        if isinstance(node, ast.BinOp):
            left, right = self._expression(node.left), self._expression(node.right)
            combined: IntLike = _EXPRESSIONS[type(node.op)](as_expr(left), as_expr(right))
            return combined
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            extremum = {"max": maximum, "min": minimum}[node.func.id]
            bound: IntLike = extremum(*map(self._expression, node.args))
            return bound
        raise GraphSyntaxError(f"no size: {ast.unparse(node)}")

    def _argument(self, node: ast.expr) -> Argument:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List):
            return tuple(self._argument(item) for item in node.elts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._argument(node.operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "size":
                return simplified(self._expression(node.args[0]))
            make = {"device": torch.device, "complex": complex}[node.func.id]
            return make(*map(self._argument, node.args))
        if isinstance(node, ast.Name):
            return self._name(node.id)
        raise GraphSyntaxError(f"no argument: {ast.unparse(node)}")

    def _name(self, name: str) -> Argument:
        if name.startswith("value_"):
            return self.values[int(name.removeprefix("value_"))]
        for table in (DTYPES_BY_NAME, _FORMATS, _FLOAT_NAMES):
            if name in table:
                return table[name]
        raise GraphSyntaxError(f"no argument: {name}")

    def _data(self, value: Value, text: str) -> torch.Tensor:
        if value.index in self.tensors:
            return self.tensors[value.index]
        if text.startswith("digest "):
            raise GraphSyntaxError(f"the tensor of constant {value} is needed to parse it")
        assert isinstance(value.type, TensorType)
        shape, stride = known_sizes(value.type.shape), known_sizes(value.type.stride)
        if shape is None or stride is None:
            raise GraphSyntaxError(f"constant {value} has sizes that are symbols")
        items = self._argument(ast.parse(text, mode="eval").body)
        data = torch.tensor(items, dtype=value.type.dtype, device=value.type.device)
        strided = torch.empty_strided(
            shape,
            stride,
            dtype=value.type.dtype,
            device=value.type.device,
        )
        return strided.copy_(data.reshape(shape))


def _undifferentiable(op: RegionOp, wanted: object, given: object) -> RegionOp:
    """No program comes here: a region read from text says that no gradients flow through it."""
    raise NotImplementedError(
        f"{op} was read from a graph's text, which holds no gradient: trace the program instead"
    )


_LINE_PARSERS = {
    "symbol": _Parser.parse_symbol,
    "input": _Parser.parse_input,
    "number": _Parser.parse_number,
    "derived": _Parser.parse_derived,
    "check": _Parser.parse_check,
    "constant": _Parser.parse_constant,
    "output": _Parser.parse_output,
    "write": _Parser.parse_write,
}
_EXPRESSIONS: dict[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: floor_div,
    ast.Mod: modulo,
}


def _python(arguments: str) -> str:
    """Argument text as a Python expression: `%3` becomes a name, outside of strings."""
    pieces = re.split(r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", arguments)
    return "".join(
        piece if index % 2 else re.sub(r"%(\d+)", r"value_\1", piece)
        for index, piece in enumerate(pieces)
    )


def _matched(pattern: re.Pattern[str], text: str) -> dict[str, str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise GraphSyntaxError(f"no part of a graph: {text!r}")
    return found.groupdict()


def _parse_origin(text: str | None) -> Origin:
    if not text:
        return UNKNOWN
    found = _matched(_ORIGIN, text)
    return Origin(found["file"], int(found["line"]), found["function"] or "", found["call"] or "")
