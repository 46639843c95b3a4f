"""Schedules for a device run: each launch by Triton's interpreter on CPU tensors, or on the
device, where there is one.

Triton decides when it is imported whether functions are interpreted. `interpreting` puts an
interpreting copy of it among the modules for as long as it lasts, whatever else has imported it.
NVIDIA's library of functions is replaced by torch's.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from braze.codegen.triton import supports
from braze.ir.kernels.kernel import DeviceFunction, KernelSources, Launch
from braze.ir.kernels.loops import Buffer, LoopProgram
from braze.ir.kernels.run_loops import _bind_sizes, _run_extern, _size, _view, run_loops
from braze.ir.kernels.schedule import ExternStep, Schedule
from braze.lower import lower
from braze.options import config
from braze.rewrite import rewrite
from braze.schedule import CUDA, Target, schedule
from braze.shapes.expr import Symbol
from braze.tracing import Tracer

OPTIONS = config.snapshot()
ON_DEVICE = torch.cuda.is_available()
HAS_TRITON = importlib.util.find_spec("triton") is not None
# The interpreter runs one program after another: instead of waiting for each other, they run once
# more for each meeting, when what was written before it is right.
_WAIT = re.compile(r"    while tl\.atomic_add\(arrivals.*\n        pass\n")
# Of each test file that runs kernels so.
MARKS = [
    pytest.mark.skipif(not HAS_TRITON, reason="needs triton"),
    pytest.mark.xdist_group("triton"),
    pytest.mark.usefixtures("triton_interpreted"),
    *([pytest.mark.gpu] if ON_DEVICE else []),
]


@contextlib.contextmanager
def interpreting(cache: dict[str, ModuleType] = {}) -> Iterator[ModuleType]:  # noqa: B006
    """Triton as a module whose functions run here; as it is, where there is a device."""
    if ON_DEVICE:
        yield importlib.import_module("triton")
        return
    others = {n: m for n, m in sys.modules.items() if _is_triton(n)}
    for name in others:
        del sys.modules[name]
    sys.modules.update(cache)
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        triton = importlib.import_module("triton")
        if not cache:
            _mend(importlib.import_module("triton.runtime.interpreter"))
        yield triton
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before
        cache.update({n: m for n, m in sys.modules.items() if _is_triton(n)})
        for name in cache:
            sys.modules.pop(name, None)
        sys.modules.update(others)


def generated(program: LoopProgram, target: Target = CUDA) -> tuple[Schedule, KernelSources]:
    """The schedule for a GPU, and its sources."""
    from braze.codegen.triton import generate

    plan = schedule(program, OPTIONS, target)
    return plan, generate(plan, OPTIONS)


def planned(
    function: Callable[..., Any], given: Sequence[torch.Tensor], target: Target
) -> tuple[LoopProgram, Schedule, list[torch.Tensor]]:
    """A function's loop program, its schedule, and the inputs that it has."""
    tracer = Tracer(replayable=False)
    with torch.no_grad(), tracer:
        results = function(*[tracer.add_input(x) for x in given])
        finished = tracer.finish(list(results) if isinstance(results, tuple) else [results])
    made = lower(rewrite(finished.graph, OPTIONS), OPTIONS, supports)
    return made, schedule(made, OPTIONS, target), [given[n] for n in finished.inputs]


def run(program: LoopProgram, inputs: Sequence[Any], target: Target = CUDA) -> list[torch.Tensor]:
    """The program's outputs, its kernels interpreted."""
    plan, sources = generated(program, target)
    return run_sources(program, plan, sources, inputs)


def run_sources(
    program: LoopProgram, plan: Schedule, sources: KernelSources, inputs: Sequence[Any]
) -> list[torch.Tensor]:
    """As `run`, of a schedule made before."""
    sizes = _bind_sizes(program, inputs)
    memory: dict[Buffer, torch.Tensor] = dict(zip(plan.inputs, inputs))
    memory.update(plan.constants)
    if ON_DEVICE:
        memory = {buffer: tensor.cuda() for buffer, tensor in memory.items()}
    for step, launches in zip(plan.steps, sources.launches, strict=True):
        if isinstance(step, ExternStep):
            _run_extern(step.call, memory, sizes)
        for launch in launches:
            _launch(launch, memory, sizes)
    for target, view in plan.mutations:
        memory[target].copy_(_view(view, memory, sizes))
    for buffer, given in zip(plan.inputs, inputs):  # on a device they were copied
        if buffer in plan.in_place or any(buffer is target for target, _ in plan.mutations):
            given.copy_(memory[buffer])
    return [_view(view, memory, sizes).cpu() for view in plan.outputs]


