"""No function or class of the source is there for nobody."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "braze"
_WORD = re.compile(r"[A-Za-z_]\w*")
_PLACES = ("src", "tests", "docs", "examples", "benchmarks", "README.md")


def _words() -> Counter[str]:
    found: Counter[str] = Counter()
    for place in _PLACES:
        top = ROOT / place
        for path in [top] if top.is_file() else top.rglob("*"):
            if path.suffix in {".py", ".cpp", ".h", ".md", ".html", ".js", ".toml", ".ipynb"}:
                found.update(_WORD.findall(path.read_text()))
    return found


def _definitions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Of a module, and the private methods of its classes: PyTorch and Python may ask for the
    others by name. What is decorated may be kept by its decorator."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and _is_private(method.name):
                    yield method
        elif isinstance(node, ast.FunctionDef) and not node.decorator_list:
            yield node


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_")


def unused() -> list[str]:
    words = _words()
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in _definitions(ast.parse(path.read_text()))
        if words[node.name] == 1
    ]


def test_every_definition_is_used() -> None:
    """A name that stands once in source, tests and documentation is its definition."""
    assert not unused(), "\n".join(["These are named nowhere else:", *unused()])


def test_a_definition_without_use_is_found() -> None:
    text = "def f(): ...\nclass A:\n    def g(self): ...\n    def _h(self): ...\n"
    text += "@keep\ndef kept(): ..."
    assert [node.name for node in _definitions(ast.parse(text))] == ["f", "A", "_h"]
