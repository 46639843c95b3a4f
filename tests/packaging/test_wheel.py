"""The wheel holds everything that runs: installed in an empty environment, it compiles a kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import torch

from tests.architecture.tree import ROOT, SOURCE

PROGRAM = """
import sys, torch, braze
assert braze.__file__.startswith(sys.prefix), braze.__file__
report = braze.explain(lambda x: torch.relu(x) * 2 + 1)(torch.ones(3))
assert report.graph_count == 1 and not report.extern_ops and not report.fallbacks, report
assert torch.equal(report.result, torch.full((3,), 3.0))
f = torch.compile(lambda x: x + 1, backend="braze")  # by the entry point
assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))
print(braze.__version__)
"""


def _run(*command: object, folder: Path) -> str:
    """What a command prints; raises AssertionError with its errors."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ran = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        (tree / name).symlink_to(ROOT / name)
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-cache-dir")
    _run(sys.executable, "-m", "pip", *build, "--wheel-dir", folder, tree, folder=folder)
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_source(wheel: Path) -> None:
    packed = {*zipfile.ZipFile(wheel).namelist()}
    kinds = (".py", ".cpp", ".h", ".typed")
    wanted = {
        str(path.relative_to(SOURCE.parent))
        for path in SOURCE.rglob("*")
        if path.suffix in kinds or path.name == "py.typed"
    }
    assert len(wanted) > 200
    assert not wanted - packed, sorted(wanted - packed)
    assert not [name for name in packed if name.startswith(("tests", "docs", "benchmarks"))]


@pytest.mark.slow
def test_the_installed_wheel_compiles_a_kernel(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    install = ("--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    _run(sys.executable, "-m", "pip", *install, folder=tmp_path)
    # PyTorch is large: the empty environment finds the one that is there, and not Braze.
    (site,) = (tmp_path / "venv" / "lib").glob("*/site-packages")
    found = Path(torch.__file__).parents[1]
    (site / "torch_of_the_tests.pth").write_text(f"{found}\n")
    printed = _run(python, "-I", "-c", PROGRAM, folder=tmp_path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert printed.split() == [project["version"]]
