"""`BRAZE_DEBUG=folder`: what each stage made of each graph, as files.

    graph_3_Block.forward/
        01_captured.py         the graph of operators; python 01_captured.py runs and times it
        02_rewritten.py        the same behind the graph passes
        03_loops.txt           the loop program
        04_schedule.txt        kernels, buffers, and what was not fused
        05_launch.py.txt       the program that calls them
        06_kernels.cpp         the kernels; several files where there are many
        07_benchmark.py        builds them, and times each beside the memory that it moves

Inputs are made from types: no file holds data of the program, but for constants of a graph.
"""

from __future__ import annotations

import base64
import io
import json
import re
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import torch

from braze.diagnose.generated_inputs import number_of
from braze.environment import warn_of_output
from braze.interop.fx_graph import NotExpressible, aten_to_fx
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.print_graph import print_graph
from braze.ir.kernels.kernel import KernelSources, print_sources
from braze.ir.kernels.loops import Buffer, bytes_of
from braze.ir.kernels.schedule import Kernel, Schedule
from braze.ir.types import TensorType
from braze.options import Options
from braze.runtime.launch.cpp_compiler import NoCompiler, find_for_kernels
from braze.shapes.expr import as_expr

_GIVEN = frozenset({"torch", "device", "inf", "nan", "NoneType"})

_GRAPH_SCRIPT = '''\
"""{title}: {what}.

python {name}    runs it on inputs of the graph's types, and times it.
"""

import base64
import io
import sys
import time
from math import inf, nan  # noqa: F401

import torch
from torch import device  # noqa: F401
{imports}

class Graph(torch.nn.Module):
    def __init__(self, constants):
        super().__init__()
        for name, tensor in constants.items():
            self.register_buffer(name, tensor)

{forward}


def make(shape, stride, dtype, where):
    made = torch.empty_strided(shape, stride, dtype=dtype)
    if dtype.is_floating_point or dtype.is_complex:
        kind = torch.complex64 if dtype.is_complex else torch.float32
        return made.copy_(torch.randn(shape, dtype=kind)).to(where)
    return made.copy_(torch.randint(0, 2, shape)).to(where)  # indices that are always in range


CONSTANTS = """
{constants}
"""
constants = torch.load(io.BytesIO(base64.b64decode(CONSTANTS)), weights_only=True)
graph = Graph(constants)


def inputs():
    torch.manual_seed(0)
    return [
{inputs}
    ]


if __name__ == "__main__":
    with torch.no_grad():
        for number, result in enumerate(graph(*inputs())):
            shown = tuple(result.shape) if isinstance(result, torch.Tensor) else result
            print(f"result {{number}}: {{shown}}")
        calls = int(sys.argv[1]) if len(sys.argv) > 1 else 10
        given = inputs()
        began = time.perf_counter()
        for _ in range(calls):
            graph(*given)
        print(f"{{1e6 * (time.perf_counter() - began) / calls:.1f}} us a call, by operators")
'''

_BENCHMARK = '''\
"""{title}: each kernel by itself.

python 07_benchmark.py [calls]    builds the kernels, and times each beside the memory it moves.
"""

import array
import ctypes
import os
import subprocess
import sys
import tempfile
import time

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
COMMAND = {command}
SOURCES = {sources}
LIBRARIES = {libraries}
# Of each place in the table of pointers: the dtype and the number of elements.
BUFFERS = {buffers}
SIZES = {sizes}
# Of each entry, its kernels: the name, and the bytes that it reads and writes.
ENTRIES = {entries}


def filled(dtype, count):
    kind = getattr(torch, dtype)
    if kind.is_floating_point or kind.is_complex:
        return torch.randn(count, dtype=torch.float32).to(kind)
    return torch.randint(0, 2, (count,)).to(kind)


def built(folder):
    target = os.path.join(folder, "kernels.so")
    paths = [os.path.join(HERE, name) for name in SOURCES]
    subprocess.run([*COMMAND, *paths, "-o", target, *LIBRARIES], check=True)
    return ctypes.CDLL(target)


def main():
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        library = built(folder)
    buffers = [filled(*buffer) for buffer in BUFFERS]
    table = array.array("Q", [b.data_ptr() for b in buffers] or [0])
    sizes = array.array("q", SIZES or [0])
    spent, began = {{}}, [0.0]

    def observe(entry, kernel, begins):
        now = time.perf_counter()
        if begins:
            began[0] = now
        else:
            spent.setdefault((entry, kernel), []).append(now - began[0])

    observer = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, ctypes.c_int)(observe)
    ctypes.c_void_p.in_dll(library, "bz_observe").value = ctypes.cast(
        observer, ctypes.c_void_p
    ).value
    places = [ctypes.c_void_p(each.buffer_info()[0]) for each in (table, sizes)]
    for number in range(len(ENTRIES)):
        entry = getattr(library, f"segment{{number}}")
        for _ in range(calls):
            if entry(*places, torch.get_num_threads()):
                print(f"segment{{number}}: an index is out of range, or a divisor zero")
                break
    for (entry, kernel), seconds in spent.items():
        name, moved = ENTRIES[entry][kernel]
        best = min(seconds)
        print(f"{{1e6 * best:9.1f}} us {{moved / best / 1e9:8.2f}} GB/s  {{name}}")


main()
'''


