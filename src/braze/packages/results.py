"""What a packaged call returns, as data: nodes that name others by their numbers.

{"y": y, "n": 2 * x.shape[0]}   ->   [["graph", 0], ["value", "y"], ["value", "n"],
                                      ["size", "2 * x[0].size(0)"], ["dict", [[1, 0], [2, 3]]]]

The last node is the result. A node that two others name is one Python object.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.ir.generated_code import define
from braze.packages.nodes import Builder
from braze.packages.values import decode

SEQUENCES: dict[type, str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    torch.Size: "torch_size",
}
DICTS: dict[type, str] = {dict: "dict", OrderedDict: "ordered_dict"}

Build = Callable[[Sequence[Any], Sequence[torch.Tensor], Sequence[torch.Tensor]], Any]


def compile_result(nodes: Sequence[Any]) -> Build:
    """`(leaves, state, results of the graph) -> what the call returns`. Raises KeyError, TypeError
    or ValueError for what is no result."""
    names: dict[str, Any] = {"OrderedDict": OrderedDict, "Size": torch.Size}
    lines = ["def build(x, state, made):"]
    for number, (kind, content) in enumerate(nodes):
        lines.append(f"    r{number} = {_text(kind, content, number, names)}")
    lines.append(f"    return r{len(nodes) - 1}")
    build: Build = define(["\n".join(lines)], "<result of a package>", names)
    return build


# --- private ---------------------------------------------------------------------------------

_SPELLED = {
    "list": "[{}]",
    "tuple": "({})",
    "set": "set([{}])",
    "frozenset": "frozenset([{}])",
    "torch_size": "Size([{}])",
    "dict": "{{{}}}",
    "ordered_dict": "OrderedDict([{}])",
}


def _text(kind: str, content: Any, number: int, names: dict[str, object]) -> str:
    if kind in ("graph", "leaf", "tensor"):
        return f"{ {'graph': 'made', 'leaf': 'x', 'tensor': 'state'}[kind] }[{int(content)}]"
    if kind == "value":
        names[f"value{number}"] = decode(content)
        return f"value{number}"
    if kind == "size":
        return str(content)
    if kind in DICTS.values():
        pair = "r{}: r{}, " if kind == "dict" else "(r{}, r{}), "
        return _SPELLED[kind].format("".join(pair.format(int(k), int(v)) for k, v in content))
    if kind == "node":
        data, context, items = content
        names[f"make{number}"] = Builder(data, context)
        return f"make{number}([{''.join(f'r{int(item)}, ' for item in items)}])"
    if kind == "return_type":
        name, items = content
        names[name] = getattr(torch.return_types, name)
        return f"{name}([{''.join(f'r{int(item)}, ' for item in items)}])"
    return _SPELLED[kind].format("".join(f"r{int(item)}, " for item in content))
