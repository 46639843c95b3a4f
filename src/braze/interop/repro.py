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
from typing import Any

import torch

from braze.interop.fx_graph import aten_to_fx
from braze.ir.graphs.graph import Graph

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

DATA = """
{data}
"""
inputs, constants = torch.load(io.BytesIO(base64.b64decode(DATA)), weights_only=True)
graph, worst = Graph(constants), 0.0
torch.manual_seed(0)
theirs = copy.deepcopy(inputs)
expected = [*graph(*theirs), *theirs]
torch.manual_seed(0)
mine = copy.deepcopy(inputs)
found = [*braze.compile(graph, fullgraph=True)(*mine), *mine]
for number, (a, b) in enumerate(zip(found, expected)):
    if isinstance(b, torch.Tensor) and b.numel():
        wide = torch.complex128 if b.is_complex() else torch.float64
        a, b = a.detach().to(wide), b.detach().to(wide)
        error = float((a - b).abs().max()) / (float(b.abs().max()) or 1.0)
        print(f"{{number}}: {{error:.2e}} of the largest value")
        worst = max(worst, error)
sys.exit(worst > {tolerance})
'''


def write_repro(graph: Graph, inputs: Sequence[Any], reason: str, tolerance: float = 1e-4) -> Path:
    """Write the script, to the folder `braze_repros` here, or with temporary files where that
    cannot be written. Raises NotExpressible for a graph that no Python code says."""
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
        tolerance=tolerance,
    )
    for folder in (Path(FOLDER), Path(tempfile.gettempdir()) / FOLDER):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        except OSError:
            continue
        return (folder / name).absolute()
    raise OSError(f"neither {FOLDER} nor the folder of temporary files can be written")
