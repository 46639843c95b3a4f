"""Braze is imported, and compiles, in processes that lack something or have another copy of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SOURCE = Path(__file__).parents[3] / "src"
_PROGRAM = """
import warnings
warnings.simplefilter("always")
import torch
import braze
f = braze.compile(lambda x: torch.relu(x + 1).sum(-1), fullgraph=True)
with torch.no_grad():
    assert torch.equal(f(torch.ones(3, 4)), torch.full((3,), 8.0))
assert sum(row.graphs for row in braze.status()) == 1
print(braze.config.cache_dir)
"""


def _run(program: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """A process with these changes of the environment; None takes a variable away."""
    kept = {k: v for k, v in (os.environ | environment).items() if v is not None}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=kept | {"PYTHONPATH": str(_SOURCE)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_imports_without_a_home() -> None:
    unknown = """
import os, pwd
def getpwuid(uid):
    raise KeyError(uid)
pwd.getpwuid, os.getuid = getpwuid, lambda: 54321
"""
    run = _run(unknown + _PROGRAM, HOME=None, XDG_CACHE_HOME=None, BRAZE_CACHE_DIR=None)
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()).name == "braze-54321"


@pytest.mark.parametrize("variable", ["BRAZE_NUMERICS", "BRAZE_LOGS", "BRAZE_VERIFY"])
def test_wrong_environment_is_warned_of(variable: str) -> None:
    run = _run(_PROGRAM, **{variable: "egaer"})
    assert run.returncode == 0, run.stderr
    assert f"BrazeWarning: {variable}='egaer' is ignored" in run.stderr
    valid = {"BRAZE_NUMERICS": "'fast'", "BRAZE_LOGS": "'graph_breaks'", "BRAZE_VERIFY": "0 or 1"}
    assert valid[variable] in run.stderr


def test_imports_beside_another_copy() -> None:
    again = """
import sys
first = braze
for name in [name for name in sys.modules if name.partition(".")[0] == "braze"]:
    del sys.modules[name]
"""
    written = """
y = torch.ones(3, requires_grad=True)
def g(x):
    z = x * 2
    with torch.no_grad():
        z.add_(1)
    return z.sum()
for copy in (first, braze):
    copy.compile(g)(y).backward()
assert first is not braze and torch.equal(y.grad, torch.full((3,), 4.0))
"""
    run = _run(_PROGRAM + again + _PROGRAM + written)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(("product", "told"), [("PyTorch", "99.0"), ("Python", "3.99")])
def test_newer_versions_are_warned_of_once(product: str, told: str) -> None:
    newer = {
        "PyTorch": "import torch; torch.__version__ = torch.torch_version.TorchVersion('99.0.1')\n",
        "Python": "import braze.compat.tested_versions as t; t.sys = type('S', (), "
        "{'version_info': (3, 99, 0)})\nimport braze.report.versions as v; v.warn_of_versions()\n",
    }
    run = _run(newer[product] + _PROGRAM)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count(f"{product} {told} is newer than the versions") == 1
