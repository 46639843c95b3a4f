"""The pictures of the pages on how the compiler works: one a stage."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from braze.rewrite.passes import PASSES
from tests.docs.drawing import Arrow, Box, Picture


def _pipeline() -> Picture:
    """The stages from left to right, in two rows, and what each hands to the next."""
    return Picture(
        "The stages of the compiler, and the data that each hands to the next",
        (
            Box("call", (0, 0), "Python call", ("function or nn.Module",), "outside"),
            Box("capture", (1, 0), "capture", ("interprets bytecode",), "stage"),
            Box("autograd", (2, 0), "autograd", ("traces the backward",), "stage"),
            Box("rewrite", (3, 0), "rewrite", ("graph passes",), "stage"),
            Box("lower", (3, 1), "lower", ("operators to loops",), "stage"),
            Box("schedule", (2, 1), "schedule", ("fusion and memory",), "stage"),
            Box("codegen", (1, 1), "codegen", ("C++ or Triton",), "stage"),
            Box("runtime", (0, 1), "runtime", ("build, guards, launch",), "stage"),
        ),
        (
            Arrow("call", "capture"),
            Arrow("capture", "autograd"),
            Arrow("autograd", "rewrite"),
            Arrow("rewrite", "lower", "Graph"),
            Arrow("lower", "schedule"),
            Arrow("schedule", "codegen"),
            Arrow("codegen", "runtime"),
            Arrow("runtime", "call", "callable"),
        ),
    )


def _capture() -> Picture:
    return Picture(
        "Capture interprets the bytecode on real objects and fake tensors",
        (
            Box("code", (0, 0), "bytecode", ("of the frame",), "outside"),
            Box("objects", (0, 1), "Python objects", ("the program's own",), "outside"),
            Box("interpreter", (1, 0.5), "interpreter", ("a handler per opcode",), "stage"),
            Box("fake", (2, 0), "fake tensors", ("shape, dtype, no data",), "data"),
            Box("effects", (2, 1), "side effects", ("writes, kept back",), "data"),
            Box("dispatcher", (3, 0), "PyTorch's dispatcher", ("decomposes calls",), "outside"),
            Box("guards", (3, 1), "guards", ("one for each read",), "data"),
            Box("graph", (4, 0), "Graph", ("ATen operators",), "data"),
            Box("frame", (4, 1), "CapturedFrame", ("what the runtime needs",), "data"),
        ),
        (
            Arrow("code", "interpreter"),
            Arrow("objects", "interpreter"),
            Arrow("interpreter", "fake"),
            Arrow("interpreter", "effects"),
            Arrow("fake", "dispatcher", ""),
            Arrow("dispatcher", "graph"),
            Arrow("effects", "guards"),
            Arrow("guards", "frame"),
            Arrow("graph", "frame"),
        ),
    )


def _autograd() -> Picture:
    return Picture(
        "Autograd traces the backward and cuts the joint graph in two",
        (
            Box("graph", (0, 0.5), "Graph", ("as captured",), "data"),
            Box("engine", (1, 0.5), "trace", ("PyTorch's engine runs", "on fake tensors"), "stage"),
            Box("joint", (2, 0.5), "JointGraph", ("forward and backward",), "data"),
            Box("cut", (3, 0.5), "partition", ("minimum cut over bytes",), "stage"),
            Box("forward", (4, 0), "forward graph", ("gives results and", "saved values"), "data"),
            Box("backward", (4, 1), "backward graph", ("compiled when first", "asked for"), "data"),
        ),
        (
            Arrow("graph", "engine"),
            Arrow("engine", "joint"),
            Arrow("joint", "cut"),
            Arrow("cut", "forward"),
            Arrow("cut", "backward", dashed=True),
            Arrow("forward", "backward", "saved values"),
        ),
    )


def _rewrite() -> Picture:
    """The passes in their order, read from the compiler's own list."""
    names = [graph_pass.name.replace("_", " ") for graph_pass in PASSES]
    columns = 3
    boxes = [Box("start", (0, 0), "Graph", ("forward or backward",), "data")]
    for number, name in enumerate(names, 1):
        row, place = divmod(number, columns)
        column = columns - 1 - place if row % 2 else place
        first, _, rest = name.partition(" ")
        boxes.append(Box(name, (column, row * 0.75), first, (rest,) if rest else (), "stage"))
    row, place = divmod(len(names) + 1, columns)
    column = columns - 1 - place if row % 2 else place
    boxes.append(Box("end", (column, row * 0.75), "Graph", ("for lowering",), "data"))
    order = [box.name for box in boxes]
    arrows = tuple(Arrow(a, b) for a, b in itertools.pairwise(order))
    return Picture("The graph passes in their order", tuple(boxes), arrows)


