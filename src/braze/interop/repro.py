"""A graph and its inputs as a script that needs nothing else: it shows whether results differ."""

from __future__ import annotations

import base64
import hashlib
import io
import tempfile
import textwrap
import types
from collections.abc import Sequence
from pathlib import Path

import torch

from braze.interop.fx_graph import aten_to_fx
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.graph_sizes import symbols_of
from braze.ir.tolerances import ROUNDINGS, TOLERANCES

FOLDER = "braze_repros"
# Names in fx's code that the script has anyway, or does not use.
_GIVEN = frozenset({"torch", "device", "inf", "nan", "NoneType"})

_SCRIPT = '''\
"""{reason}

python {name}    prints how far each result is from eager's; ends with 1 where one differs.
"""

import base64
import copy
import io
import sys

import torch
{imports}
import braze


class Graph(torch.nn.Module):
    def __init__(self, constants):
        super().__init__()
        for name, tensor in constants.items():
            self.register_buffer(name, tensor)

{forward}

# Of the largest value, by dtype: how far a result may be from eager's.
TOLERANCES = {{{tolerances}}}


def difference(mine, theirs):
    """The largest difference over the largest value."""
    if not isinstance(theirs, torch.Tensor):
        return 0.0 if mine == theirs or mine != mine and theirs != theirs else inf
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return inf
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    a, b = mine.detach().to(wide), theirs.detach().to(wide)
    apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0, a - b).abs().nan_to_num(inf)
    return float(apart.max()) / (largest_of(theirs) or 1.0) if apart.numel() else 0.0


def limit(mine, theirs):
    """What of it is rounding: of the result, and of sums that cancel."""
    if not isinstance(mine, torch.Tensor) or theirs.dtype not in TOLERANCES:
        return 0.0
    dtype = precision(mine, theirs)
    noise = {roundings} * torch.finfo(dtype).eps * max(map(largest_of, inputs), default=0.0)
    return max(TOLERANCES[dtype], noise / (largest_of(theirs) or 1.0))


def precision(mine, theirs):
    """The dtype in which values were computed: float64 that float32 was converted to is float32."""
    dtype = theirs.dtype
    narrow = {{torch.float64: torch.float32, torch.complex128: torch.complex64}}.get(dtype, dtype)
    return narrow if all(x.to(narrow).to(dtype).equal(x) for x in (mine, theirs)) else dtype


def largest_of(x):
    """The largest finite value of a tensor of floating point numbers; of anything else 0."""
    if not isinstance(x, torch.Tensor) or x.dtype not in TOLERANCES or not x.numel():
        return 0.0
    return float(x.detach().abs().double().nan_to_num(0, 0, 0).max())


DATA = """
{data}
"""
inputs, constants = torch.load(io.BytesIO(base64.b64decode(DATA)), weights_only=True)
graph, is_wrong = Graph(constants), False
torch.manual_seed(0)
theirs = copy.deepcopy(inputs)
expected = [*graph(*theirs), *theirs]
torch.manual_seed(0)
mine = copy.deepcopy(inputs)
found = [*braze.compile(graph, {arguments})(*mine), *mine]
for number, (a, b) in enumerate(zip(found, expected)):
    error = difference(a, b)
    print(f"{{number}}: {{error:.2e}} of the largest value")
    is_wrong |= error > limit(a, b)
sys.exit(is_wrong)
'''


def write_repro(graph: Graph, inputs: Sequence[object], reason: str) -> Path:
    """Write the script for a graph and its inputs, with the numbers of `Graph.sizes` at their end,
    to the folder `braze_repros` here, or with temporary files where that cannot be written. Raises
    NotExpressible for a graph that no Python code says."""
    module = aten_to_fx(graph)
    code = module.graph.python_code("self")
    imports = [
        f"from {value.__module__} import {value.__name__} as {name}"
        for name, value in code.globals.items()
        if name not in _GIVEN and not isinstance(value, types.ModuleType)
    ]
    buffer = io.BytesIO()
    torch.save((list(inputs), dict(module.named_buffers())), buffer)
    data = "\n".join(textwrap.wrap(base64.b64encode(buffer.getvalue()).decode(), 100))
    digest = hashlib.sha256(code.src.encode() + buffer.getvalue()).hexdigest()[:12]
    name = f"differs_{digest}.py"
    given = ["from math import inf, nan  # noqa: F401", "from torch import device  # noqa: F401"]
    text = _SCRIPT.format(
        reason=reason,
        name=name,
        imports="\n".join([*given, *imports]),
        forward=textwrap.indent(code.src.strip(), "    "),
        data=data,
        arguments="fullgraph=True, dynamic=True" if symbols_of(graph) else "fullgraph=True",
        tolerances=", ".join(f"{dtype}: {tolerance}" for dtype, tolerance in TOLERANCES.items()),
        roundings=ROUNDINGS,
    )
    return write_script(name, text)


def write_script(name: str, text: str) -> Path:
    """Write a script to the folder `braze_repros` here, or with temporary files where that cannot
    be written. Raises OSError where neither can."""
    for folder in (Path(FOLDER), Path(tempfile.gettempdir()) / FOLDER):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        except OSError:
            continue
        return (folder / name).absolute()
    raise OSError(f"neither {FOLDER} nor the folder of temporary files can be written")
