"""`BRAZE_DEBUG=folder`: what each stage made of each graph, as files.

    graph_3_Block.forward/
        01_captured.py         the graph of operators
        02_rewritten.py        the same behind the graph passes
        03_loops.py            the loop program, a definition at a time over grids of its indices
        04_schedule.py         the kernels, a phase at a time; buffers, and what was not fused
        05_launch.py           the program that calls the kernels, which it builds
        06_kernels.cpp         the kernels; several files where there are many
        07_benchmark.py        builds them, and times each beside the memory that it moves
        inputs.pt              with option `debug_inputs`: a call's inputs and results

Each script runs alone, shows its results and times itself. Inputs are those of inputs.pt, or made
from types: without that option no file holds data of the program, but for constants of a graph.
A device's launch program and kernels have no such form: 05_launch.py.txt, 06_kernels.py.txt.
"""

from __future__ import annotations

import base64
import copy
import functools
import importlib.resources
import io
import json
import re
import textwrap
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import torch

from braze.diagnose.generated_inputs import number_of
from braze.diagnose.launch_script import launch_script
from braze.diagnose.loop_script import loop_script
from braze.diagnose.schedule_script import schedule_script
from braze.environment import warn_of_output
from braze.errors import warn
from braze.frozen import frozen
from braze.interop.fx_graph import NotExpressible, aten_to_fx
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.print_graph import print_graph
from braze.ir.kernels.kernel import KernelSources, print_sources
from braze.ir.kernels.loops import Buffer, LoopProgram, bytes_of
from braze.ir.kernels.print_loops import print_loops
from braze.ir.kernels.print_schedule import print_schedule
from braze.ir.kernels.schedule import Kernel, Schedule
from braze.ir.types import ScalarType, TensorType
from braze.options import Options
from braze.runtime.launch.cpp_compiler import NoCompiler, find_for_kernels
from braze.shapes.expr import as_expr

_GIVEN = frozenset({"torch", "device", "inf", "nan", "NoneType"})

_SCRIPT = '''\
r"""{title}: {what}.

python {name} [calls] [--save results.pt]

    runs it on the inputs in inputs.pt beside this file, where option `debug_inputs` wrote them,
    else on generated ones of the graph's types; shows what it returns, and times so many calls.
{notes}"""

from __future__ import annotations

import base64
import io
from math import inf, nan  # noqa: F401
{imports}
{parts}

CONSTANTS = """
{constants}
"""
constants = torch.load(io.BytesIO(base64.b64decode(CONSTANTS)), weights_only=True)

{program}

def generated():
    return [
{inputs}
    ]


if __name__ == "__main__":
    main(program, generated)
'''

_GRAPH = """
class Graph(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, tensor in constants.items():
            self.register_buffer(name, tensor)

{forward}


graph = Graph()


def program(inputs):
    return graph(*inputs)
"""

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
POINTER = ctypes.c_void_p
ENTRY = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, POINTER, ctypes.c_int)
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
        entry = ctypes.addressof(ctypes.c_char.in_dll(library, f"segment{{number}}"))
        start = ENTRY(ctypes.c_size_t.from_address(entry).value)  # how the entry's data begin
        for _ in range(calls):
            if start(entry, *places, torch.get_num_threads()):
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
        """A graph of operators."""
        self._write(name, lambda: _graph_script(self._title, name, what, graph))

    def loops(self, lowered: Callable[[], LoopProgram]) -> None:
        """The loop program of all of the graph, of which equal blocks may be scheduled once."""
        parts = functools.partial(_script, self._title, "03_loops.py", "the loop program", "grid")

        def made() -> str:
            program = lowered()
            given, text = _Given.of(program), functools.partial(print_loops, program)
            return _expressed(parts, given, text, lambda: loop_script(program))

        self._write("03_loops.py", made)

    def schedule(self, plan: Schedule) -> None:
        """The kernels, and the calls between them."""
        what = "kernels and calls"
        parts = functools.partial(_script, self._title, "04_schedule.py", what, "grid")
        text, made = lambda: print_schedule(plan), lambda: schedule_script(plan)
        self._write("04_schedule.py", lambda: _expressed(parts, _Given.of(plan), text, made))

    def launch(
        self,
        plan: Schedule,
        sources: KernelSources,
        options: Options,
        takes_inputs: bool,
        text: str,
    ) -> None:
        """The launch program. text: its source."""
        if sources.launches:
            self._write("05_launch.py.txt", lambda: text)
            return
        what = "the launch program"
        parts = functools.partial(_script, self._title, "05_launch.py", what, "launch")

        def made() -> str:
            built = _library(sources, options) if sources.segments else ""
            return built + launch_script(plan, sources, takes_inputs)

        self._write("05_launch.py", lambda: _expressed(parts, _Given.of(plan), lambda: text, made))

    def kernels(self, plan: Schedule, sources: KernelSources, options: Options) -> None:
        """The sources, and what times them."""
        if not sources.units:
            if sources.launches:
                self._write("06_kernels.py.txt", lambda: print_sources(sources))
            return
        for name, unit in zip(_names(sources), sources.units):
            self._write(name, unit.readable)
        if sources.segments:
            script = lambda: _benchmark(self._title, plan, sources, options)  # noqa: E731
            self._write("07_benchmark.py", script)

    def saving(self, call: GraphCallable, options: Options) -> GraphCallable:
        """`call`; with option `debug_inputs`, one whose first call leaves its inputs and results
        beside the scripts."""
        if self._folder is None or not options.debug_inputs:
            return call
        return _Saving(call, self)

    def save_inputs(self, held: dict[str, object]) -> None:
        """Write inputs.pt."""
        self._write("inputs.pt", lambda: held)

    def _write(self, name: str, content: Callable[[], object]) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            made = content()
            if isinstance(made, str):
                (self._folder / name).write_text(made)
            else:
                torch.save(made, self._folder / name)
        except OSError as error:
            warn_of_output("BRAZE_DEBUG", self._root, error)
            self._folder = None
        except Exception as fault:
            place = self._folder / name
            warn(f"{place} is not written, by a bug in Braze: {type(fault).__name__}: {fault}")