def check(
    program: LoopProgram, inputs: Sequence[Any], target: Target = CUDA, **tolerances: Any
) -> None:
    """Interpreted kernels beside the loop evaluator, values and strides."""
    expected = run_loops(program, [x.clone() for x in inputs])
    actual = run(program, [x.clone() for x in inputs], target)
    assert len(actual) == len(expected)
    for mine, right in zip(actual, expected, strict=True):
        assert mine.stride() == right.stride()
        torch.testing.assert_close(mine, right, equal_nan=True, **tolerances)


# --- private ---------------------------------------------------------------------------------


def _is_triton(name: str) -> bool:
    return name == "triton" or (name.startswith("triton.") and not name.startswith("triton._C"))


def _mend(interpreter: Any) -> None:
    """The interpreter's numbers are arrays of one element, which NumPy refuses as bounds of loops;
    it folds by a function of ours one element at a time, for minutes: a tree does as well. It
    multiplies matrices of bfloat16 as the integers that it keeps them as, and cuts what it makes
    of float32 to them where a device rounds."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def reduced(self: Any, given: Any) -> list[Any]:
        halves = [x.handle.data for x in given]
        types = [x.dtype for x in given]
        while halves[0].shape[self.axis] > 1:
            parts = [numpy.split(data, 2, self.axis) for data in halves]
            operands = [self.to_tensor(p[0], t) for p, t in zip(parts, types, strict=True)]
            operands += [self.to_tensor(p[1], t) for p, t in zip(parts, types, strict=True)]
            made = self.combine_fn(*operands)
            halves = [x.handle.data for x in (made if isinstance(made, tuple) else (made,))]
        folded = [data.squeeze(self.axis) for data in halves]
        return [self.to_tensor(data, t) for data, t in zip(folded, types, strict=True)]

    builder = interpreter.InterpreterBuilder
    dot = builder.create_dot

    def dotted(self: Any, a: Any, b: Any, d: Any, *how: Any) -> Any:
        return dot(self, _as_numbers(a), _as_numbers(b), d, *how)

    def _as_numbers(handle: Any) -> Any:
        if not handle.dtype.is_bf16():
            return handle
        wide = (handle.data.astype(numpy.uint32) << 16).view(numpy.float32)
        return interpreter.TensorHandle(wide, interpreter.tl.float32)

    shortened = builder.create_fp_trunc

    def rounded(self: Any, source: Any, kind: Any) -> Any:
        if not (source.dtype.scalar.is_fp32() and kind.scalar.is_bf16()):
            return shortened(self, source, kind)
        halves = torch.from_numpy(numpy.array(source.data)).bfloat16().view(torch.int16)
        return interpreter.TensorHandle(halves.numpy().view(numpy.uint16), kind.scalar)

    def assembled(self: Any, text: str, _: Any, values: Any, *how: Any) -> Any:
        found = _ASSEMBLED[text](values[0].data)
        made = interpreter.TensorHandle(found, interpreter.tl.float32)
        made.get_result = lambda _: made
        return made

    builder.create_dot = dotted
    builder.create_fp_trunc = rounded
    builder.create_inline_asm = assembled
    interpreter._patch_lang_tensor = patched
    interpreter.ReduceOps.generic_reduce = reduced
    _mend_sums(interpreter)
    _mend_conditions(interpreter)


def _exp2(data: Any) -> Any:
    found = numpy.exp2(data)
    found[found < 2.0**-126] = 0
    return found


def _to_tf32(data: Any) -> Any:
    """Ten bits of the fraction are left, the rest rounded to nearest, halves away from zero."""
    bits = (data.view(numpy.uint32) + numpy.uint32(0x1000)) & numpy.uint32(0xFFFFE000)
    return numpy.where(numpy.isnan(data), data, bits.view(numpy.float32))


_ASSEMBLED = {"ex2.approx.ftz.f32 $0, $1;": _exp2, "cvt.rna.tf32.f32 $0, $1;": _to_tf32}


def _mend_conditions(interpreter: Any) -> None:
    """A condition of a program, which masks a block, is one of the type of what was compared."""
    plain = interpreter.InterpreterBuilder.create_splat

    def splat(self: Any, kind: Any, given: Any) -> Any:
        if given.data.dtype != numpy.bool_:
            return plain(self, kind, given)
        data = numpy.full(kind.shape, given.data.reshape(-1)[0])
        return interpreter.TensorHandle(data, interpreter.tl.int1)

    interpreter.InterpreterBuilder.create_splat = splat


def _mend_sums(interpreter: Any) -> None:
    """It adds a block's rows one after another, a device in pairs."""
    plain = interpreter.ReduceOps.sum

    def summed(self: Any, given: Any) -> Any:
        data = given.handle.data
        if self.axis in (None, data.ndim - 1) or data.dtype.kind != "f":
            return plain(self, given)
        while data.shape[self.axis] > 1:
            data = numpy.add(*numpy.split(data, 2, self.axis))
        return self.to_tensor(data if self.keep_dims else data.squeeze(self.axis), given.dtype)

    interpreter.ReduceOps.sum = summed


