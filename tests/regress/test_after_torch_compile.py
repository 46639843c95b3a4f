"""Once torch.compile was used in a process, its own compiler has replaced `nn.Module.__init__`:
a module made inside a compiled frame (a slice of a ModuleList) broke the graph there."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
import braze

torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
assert torch.nn.Module.__init__.__module__.startswith("torch._dynamo")

class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))

    def forward(self, x):
        for layer in self.layers[:2]:
            x = layer(x)
        return x

model, x = Stack(), torch.randn(4, 3)
with torch.no_grad():
    torch.testing.assert_close(braze.compile(model, fullgraph=True)(x), model(x))
"""


def test_a_slice_of_a_module_list_after_torch_compile() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


OPTIMIZER = """
import torch
import braze

torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.9)

def step(x):
    optimizer.zero_grad()
    (weight * x).sum().backward()
    optimizer.step()

explained = braze.explain(step)(torch.ones(3))
assert not explained.break_reasons, explained.break_reasons
assert torch.equal(weight, torch.full((3,), 0.5)), weight
"""


def test_optimizers_after_torch_compile() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPTIMIZER], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


NOTICED = """
import enum
import io
import weakref
import torch
import braze

class Mode(enum.Enum):
    DOUBLE = 2

def scaled(x, activation, mode):
    return activation(x) * 2 if mode is Mode.DOUBLE else x

def f(x, activation, mode):
    x = scaled(x, activation, mode)
    print(end="", file=sink)  # a break: what is given up behind it may be noticed
    del activation, mode
    return x + 1

sink = io.StringIO()
x = torch.ones(2)
torch.compile(scaled, backend="eager")(x, torch.relu, Mode.DOUBLE)
assert any(r.__callback__ for r in weakref.getweakrefs(torch.relu)), "it notices nothing"
assert any(r.__callback__ for r in weakref.getweakrefs(Mode.DOUBLE)), "it notices nothing"
explained = braze.explain(f)(x, torch.relu, Mode.DOUBLE)
codes = [reason.code for reason in explained.break_reasons]
assert codes == ["input-output"], codes

class Told:
    pass

def g(x):
    told = Told()
    weakref.finalize(told, sink.write, "ended ")
    print("begun ", end="", file=sink)
    del told
    print("later ", end="", file=sink)
    return x + 1

sink.truncate(0), sink.seek(0)
braze.compile(g)(x)
assert sink.getvalue() == "begun ended later ", sink.getvalue()
"""


def test_what_torch_compile_is_told_of_is_no_finalizer() -> None:
    """It refers weakly to what it guards by identity, enumerations and functions of torch's too,
    with a callback: a frame broke where it gave such a value up."""
    done = subprocess.run(
        [sys.executable, "-c", NOTICED], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


BEFORE = """
import logging
import torch
import braze
from torch.optim import SGD, Adagrad, Adam, AdamW

told = []
handler = logging.Handler()
handler.emit = lambda record: told.append(record.getMessage())
logging.getLogger("braze.recompiles").addHandler(handler)
braze.set_logs("recompiles")

def trained(cls, **options):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = cls([weight], lr=0.5, **options)

    def step(x):
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()

    return braze.compile(step), weight

classes = [(AdamW, {}), (Adam, {}), (SGD, {}), (SGD, {"fused": True}), (Adagrad, {"fused": True})]
steps = [trained(cls, **options) for cls, options in classes]
for step, _ in steps:
    for _ in range(3):
        step(torch.ones(3))
before = torch.optim.AdamW._init_group
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
assert torch.optim.AdamW._init_group is not before, "it replaces nothing"
told.clear()
for step, weight in steps:
    held = weight.detach().clone()
    step(torch.ones(3))
    assert not torch.equal(weight, held)
assert not told, told

# What the program replaces is noticed.
Adam._init_group = lambda *arguments: False
step, weight = steps[1]
held = weight.detach().clone()
step(torch.ones(3))
assert told and torch.equal(weight, held), (told, weight, held)
"""


def test_steps_compiled_before_torch_compile_stay() -> None:
    """It replaces parts of torch's optimizers when a process uses it first: each step that was
    compiled already was compiled once more."""
    done = subprocess.run(
        [sys.executable, "-c", BEFORE], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


EXPLAINED = """
import torch
import braze
from torch.utils.weak import WeakIdKeyDictionary

def branches(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b

a, b = torch.randn(10), torch.ones(10)
theirs = torch._dynamo.explain(branches)(a, b)
mine = braze.explain(branches, a, b)
assert mine.graph_count == theirs.graph_count == 2, mine
assert [note.code for note in mine.break_reasons] == ["data-dependent-branch"], mine

registry = WeakIdKeyDictionary()  # the program's own: it sees which tensors are there
registry[b] = 1
assert "finalizer" in [note.code for note in braze.explain(branches, a, b).break_reasons]
"""


def test_tensors_that_torch_explained() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXPLAINED], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
