"""Graph modules as the text that errors and logs show: Python code with types and user lines.

class GraphModule(torch.nn.Module):
    def forward(self, l_x_: "f32[10][1]cpu"):
        # File: model.py:4 in f, code: y = torch.cos(x)
        cos: "f32[10][1]cpu" = torch.cos(l_x_)
        return (cos,)
"""

from __future__ import annotations

import linecache
import re

from torch import fx

from braze.ir.origin import Origin
from braze.ir.types import TensorType

# Where `braze.interop.fx_graph` notes the type of a node's value, and the user's place.
TYPE, ORIGIN = "braze_type", "origin"
_STATEMENT = re.compile(r"    (\w+)( = .*)")
_PARAMETER = re.compile(r"\w+")


def print_module(module: fx.GraphModule) -> str:
    """A module of `to_fx` or `aten_to_fx` as Python code: one statement a node, with dtype, shape,
    strides and device of its value, below the user's line that made it."""
    nodes = {node.name: node for node in module.graph.nodes}
    text = module.graph.python_code("self").src
    _, _, body = text.partition("def forward(")
    head, _, statements = body.partition("\n")
    parameters, _, _ = head.rpartition("):")
    names = [name.strip() for name in parameters.split(",")]
    shown = ", ".join(_typed(_PARAMETER.match(name), name, nodes) for name in names)
    lines = ["class GraphModule(torch.nn.Module):", f"    def forward({shown}):"]
    said = ""
    for statement in filter(str.strip, statements.splitlines()):
        found = _STATEMENT.fullmatch(statement)
        node = nodes.get(found[1]) if found else None
        place = "" if node is None else _place(node)
        if place and place != said:
            lines.append(f"        {place}")
            said = place
        # Behind `;` fx drops names that are read no more, which says nothing to a reader.
        kept = re.sub(r";(  \w+( = \w+)* = None)+$", "", statement)
        if found and node is not None and (kind := _type(node)):
            kept = f'    {found[1]}: "{kind}"' + kept.removeprefix(f"    {found[1]}")
        lines.append(f"    {kept}".rstrip())
    return "\n".join(lines) + "\n"


def print_sizes(module: fx.GraphModule) -> str:
    """The size of each tensor of such a module, one a line."""
    sized = [(n.name, n.meta[TYPE].shape) for n in module.graph.nodes if _type(n)]
    return "\n".join(f"{name}: ({', '.join(map(str, shape))})" for name, shape in sized)


def _typed(found: re.Match[str] | None, text: str, nodes: dict[str, fx.Node]) -> str:
    node = nodes.get(found[0]) if found else None
    kind = "" if node is None else _type(node)
    return f'{text}: "{kind}"' if kind else text


def _type(node: fx.Node) -> str:
    noted = node.meta.get(TYPE)
    return str(noted) if isinstance(noted, TensorType) else ""


def _place(node: fx.Node) -> str:
    origin = node.meta.get(ORIGIN)
    if not isinstance(origin, Origin) or not origin.line:
        return ""
    code = linecache.getline(origin.file, origin.line).strip()
    return f"# File: {origin.file}:{origin.line} in {origin.function}, code: {code}"
