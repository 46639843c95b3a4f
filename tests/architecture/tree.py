"""The source tree, parsed once for all architecture tests."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "braze"

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, eq=False)
class SourceFile:
    """One Python file. name: its path from the repository's root; module: dotted, from `braze`;
    layer: the part of the compiler it belongs to ("lower", "api")."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def module(self) -> str:
        return _module_at(self.path)

    @property
    def layer(self) -> str:
        return layer_of(self.module)

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the syntax tree."""
        return _nodes(self.tree)

    def functions(self) -> Iterator[Function]:
        """Every function, nested ones too."""
        for node in self.nodes():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node

    def imports(self, *, for_types: bool = True) -> Iterator[tuple[str, int]]:
        """Dotted names of what is imported, with the line; `from a import b` gives `a.b`.

        for_types: also what only a type checker imports, under `if TYPE_CHECKING`.
        """
        only_types = {
            imported
            for node in self.nodes()
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for imported in node.body
        }
        for node in self.nodes():
            if node in only_types and not for_types:
                continue
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}:{node.lineno}: write the whole module name"
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


@functools.cache
def _nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a chain of attributes, from the first name on; "" for other nodes."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def layer_of(module: str) -> str:
    """The part of Braze that a dotted name belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def length(function: Function) -> int:
    """Lines from `def` to the end, docstring included, decorators not."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def module_names() -> Iterator[str]:
    """Dotted names of the package's modules, for imports: no file is read."""
    return map(_module_at, sorted(SOURCE.rglob("*.py")))


def _module_at(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def listed(problems: Iterable[str]) -> str:
    """Problems for an assertion's message, one a line."""
    return "".join(f"\n  {problem}" for problem in problems)


@functools.cache
def source_files() -> tuple[SourceFile, ...]:
    """Every Python file of the package."""
    return tuple(_parse(path) for path in sorted(SOURCE.rglob("*.py")))


@functools.cache
def python_files() -> tuple[SourceFile, ...]:
    """Every Python file of the repository."""
    return tuple(_parse(path) for path in tree_paths() if path.suffix == ".py")


@functools.cache
def tree_paths() -> tuple[Path, ...]:
    """Every file of the repository that git keeps or would keep."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        paths = [ROOT / line for line in listed.stdout.splitlines()]
    else:  # an unpacked archive has no git
        folders = ("src", "tests", "benchmarks", "docs")
        paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return tuple(sorted({path for path in paths if path.is_file()}))


def _parse(path: Path) -> SourceFile:
    text = path.read_text()
    return SourceFile(path, text, ast.parse(text, str(path)))