def _lower() -> Picture:
    return Picture(
        "Lowering gives each operator a scalar definition, or leaves it to ATen",
        (
            Box("node", (0, 0.5), "aten.relu(%2)", ("a node of the graph",), "data"),
            Box("table", (1, 0.5), "lowering rules", ("a table by operator",), "stage"),
            Box("loop", (2, 0), "definition", ("b4[i, j] =", "max(0, b3[i, j])"), "kernel"),
            Box("extern", (2, 1), "extern call", ("aten.mm: no rule",), "outside"),
            Box(
                "program",
                (3, 0.5),
                "LoopProgram",
                ("nothing said of order,", "or of memory"),
                "data",
            ),
        ),
        (
            Arrow("node", "table"),
            Arrow("table", "loop", "rule"),
            Arrow("table", "extern", "no rule"),
            Arrow("loop", "program"),
            Arrow("extern", "program"),
        ),
    )


def _schedule() -> Picture:
    return Picture(
        "The schedule of the example: two library calls and two fused kernels",
        (
            Box("inputs", (0, 0.5), "x, w, target", ("inputs",), "data"),
            Box("mm", (1, 0.5), "aten.mm", ("x @ w",), "outside"),
            Box("k1", (2, 0.5), "kernel k1", ("relu, difference,", "loss, its gradient"), "kernel"),
            Box("mm2", (3, 0.5), "aten.mm", ("x.T @ gradient",), "outside"),
            Box("k3", (4, 0.5), "kernel k3", ("w -= 0.1 * gradient",), "kernel"),
            Box("arena", (2, 1.7), "arena", ("one allocation:", "b3, b11, b12"), "data"),
            Box("loss", (2, -0.6), "loss", ("fresh memory",), "data"),
        ),
        (
            Arrow("inputs", "mm"),
            Arrow("mm", "k1", "b3"),
            Arrow("k1", "mm2", "b11"),
            Arrow("mm2", "k3", "b12"),
            Arrow("k1", "loss"),
            Arrow("arena", "k1"),
        ),
    )


def _codegen() -> Picture:
    return Picture(
        "One schedule, two generators",
        (
            Box("schedule", (0, 0.5), "Schedule", ("kernels, memory",), "data"),
            Box("cpp", (1, 0), "C++ generator", ("OpenMP, no headers",), "stage"),
            Box("triton", (1, 1), "Triton generator", ("a function a kernel",), "stage"),
            Box("compiler", (2, 0), "C++ compiler", ("g++ or clang++",), "outside"),
            Box("tritonc", (2, 1), "Triton", ("to a cubin",), "outside"),
            Box("cache", (3, 0.5), "kernel cache", ("checked on loading",), "data"),
        ),
        (
            Arrow("schedule", "cpp", "CPU"),
            Arrow("schedule", "triton", "GPU"),
            Arrow("cpp", "compiler"),
            Arrow("triton", "tritonc"),
            Arrow("compiler", "cache"),
            Arrow("tritonc", "cache"),
        ),
    )


def _runtime() -> Picture:
    return Picture(
        "A call: guards choose the entry, kernels run, side effects are replayed",
        (
            Box("call", (0, 0), "call", ("arguments",), "outside"),
            Box("guards", (1, 0), "guards", ("of each entry",), "stage"),
            Box("kernels", (2, 0), "launch program", ("kernels, ATen calls",), "kernel"),
            Box("effects", (3, 0), "side effects", ("replayed in order",), "data"),
            Box("result", (4, 0), "result", (), "outside"),
            Box("compile", (1, 1), "compile", ("a new entry",), "stage"),
            Box("eager", (0, 1), "eager", ("counted and logged",), "outside"),
            Box(
                "break",
                (3, 1),
                "graph break",
                ("one instruction runs,", "the next graph begins"),
                "stage",
            ),
        ),
        (
            Arrow("call", "guards"),
            Arrow("guards", "kernels", "hold"),
            Arrow("kernels", "effects"),
            Arrow("effects", "result"),
            Arrow("guards", "compile", "none holds"),
            Arrow("compile", "eager", "cannot", dashed=True),
            Arrow("compile", "kernels"),
            Arrow("effects", "break", "break", dashed=True),
            Arrow("break", "kernels", dashed=True),
        ),
    )


# File, below docs/pictures, without its ending -> the picture.
PICTURES: Mapping[str, Picture] = {
    "pipeline": _pipeline(),
    "capture": _capture(),
    "autograd": _autograd(),
    "rewrite": _rewrite(),
    "lower": _lower(),
    "schedule": _schedule(),
    "codegen": _codegen(),
    "runtime": _runtime(),
}