# --- private ---------------------------------------------------------------------------------


@final
@frozen
class _Given:
    """What a program is given: the types of its inputs, and its constants."""

    inputs: tuple[str, ...]
    constants: tuple[torch.Tensor, ...]

    @staticmethod
    def of(program: LoopProgram | Schedule) -> _Given:
        """Those of a program of buffers."""
        inputs = [_made_text(b.shape, b.stride, b.dtype, b.device) for b in program.inputs]
        inputs += [str(number_of(number)) for number in program.sizes.numbers]
        return _Given(tuple(inputs), tuple([tensor for _, tensor in program.constants]))


@final
class _Saving:
    """A compiled graph whose first call is kept: inputs as they were given, results, and the state
    of the random numbers before it."""

    def __init__(self, call: GraphCallable, folder: DebugFolder) -> None:
        self._call, self._folder, self._done = call, folder, False
        self.text = getattr(call, "text", "")

    def __call__(self, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        if self._done:
            return self._call(inputs)
        self._done = True
        memo: dict[int, Any] = {}
        with torch.no_grad():
            kept = [copy.deepcopy(_plain(each), memo) for each in inputs]
            state = torch.get_rng_state()
            results = self._call(inputs)
            found = [_plain(each).clone() for each in results]
        self._folder.save_inputs({"inputs": kept, "random": state, "results": found})
        return results


def _plain(value: object) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _expressed(
    script: Callable[..., str],
    given: _Given,
    text: Callable[[], str],
    made: Callable[[], str],
) -> str:
    """A script; or a program's text, and why no Python says it."""
    try:
        program = made()
    except NotExpressible as problem:
        return f'"""No Python code says this program: {problem}\n\n{text()}"""\n'
    return script(given, program, text())


def _script(
    title: str,
    name: str,
    what: str,
    part: str,
    given: _Given,
    program: str,
    notes: str = "",
    imports: Sequence[str] = (),
) -> str:
    """A script of a program. part: of `script_parts`, what the program is written in."""
    constants: Any = given.constants
    buffer = io.BytesIO()
    torch.save(constants if part else dict(zip(_constant_names(given), constants)), buffer)
    data = textwrap.wrap(base64.b64encode(buffer.getvalue()).decode(), 100)
    ours = ["import braze  # noqa: F401  # its operators"] if "torch.ops.braze" in program else []
    return _SCRIPT.format(
        title=title, name=name, what=what, imports="\n".join([*imports, *ours]),
        parts=_parts(*[each for each in (part, "main") if each]), constants="\n".join(data),
        program=program, notes="\n" + notes.replace('"""', "'''") if notes else "",
        inputs="\n".join([f"        {each}," for each in given.inputs]),
    )  # fmt: skip


def _constant_names(given: _Given) -> list[str]:
    return [f"_tensor_constant{number}" for number, _ in enumerate(given.constants)]


def _parts(*names: str) -> str:
    """The texts of parts, as one module: imports that all of them need come first."""
    imports: dict[str, None] = {}
    bodies = []
    folder = importlib.resources.files("braze.diagnose.script_parts")
    for name in names:
        text = folder.joinpath(f"{name}.py").read_text()
        text = text.partition("from __future__ import annotations\n")[2]
        lines = text.splitlines()
        starts = ("import ", "from ")
        imports |= dict.fromkeys([line for line in lines if line.startswith(starts)])
        bodies.append("\n".join([line for line in lines if not line.startswith(starts)]).strip())
    return "\n".join(sorted(imports)) + "\n\n" + "\n\n\n".join(bodies) + "\n"


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
    inputs = [_input_text(value.type) for value in graph.inputs]
    inputs += [str(number_of(number)) for number in graph.sizes.numbers]
    given = _Given(tuple(inputs), tuple([constant.tensor for constant in graph.constants]))
    program = _GRAPH.format(forward=textwrap.indent(code.src.strip(), "    "))
    imports = ["from torch import device  # noqa: F401", *imports]
    return _script(title, name, what, "", given, program, imports=imports)


def _input_text(kind: TensorType | ScalarType) -> str:
    if not isinstance(kind, TensorType):
        return repr(kind.python_type(1))
    return _made_text(kind.shape, kind.stride, kind.dtype, kind.device)


def _made_text(shape: Any, stride: Any, dtype: torch.dtype, where: torch.device) -> str:
    sizes = [tuple(map(number_of, each)) for each in (shape, stride)]
    return f"make({sizes[0]}, {sizes[1]}, {dtype}, {str(where)!r})"


def _names(sources: KernelSources) -> list[str]:
    """The files of the kernels."""
    if len(sources.units) == 1:
        return ["06_kernels.cpp"]
    return [f"06_kernels_{number}.cpp" for number in range(len(sources.units))]


def _library(sources: KernelSources, options: Options) -> str:
    """The line that builds the kernels."""
    toolchain = find_for_kernels(options)
    if isinstance(toolchain, NoCompiler):
        raise NotExpressible(toolchain.reason)
    given = [[toolchain.compiler, *toolchain.flags], _names(sources), [*toolchain.libraries]]
    return f"library = built({', '.join(map(json.dumps, given))})\n"


def _benchmark(title: str, plan: Schedule, sources: KernelSources, options: Options) -> str:
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
        sources=json.dumps(_names(sources)),
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
