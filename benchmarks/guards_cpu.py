"""What a call of a compiled function costs beside its graph: guards above all.

    python -m benchmarks.guards_cpu [--rounds 30]

For each program: guards, parameters, microseconds to check all guards by the Python evaluator, by
generated Python and by the snapshot that a second call leaves behind, and to make that snapshot.
Last, a function of one operator: the whole call above its graph. Times are the best of the rounds:
disturbances only add.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from braze.interop.backends import Backend, Level
from braze.ir.captured.compile_request import FrameValues
from braze.options import config
from braze.runtime.dispatch.argument_binding import make_binder
from braze.runtime.dispatch.compiled_function import CompiledCallable, Dispatcher
from braze.runtime.guards.evaluate import evaluate
from braze.runtime.guards.native_extension import LOADER
from braze.runtime.guards.snapshot_cache import SnapshotMemory
from braze.targets import make_dispatcher
from braze.trace import JOURNAL

Program = Callable[[], tuple[nn.Module, torch.Tensor]]


class Linears(nn.Module):
    """300 parameters in 150 layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(150)])
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x) * self.scale)
        return x


class Block(nn.Module):
    """The residual block of ResNet-18."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = None
        if stride != 1:
            conv = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        kept = x if self.shortcut is None else self.shortcut(x)
        return torch.relu(self.bn2(self.conv2(y)) + kept)


class ResNet18(nn.Module):
    """ResNet-18's layers, on small images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        blocks = [(Block(i, o, s), Block(o, o, 1)) for i, o, s in widths]
        self.blocks = nn.Sequential(*[block for pair in blocks for block in pair])
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(self.blocks(x).mean((2, 3)))


def encoder() -> tuple[nn.Module, torch.Tensor]:
    """12 encoder layers, BERT's shape in small."""
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 12), torch.randn(1, 4, 32)


PROGRAMS: dict[str, Program] = {
    "150 linear layers": lambda: (Linears(), torch.randn(2, 8)),
    "ResNet-18": lambda: (ResNet18(), torch.randn(1, 3, 32, 32)),
    "12 encoder layers": encoder,
}


def main() -> None:
    """Print one line a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    if LOADER.wait() is None:
        print("the extension cannot be built: snapshots are not measured")
    with torch.no_grad():
        for name, program in PROGRAMS.items():
            model, example = program()
            _report_program(name, model.eval(), example, rounds)
        _report_call(rounds)


def _dispatcher() -> Dispatcher:
    return make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), JOURNAL)


def _report_program(name: str, model: nn.Module, example: torch.Tensor, rounds: int) -> None:
    dispatcher = _dispatcher()
    forward: Any = type(model).forward
    dispatcher.compiled(forward)(model, example)
    entry = dispatcher.caches()[0].entries[0]
    frame = FrameValues(make_binder(forward)(model, example), (), forward.__globals__)
    entry.check(frame)  # leaves a snapshot
    memory: SnapshotMemory = entry.check.memory  # type: ignore[attr-defined]
    guards = memory.tree.guards()
    walk = best(lambda: evaluate(memory.tree, frame), rounds, 20)
    python = best(lambda: memory.generated(frame), rounds)
    native = best(lambda: entry.check(frame), rounds)
    began = time.perf_counter()
    memory.remember(frame)
    made = 1e6 * (time.perf_counter() - began)
    tensors = len(entry.compiled.inputs)
    print(
        f"{name:20} {len(guards):5} guards {tensors:4} inputs: walk {walk:7.1f} us, "
        f"generated {python:7.1f} us, snapshot "
        f"{native:6.2f} us ({1e3 * native / len(guards):.1f} ns a guard), made in {made:.0f} us"
    )


def _report_call(rounds: int) -> None:
    def add_one(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    dispatcher = _dispatcher()
    compiled = CompiledCallable(add_one, dispatcher)  # type: ignore[arg-type]
    x = torch.ones(4)
    for _ in range(3):
        compiled(x)
    entry = dispatcher.caches()[0].entries[0]
    values = FrameValues({"x": x}, (), {})
    results = entry.graph([x])
    parts = {
        "call": best(lambda: compiled(x), rounds),
        "graph": best(lambda: entry.graph([x]), rounds),
        "check": best(lambda: entry.check(values), rounds),
        "replay": best(lambda: entry.replay(values, results), rounds),
        "eager": best(lambda: add_one(x), rounds),
    }
    print("one operator: " + ", ".join(f"{what} {us:.2f} us" for what, us in parts.items()))
    print(f"  above the graph: {parts['call'] - parts['graph']:.2f} us")


def best(work: Callable[[], Any], rounds: int, repeats: int = 200) -> float:
    """Microseconds of one run, in the best of the rounds."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        times.append((time.perf_counter() - began) / repeats)
    return 1e6 * min(times)


if __name__ == "__main__":
    main()
