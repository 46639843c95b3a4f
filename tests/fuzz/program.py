"""A generated program: the text of a module, and what is done with it, step by step."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import final

HEADER = """\
import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

import braze
from tests.fuzz.prelude import P, T, backward, backward_twice
"""


@final
@dataclass(frozen=True, slots=True)
class Program:
    """text: a module that defines `entry`. steps: statements and expressions executed in it, in
    order; they call `entry` as `run`, and the value of each expression goes to the list `R`.
    backend, mode: of the compiled run. is_rough: the two runs need only come near each other, and
    which tensors were written to is not compared."""

    text: str
    steps: tuple[str, ...]
    backend: str = "aot_eager"
    seed: int = -1
    mode: str | None = None
    is_rough: bool = False

    def render(self) -> str:
        """The program as one file, which `parse` reads."""
        steps = "".join(f"    {step!r},\n" for step in self.steps)
        mode = "" if self.mode is None else f"MODE = {self.mode!r}\n"
        return f"{self.text}\n\nBACKEND = {self.backend!r}\n{mode}STEPS = [\n{steps}]\n"


def on_device(program: Program, device: str, mode: str | None = None) -> Program:
    """The same program, whose tensors are on that device wherever it says nothing, compiled for it
    in that mode."""
    text = f"import torch\ntorch.set_default_device({device!r})\n{program.text}"
    return replace(program, text=text, backend="braze", mode=mode)


def roughly_in_float64(program: Program) -> Program:
    """The same program of training in float64, compared roughly: sums of a device are rounded in
    another order, optimizers make much of little, and kernels of theirs that write to many tensors
    at once count no writes there."""
    return replace(in_float64(program), is_rough=True)


def in_float64(program: Program) -> Program:
    """The same program, which computes in float64 wherever it says nothing or float32."""

    def precise(text: str) -> str:
        for name, wide in _WIDER.items():
            text = text.replace(name, wide)
        return text

    steps = tuple(map(precise, program.steps))
    text = "import torch\ntorch.set_default_dtype(torch.float64)\n" + precise(program.text)
    return replace(program, text=text, steps=steps)


_WIDER = {
    "from tests.fuzz.prelude import P, T, backward": (
        "from tests.fuzz.prelude import P64 as P, T64 as T, backward"
    ),
    "torch.float32": "torch.float64",
    ".float()": ".double()",
}


def parse(source: str, seed: int = -1) -> Program:
    """What `render` wrote."""
    tree = ast.parse(source)
    backend, mode = "aot_eager", None
    steps: tuple[str, ...] = ()
    kept = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name == "BACKEND":
                backend = ast.literal_eval(node.value)
                continue
            if name == "MODE":
                mode = ast.literal_eval(node.value)
                continue
            if name == "STEPS":
                steps = tuple(ast.literal_eval(node.value))
                continue
        kept.append(node)
    tree.body = kept
    return Program(ast.unparse(tree), steps, backend, seed, mode)
