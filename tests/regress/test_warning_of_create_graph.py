"""`backward(create_graph=True)` warns of a reference cycle, once in a process: compiled as in
eager, at the same place."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, warnings, torch, braze

def inside(w):
    loss = (w ** 2).sum()
    loss.backward(create_graph=True)
    return loss.detach()

def outside(w):
    return (w ** 2).sum()

name, backend = sys.argv[1:]
f = {"inside": inside, "outside": outside}[name]
run = braze.compile(f, backend=backend) if backend else f
for _ in range(3):
    w = torch.ones(3, requires_grad=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        loss = run(w)
        if name == "outside":
            loss.backward(create_graph=True)
    print([(s.category.__name__, s.filename, s.lineno, str(s.message)) for s in seen])
    print(w.grad.tolist(), w.grad.requires_grad)
    w.grad = None
"""


def seen(name: str, backend: str) -> str:
    command = [sys.executable, "-c", PROGRAM, name, backend]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", ["inside", "outside"])
def test_it_is_given_once_as_in_eager(name: str) -> None:
    eager = seen(name, "")
    assert eager.count("create_graph=True") == 1
    for backend in ("braze", "aot_eager"):
        assert seen(name, backend) == eager
