"""`python -m tests.docs.support`: what Python, PyTorch and devices here support, measured.

Each feature is a small program, compiled and compared with eager. What became of it is one word:

    fused     one graph, no operator left to ATen       ATen     one graph, some operators by ATen
    breaks    right, in several graphs                  eager    right, and nothing was compiled
    wrong, or the name of an exception                  a fault: no page may show one

The record of an environment goes to `docs/support.json`, the page is made from all of them.
"""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import platform
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

import braze
from braze.interop.torch_compile import braze_backend as BACKEND
from tests.architecture.tree import ROOT

RECORDS = ROOT / "docs" / "support.json"
DTYPES = tuple(
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex64 int64 int32 int8 uint8 "
    "bool".split()
)
FAULTS = frozenset({"wrong"})


def devices() -> list[str]:
    """The devices of this machine that have kernels of Braze's own."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _ones(device: str, *shape: int) -> torch.Tensor:
    return torch.linspace(0.1, 1.0, math.prod(shape), device=device).reshape(shape)


def _verdict(function: Callable[..., Any], *args: Any) -> str:
    """Compile, compare with eager, and say what became of it."""
    expected = function(*copy.deepcopy(args))
    explained = braze.explain(function)(*copy.deepcopy(args))
    try:
        torch.testing.assert_close(explained.result, expected, rtol=1e-2, atol=1e-3)
    except AssertionError:
        return "wrong"
    if not explained.graph_count:
        return "eager"
    if explained.break_count or explained.graph_count > 1:
        return "breaks"
    return "ATen" if explained.extern_ops else "fused"


# --- dtypes --------------------------------------------------------------------------------------


def _in_dtype(device: str, name: str) -> str:
    """Arithmetic, a comparison and a sum, in one dtype; of float8, conversions."""
    dtype = getattr(torch, name)
    x = _ones(device, 64).to(dtype)
    if name.startswith("float8"):
        return _verdict(lambda x: (x.to(torch.float32) * 2).to(dtype).to(torch.float32), x)
    if dtype is torch.bool:
        return _verdict(lambda x: (x ^ ~x) | x, x)
    if dtype.is_complex:
        return _verdict(lambda x: x * x + x.conj(), x)
    return _verdict(lambda x: (torch.where(x > 0, x * 3 - x, x) + 1).sum(), x)


# --- features ------------------------------------------------------------------------------------


def _training_step(device: str) -> str:
    layers = torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)
    model = torch.nn.Sequential(*layers).to(device)
    twin = copy.deepcopy(model)

    def stepping(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    step, eager, x = stepping(model), stepping(twin), _ones(device, 4, 8)
    step(x), eager(x)  # which makes the optimizers' state
    explained = braze.explain(step)(x)
    torch.testing.assert_close(explained.result, eager(x))
    torch.testing.assert_close([*model.parameters()], [*twin.parameters()])
    return "ATen" if (explained.graph_count, explained.break_count) == (1, 0) else "breaks"


def _backward(device: str) -> str:
    compiled = braze.compile(lambda x: (x.sin() * x).sum(), fullgraph=True)
    x = _ones(device, 16).requires_grad_()
    (gradient,) = torch.autograd.grad(compiled(x), x)
    wanted = (x.sin() + x * x.cos()).detach()
    return "fused" if torch.allclose(gradient, wanted, atol=1e-5) else "wrong"


def _changing_sizes(device: str) -> str:
    compiled = braze.compile(lambda x: x.softmax(-1) * x.shape[0], name="changing_sizes")
    for n in (5, 6, 7, 9):
        x = _ones(device, n, 4)
        torch.testing.assert_close(compiled(x), x.softmax(-1) * n)
    return "fused" if braze.status()["changing_sizes"].recompiles == 1 else "breaks"


def _graph_break(device: str) -> str:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y + 1 if y.sum() > 0 else y - 1

    return _verdict(f, _ones(device, 8))


def _custom_function(device: str) -> str:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient * 2

    x = _ones(device, 8).requires_grad_()
    return _verdict(lambda x: torch.autograd.grad(Double.apply(x).sum(), x)[0], x)


def _attention(device: str) -> str:
    q = _ones(device, 1, 2, 16, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    return _verdict(lambda q: attend(q, q, q, is_causal=True), q)


def _numpy_code(device: str) -> str:
    return _verdict(lambda a: torch.from_numpy(numpy.sin(a) * 2), numpy.arange(8.0))


def _cond(device: str) -> str:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    return _verdict(f, _ones(device, 8))


def _recorded(device: str) -> str:
    compiled = braze.compile(lambda x: (x.relu() + 1).sum(), mode="reduce-overhead")
    for _ in range(4):
        x = _ones(device, 32)
        torch.testing.assert_close(compiled(x), (x.relu() + 1).sum())
    return "fused" if device == "cuda" else "no effect"


def _pickled(device: str) -> str:
    compiled = braze.compile(torch.nn.Linear(4, 4).to(device))
    file = io.BytesIO(pickle.dumps(compiled))
    again, x = pickle.load(file), _ones(device, 2, 4)
    torch.testing.assert_close(again(x), compiled(x))
    return "works"


def _exported(device: str) -> str:
    x = _ones(device, 8)
    graph_module, guards = braze.export(lambda x: x.sin() + 1)(x)
    torch.testing.assert_close(graph_module(x), x.sin() + 1)
    return "works" if guards else "wrong"


def _by_torch_compile(device: str) -> str:
    x = _ones(device, 8)
    # A source tree that is not installed has no entry point, by which PyTorch finds the name.
    is_installed = "braze" in torch.compiler.list_backends()
    compiled = torch.compile(lambda x: x.sin() + 1, backend="braze" if is_installed else BACKEND)
    torch.testing.assert_close(compiled(x), x.sin() + 1)
    return "works"


FEATURES: Mapping[str, Callable[[str], str]] = {
    "backward of a compiled function": _backward,
    "whole training step (AdamW)": _training_step,
    "`autograd.Function`": _custom_function,
    "attention": _attention,
    "changing sizes, one recompile": _changing_sizes,
    "branch on data": _graph_break,
    "`torch.cond`": _cond,
    "NumPy code": _numpy_code,
    "CUDA graphs (`reduce-overhead`)": _recorded,
    "pickled compiled module": _pickled,
    "`braze.export`": _exported,
    '`torch.compile(backend="braze")`': _by_torch_compile,
}


# --- records and the page ------------------------------------------------------------------------


def environment() -> str:
    """The environment's name: PyTorch and Python, major and minor."""
    torch_version = ".".join(torch.__version__.split(".")[:2])
    return f"PyTorch {torch_version}, Python {'.'.join(platform.python_version_tuple()[:2])}"