@final
class DebugFolder:
    """The folder of one graph, where the option `debug_dir` names one; else nothing is written.

    A graph that Python cannot say is printed in its file. A folder that cannot be written is warned
    of once: a compile does not fail for it.
    """

    __slots__ = ("_folder", "_root", "_title")

    def __init__(self, options: Options, title: str) -> None:
        self._title, self._root = title, options.debug_dir
        self._folder: Path | None = None
        if options.debug_dir:
            found = re.match(r"braze (.*) \(.*, graph (\d+)$", title)
            name = f"graph_{found[2]}_{found[1]}" if found else title
            self._folder = Path(options.debug_dir) / re.sub(r"[^\w.]+", "_", name).strip("_")

    def graph(self, name: str, what: str, graph: Graph) -> None:
        """A graph, as a script."""
        self._write(name, lambda: _graph_script(self._title, name, what, graph))

    def text(self, name: str, text: Callable[[], str]) -> None:
        """What has no form that runs."""
        self._write(name, text)

    def kernels(self, plan: Schedule, sources: KernelSources, options: Options) -> None:
        """The sources, and what times them."""
        if not sources.units:
            if sources.launches:
                self._write("06_kernels.py.txt", lambda: print_sources(sources))
            return
        names = ["06_kernels.cpp"]
        if len(sources.units) > 1:
            names = [f"06_kernels_{number}.cpp" for number in range(len(sources.units))]
        for name, unit in zip(names, sources.units):
            self._write(name, unit.readable)
        if sources.segments:
            script = lambda: _benchmark(self._title, names, plan, sources, options)  # noqa: E731
            self._write("07_benchmark.py", script)

    def _write(self, name: str, text: Callable[[], str]) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / name).write_text(text())
        except OSError as error:
            warn_of_output("BRAZE_DEBUG", self._root, error)
            self._folder = None


# --- private ---------------------------------------------------------------------------------


def _graph_script(title: str, name: str, what: str, graph: Graph) -> str:
    try:
        module = aten_to_fx(graph)
    except NotExpressible as problem:
        return f'"""{title}: no Python code says this graph: {problem}\n\n{print_graph(graph)}"""\n'
    code = module.graph.python_code("self")
    imports = [
        f"from {value.__module__} import {value.__name__} as {name}"
        for name, value in code.globals.items()
        if name not in _GIVEN and not isinstance(value, types.ModuleType)
    ]
    buffer = io.BytesIO()
    torch.save(dict(module.named_buffers()), buffer)
    data = textwrap.wrap(base64.b64encode(buffer.getvalue()).decode(), 100)
    inputs = [f"        {_input_text(value.type)}," for value in graph.inputs]
    inputs += [f"        {number_of(number)}," for number in graph.sizes.numbers]
    return _GRAPH_SCRIPT.format(
        title=title, name=name, what=what, imports="\n".join(imports),
        forward=textwrap.indent(code.src.strip(), "    "), constants="\n".join(data),
        inputs="\n".join(inputs),
    )  # fmt: skip


def _input_text(kind: Any) -> str:
    if not isinstance(kind, TensorType):
        return repr(kind.python_type(1))
    shape, stride = (tuple(map(number_of, sizes)) for sizes in (kind.shape, kind.stride))
    return f"make({shape}, {stride}, {kind.dtype}, {str(kind.device)!r})"


def _benchmark(
    title: str, names: list[str], plan: Schedule, sources: KernelSources, options: Options
) -> str:
    toolchain = find_for_kernels(options)
    if isinstance(toolchain, NoCompiler):
        return f'"""{title}: {toolchain.reason}"""\n'
    entries = [
        [[k.name, sum(map(bytes_of, k.memory))] for k in plan.steps[s.first : s.last + 1]
         if isinstance(k, Kernel)]
        for s in sources.segments
    ]  # fmt: skip
    return _BENCHMARK.format(
        title=title,
        command=json.dumps([toolchain.compiler, *toolchain.flags]),
        sources=json.dumps(names),
        libraries=json.dumps([*toolchain.libraries]),
        buffers=json.dumps([_buffer(buffer) for buffer in sources.table]),
        sizes=json.dumps([number_of(as_expr(size)) for size in sources.sizes]),
        entries=json.dumps(entries, indent=4),
    )


def _buffer(buffer: Buffer) -> tuple[str, int]:
    """The dtype, and the elements from the first to the last."""
    shape, stride = (tuple(map(number_of, sizes)) for sizes in (buffer.shape, buffer.stride))
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, stride)) if 0 not in shape else 1
    return str(buffer.dtype).removeprefix("torch."), extent
