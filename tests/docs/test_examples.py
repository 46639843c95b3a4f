"""Every example runs, and says so; the notebook is executed cell by cell."""

from __future__ import annotations

import ast
import os
import runpy
import sys
from pathlib import Path

import pytest

import braze
from tests.architecture.tree import ROOT

FOLDER = ROOT / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(
    example: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    braze.reset()
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    book = nbformat.read(notebook, as_version=4)
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "", "language": "python"}
    client = NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    km = client.create_kernel_manager()
    km.kernel_spec.argv[0] = sys.executable
    client.execute()
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert cells and all(cell.execution_count for cell in cells)


def test_every_example_is_in_the_list() -> None:
    text = (FOLDER / "README.md").read_text()
    assert EXAMPLES and NOTEBOOKS
    missing = [path.name for path in [*EXAMPLES, *NOTEBOOKS] if f"({path.name})" not in text]
    assert not missing, missing


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_checks_what_it_shows(example: Path) -> None:
    tree = ast.parse(example.read_text())
    checks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.Attribute) and node.attr == "assert_close")
    ]
    assert checks and ast.get_docstring(tree)
