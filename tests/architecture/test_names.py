"""What things are called, and that what is public says what it is."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, SourceFile, python_files, source_files, tree_paths

# Names that say nothing about what is inside.
EMPTY_NAMES = frozenset("util utils helper helpers manager managers ctx misc stuff".split())

# Folders of one machine; written in pieces, so that this file passes.
MACHINE_PATH = re.compile("/(?:" + "|".join(("ro" + "ot", "wo" + "rk", "op" + "t/bz")) + ")/")
TEXT_SUFFIXES = frozenset({".py", ".md", ".toml", ".txt", ".cpp", ".h", ".json", ".yml", ""})


@pytest.mark.parametrize("file", python_files(), ids=lambda file: file.name)
def test_module_and_class_names_say_something(file: SourceFile) -> None:
    parts = {*file.path.stem.split("_"), *(part.lower() for part in file.path.parts[-3:-1])}
    assert parts.isdisjoint(EMPTY_NAMES), f"{file.name}: name it by what is inside"
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ClassDef):
            words = {word.lower() for word in re.findall("[A-Z][a-z]*", node.name)}
            assert words.isdisjoint(EMPTY_NAMES), f"{file.name}:{node.lineno}: {node.name}"


@pytest.mark.parametrize("file", source_files(), ids=lambda file: file.name)
def test_public_functions_are_typed_and_documented(file: SourceFile) -> None:
    for function, is_method in _public_functions(file.tree):
        place = f"{file.name}:{function.lineno} {function.name}"
        assert function.returns is not None, f"{place}: no return type"
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
        for argument in every:
            typed = argument.annotation is not None or argument.arg in ("self", "cls")
            assert typed, f"{place}: argument {argument.arg} has no type"
        # A decorator that enters a function into a table says what it is for.
        documented = is_method or function.decorator_list or ast.get_docstring(function)
        assert documented, f"{place}: no docstring"


def _public_functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, bool]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            if not any(ast.unparse(d) == "overload" for d in node.decorator_list):
                yield node, False
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                    yield member, True


@pytest.mark.parametrize("file", source_files(), ids=lambda file: file.name)
def test_modules_say_what_they_hold(file: SourceFile) -> None:
    assert not file.text.strip() or ast.get_docstring(file.tree), f"{file.name}: no docstring"


@pytest.mark.parametrize("file", source_files(), ids=lambda file: file.name)
def test_exports_exist(file: SourceFile) -> None:
    if "__all__" in file.text:
        module = importlib.import_module(file.module)
        missing = [name for name in module.__all__ if not hasattr(module, name)]
        assert not missing, f"{file.name} exports {missing}"


def text_files() -> list[Path]:
    return [path for path in tree_paths() if path.suffix in TEXT_SUFFIXES]


@pytest.mark.parametrize("path", text_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_paths_of_one_machine(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        assert not MACHINE_PATH.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
