"""Takes private names of PyTorch and CPython away, one at a time, and runs a small program.

    python -m tests.unit.compat.names_removed                 # all names
    python -m tests.unit.compat.names_removed torch._C:_x     # some

One process imports PyTorch; a fork of it for each name removes the name, imports Braze, puts the
name back, since PyTorch itself needs it, and compiles. A line of JSON a name says what came of it.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import pkgutil
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint

_SOURCE = Path(__file__).parents[3] / "src" / "braze" / "compat"
# PyTorch and Python use these themselves while Braze is imported: they are hidden, not removed.
_NEEDED_BY_OTHERS = (
    "torch._ops:OpOverload",
    "torch._ops:OpOverloadPacket",
    "torch.library:_impls",
    "sys:_getframe",
    "warnings:_filters_mutated",
)
_NEEDED = ("essential", "optional", "of_build")


def named(needs: Iterable[str] = _NEEDED) -> list[str]:
    """The paths of all rows, read from the source: importing Braze would look them up. needs: how
    they are looked up."""
    text = (_SOURCE / "private_names.py").read_text()
    return re.findall(rf'(?:{"|".join(needs)})\(\s*"([^"]+:[^"]*)"', text)


def symbols() -> list[str]:
    """The symbols of PyTorch's libraries that are looked for by name."""
    found = []
    for name in ("torch/ambient_guards.py", "torch/tensor_abi.py"):
        text = (_SOURCE / name).read_text()
        found += re.findall(r'"((?:aoti_)?torch_\w+|_Z\w+)"', text)
    return sorted(set(found))


@contextmanager
def _without(path: str) -> Iterator[None]:
    """Nobody finds a name by its path, or by its module where that can be written to."""
    resolve = pkgutil.resolve_name

    def resolve_others(wanted: str) -> Any:
        if wanted == path:
            raise AttributeError(path)
        return resolve(wanted)

    home, name = resolve(path.rpartition(":")[0]), path.rpartition(":")[2]
    *places, name = name.split(".")
    if not name:
        home, name = resolve(path.rpartition(".")[0]), path.rpartition(".")[2].rstrip(":")
    for place in places:
        home = getattr(home, place)
    kept = None if path in _NEEDED_BY_OTHERS else vars(home).get(name)
    pkgutil.resolve_name = resolve_others
    removed = False
    try:
        if kept is not None:
            delattr(home, name)
            removed = True
    except (TypeError, AttributeError):  # of a class in C
        pass
    try:
        yield
    finally:
        pkgutil.resolve_name = resolve
        if removed:
            setattr(home, name, kept)


@contextmanager
def _without_symbol(symbol: str) -> Iterator[None]:
    """No library exports a symbol: for as long as the process lives."""
    found = ctypes.CDLL.__getattr__

    def find(library: ctypes.CDLL, name: str) -> Any:
        if name == symbol:
            raise AttributeError(name)
        return found(library, name)

    ctypes.CDLL.__getattr__ = find
    yield


def _program(braze: Any) -> int:
    """Inference, a training step with changed sizes, a module, views, autocast, a break, a mode.
    Gives how many graphs there are."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))

    def step(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        z = y[:, :1]
        with torch.no_grad():
            bias = x.mean() + len(x)
        torch._C._get_tracing_state()
        return (z * bias).relu().sum() + y.softmax(-1).square().mean()

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print(end="")
        return y.mul_(2).view(-1).cos()

    compiled, halves = braze.compile(step), braze.compile(broken)
    for rows in (3, 3, 5, 6):
        given = torch.randn(rows, 4)
        for function, ours in ((step, compiled), (broken, halves)):
            wanted, found = function(given.clone()), ours(given.clone())
            torch.testing.assert_close(found, wanted)
            if function is step:
                grads = []
                for loss in (wanted, found):
                    model.zero_grad()
                    loss.backward()
                    grads.append([p.grad.clone() for p in model.parameters()])
                torch.testing.assert_close(*grads)
    given = torch.randn(3, 4)
    with torch.inference_mode():
        torch.testing.assert_close(halves(given.clone()), broken(given.clone()))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(given), step(given))
    return sum(row.graphs for row in braze.status())


def _try(path: str) -> dict[str, Any]:
    """What came of it: `result` is "right", or the end of a traceback; `compiled`: how many graphs
    there are; `said`: the warnings that have the name."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        removed = _without(path) if ":" in path else _without_symbol(path)
        stage = "import"
        graphs = 0
        try:
            with removed:
                import braze
            stage = "program"
            graphs = _program(braze)
            result = "right"
        except BaseException:
            result = f"{stage}: " + traceback.format_exc()[-900:]
    name = path.replace(":", ".").rstrip(".")
    said = [str(w.message)[:300] for w in caught if issubclass(w.category, UserWarning)]
    named = [text for text in said if name in text]
    return {"name": path, "result": result, "graphs": graphs, "named": named, "other": len(said)}


def tried(paths: Sequence[str], at_once: int = 2) -> list[dict[str, Any]]:
    """Each path in a fork of its own."""
    assert "braze" not in sys.modules
    results = []
    for path in paths:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                text = json.dumps(_try(path))
            except BaseException as error:
                text = json.dumps({"name": path, "result": repr(error), "graphs": 0, "named": []})
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            text = answer.read()
        os.waitpid(child, 0)
        results.append(
            json.loads(text) if text else {"name": path, "result": "died", "graphs": 0, "named": []}
        )
    return results


def main() -> None:
    """Print a line of JSON a name."""
    paths = sys.argv[1:] or [*named(), *symbols()]
    torch.set_num_threads(1)
    for path in paths:
        (found,) = tried([path])
        builtins.print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
