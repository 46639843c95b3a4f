"""What things are called, and that what is public says what it is."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator

from tests.architecture.tree import ROOT, listed, python_files, source_files, tree_paths

# Names that say nothing about what is inside.
EMPTY_NAMES = frozenset("util utils helper helpers manager managers ctx misc stuff".split())
# What the field calls so.
STANDARD_TERMS = frozenset({"PassManager"})

# Folders of one machine; written in pieces, so that this file passes.
MACHINE_PATH = re.compile("/(?:" + "|".join(("ro" + "ot", "wo" + "rk", "op" + "t/bz")) + ")/")
TEXT_SUFFIXES = frozenset({".py", ".md", ".toml", ".txt", ".cpp", ".h", ".json", ".yml", ""})


def test_module_and_class_names_say_something() -> None:
    empty = []
    for file in python_files():
        parts = {*file.path.stem.split("_"), *(part.lower() for part in file.path.parts[-3:-1])}
        if not parts.isdisjoint(EMPTY_NAMES):
            empty.append(file.name)
    for file in source_files():
        for node in file.nodes():
            if isinstance(node, ast.ClassDef) and node.name not in STANDARD_TERMS:
                words = {word.lower() for word in re.findall("[A-Z][a-z]*", node.name)}
                if not words.isdisjoint(EMPTY_NAMES):
                    empty.append(f"{file.name}:{node.lineno}: {node.name}")
    assert not empty, f"name it by what is inside:{listed(empty)}"


def test_public_functions_are_typed_and_documented() -> None:
    missing = []
    for file in source_files():
        for function, is_method in _public_functions(file.tree):
            place = f"{file.name}:{function.lineno} {function.name}"
            if function.returns is None:
                missing.append(f"{place}: no return type")
            missing += [f"{place}: no type for {name}" for name in _untyped(function)]
            # A decorator that enters a function into a table says what it is for.
            if not (is_method or function.decorator_list or ast.get_docstring(function)):
                missing.append(f"{place}: no docstring")
    assert not missing, listed(missing)


def _untyped(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    names = [argument.arg for argument in every if argument.annotation is None]
    return [name for name in names if name not in ("self", "cls")]


def _public_functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, bool]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            if not any(ast.unparse(d) == "overload" for d in node.decorator_list):
                yield node, False
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                    yield member, True


def test_modules_say_what_they_hold() -> None:
    silent = [f.name for f in source_files() if f.text.strip() and not ast.get_docstring(f.tree)]
    assert not silent, f"no docstring:{listed(silent)}"


def test_exports_exist() -> None:
    missing = []
    for file in source_files():
        if "\n__all__" in file.text:
            module = importlib.import_module(file.module)
            missing += [f"{file.name}: {n}" for n in module.__all__ if not hasattr(module, n)]
    assert not missing, listed(missing)


def test_no_paths_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tree_paths()
        if path.suffix in TEXT_SUFFIXES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not found, listed(found)