def _launch(
    launch: Launch, memory: dict[Buffer, torch.Tensor], sizes: Mapping[Symbol, int]
) -> None:
    arguments: list[Any] = []
    for argument in launch.arguments:
        if isinstance(argument, Buffer):
            if argument not in memory:
                memory[argument] = _poisoned(argument, sizes)
            tensor = memory[argument]
            narrow = tensor.dtype.is_floating_point and tensor.element_size() == 1
            arguments.append(tensor.view(torch.uint8) if narrow else tensor)  # as bits
        else:
            arguments.append(_size(argument, sizes))
    grid = tuple(_size(size, sizes) for size in launch.grid)
    function = loaded(launch.function)
    options = {"num_warps": launch.function.warps} if ON_DEVICE else {}
    meetings = 0 if ON_DEVICE else launch.function.text.count("bz_meet(p")
    before = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments[: meetings and -2]]
    for _ in range(meetings):
        function[grid](*arguments, *launch.function.constants)
        for argument, held in zip(arguments, before):  # what was told at the meeting stays
            if isinstance(argument, torch.Tensor):
                argument.copy_(held)
    function[grid](*arguments, *launch.function.constants, **options)


def _poisoned(buffer: Buffer, sizes: Mapping[Symbol, int]) -> torch.Tensor:
    """Memory with contents that show where they are not written."""
    shape = [_size(size, sizes) for size in buffer.shape]
    stride = [_size(step, sizes) for step in buffer.stride]
    device = "cuda" if ON_DEVICE else "cpu"
    fresh = torch.empty_strided(shape, stride, dtype=buffer.dtype, device=device)
    return fresh.fill_(True if buffer.dtype == torch.bool else 77)


def loaded(function: DeviceFunction) -> Any:
    """The function of a module made of its text; Triton reads the source from its file."""
    if ON_DEVICE:
        return getattr(_module(Path(tempfile.mkdtemp()), function), function.name)
    with tempfile.TemporaryDirectory() as folder:
        module = _module(Path(folder), function)
        module.libdevice = _library()
        found = getattr(module, function.name)
        for name in [n for n in dir(module) if n.startswith(("bz_", "k_"))]:
            getattr(module, name).rewrite()
    return found


def _module(folder: Path, function: DeviceFunction) -> Any:
    path = folder / f"{function.name}.py"
    path.write_text(function.text if ON_DEVICE else _WAIT.sub("", function.text))
    spec = importlib.util.spec_from_file_location(function.name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _library() -> SimpleNamespace:
    """The device's functions, by torch."""
    names = (
        "exp exp2 expm1 log log2 log10 log1p rsqrt sin cos tan asin acos atan sinh cosh tanh "
        "asinh acosh atanh erf erfc erfinv lgamma floor ceil trunc atan2 hypot copysign nextafter "
        "pow fmod"
    ).split()
    table: dict[str, Any] = {name: getattr(torch, name) for name in names}
    table |= {"rint": torch.round, "sqrt_rn": torch.sqrt, "div_rn": torch.true_divide}
    table["fast_dividef"] = torch.true_divide
    table |= {"add_rn": torch.add, "sub_rn": torch.sub, "mul_rn": torch.mul}
    table["fma"] = lambda x, y, z: torch.addcmul(z, x, y)
    return SimpleNamespace(**{name: _on_values(f) for name, f in table.items()})


def _on_values(function: Any) -> Any:
    def call(*operands: Any) -> Any:
        language = sys.modules["triton.language"]
        interpreter = sys.modules["triton.runtime.interpreter"]
        tensors = [x for x in operands if isinstance(x, language.tensor)]
        arrays = [x.handle.data for x in tensors]
        like = arrays[0].dtype
        given = [
            x.handle.data.copy()
            if isinstance(x, language.tensor)
            else numpy.array(getattr(x, "value", x), like)
            for x in operands
        ]
        data = function(*map(torch.from_numpy, given)).numpy()
        types = [x.type for x in tensors]
        largest = max(types, key=lambda kind: math.prod(getattr(kind, "shape", ())))
        return language.tensor(interpreter.TensorHandle(data, tensors[0].dtype.scalar), largest)

    return call
