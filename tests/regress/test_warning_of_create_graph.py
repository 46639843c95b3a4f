"""`backward(create_graph=True)` warns of a reference cycle, once in a process: compiled as in
eager, at the same place."""

from __future__ import annotations

import json
import subprocess
import sys

# Each function under each backend in a process of its own, all made by one that imports.
PROGRAM = """
import json, os, sys, warnings, torch, braze

def inside(w):
    loss = (w ** 2).sum()
    loss.backward(create_graph=True)
    return loss.detach()

def outside(w):
    return (w ** 2).sum()

def seen(f, backend):
    run = braze.compile(f, backend=backend) if backend else f
    for _ in range(3):
        w = torch.ones(3, requires_grad=True)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            loss = run(w)
            if f is outside:
                loss.backward(create_graph=True)
        yield [(s.category.__name__, s.filename, s.lineno, str(s.message)) for s in seen]
        yield w.grad.tolist(), w.grad.requires_grad
        w.grad = None

for f in (inside, outside):
    for backend in ("", "braze", "aot_eager"):
        child = os.fork()
        if not child:
            print(json.dumps([f.__name__, backend, list(seen(f, backend))]), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{f.__name__} under {backend or 'eager'} has failed")
"""


def test_it_is_given_once_as_in_eager() -> None:
    command = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {(name, backend): seen for name, backend, seen in map(json.loads, output.splitlines())}
    for name in ("inside", "outside"):
        eager = found[name, ""]
        assert str(eager).count("create_graph=True") == 1
        assert found[name, "braze"] == found[name, "aot_eager"] == eager