def measure(device: str) -> dict[str, dict[str, str]]:
    """The record of one device."""
    dtypes = {name: _guarded(lambda name=name: _in_dtype(device, name)) for name in DTYPES}  # type: ignore[misc]
    features = {
        name: _guarded(lambda program=program: program(device))  # type: ignore[misc]
        for name, program in FEATURES.items()
    }
    return {"dtypes": dtypes, "features": features}


def _guarded(program: Callable[[], str]) -> str:
    braze.reset()
    torch.manual_seed(0)
    try:
        return program()
    except Exception as error:
        return type(error).__name__


def support_table() -> str:
    """The page's tables, from the records."""
    records: dict[str, dict[str, dict[str, str]]] = json.loads(RECORDS.read_text())
    parts = []
    for kind in ("dtypes", "features"):
        heads = [name.replace(", ", "<br>") for name in records]
        parts.append(f"| {kind[:-1]} | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
        for name in DTYPES if kind == "dtypes" else FEATURES:
            cells = [record[kind].get(name, "") for record in records.values()]
            shown = f"`{name}`" if kind == "dtypes" else name
            parts[-1] += f"\n| {shown} | {' | '.join(cells)} |"
    return "\n\n".join(parts)


def main() -> None:
    """Measure every device of this machine, and keep the records."""
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    for device in devices():
        records[f"{environment()}, {device}"] = measure(device)
    RECORDS.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n")
    print(support_table())


if __name__ == "__main__":
    main()
