"""Who may import whom: dependencies point one way, and siblings share nothing but IR."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.tree import SourceFile, layer_of, source_files

BASE = frozenset({"errors", "options", "trace", "marks", "compat"})
DATA = BASE | {"ir", "shapes"}
STAGES = frozenset(
    "capture autograd rewrite lower schedule codegen runtime cache report debug".split()
)

# layer -> the other layers that it may import.
ALLOWED: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "exc": frozenset({"errors"}),
    "options": frozenset({"errors"}),
    "trace": frozenset({"errors"}),
    "marks": frozenset({"errors"}),
    "compat": frozenset({"errors"}),
    "shapes": frozenset({"errors", "compat"}),
    "ir": frozenset({"errors", "compat", "shapes"}),
    "standins": DATA,
    **{stage: DATA | {"standins"} for stage in STAGES},
    # torch_compile is the way in from PyTorch: it calls the face as a user does.
    "interop": DATA | {"api"},
    "pipeline": DATA | STAGES | {"standins", "interop"},
    # Of the stages the face knows only reports, which it hands to the user.
    "api": BASE | {"pipeline", "interop", "report"},
    "__init__": frozenset({"api", "exc", "options", "report"}),
}

# file -> why it imports inside a function.
LATE_IMPORTS: dict[str, str] = {
    "src/braze/interop/backends.py": "foreign compilers cost seconds and are rarely asked for",
}

# What Braze replaces. Only interop may run it, as somebody else's backend.
REPLACED_MODULES = ("torch._dynamo", "torch._inductor", "torch._functorch")
REPLACED_NAMES = frozenset(
    {"FakeTensor", "FakeTensorMode", "make_fx", "ShapeEnv", "proxy_tensor", "aot_autograd"}
)


def files(*layers: str) -> list[SourceFile]:
    return [file for file in source_files() if not layers or file.layer in layers]


def test_every_part_has_a_layer() -> None:
    unknown = {file.name for file in source_files() if file.layer not in ALLOWED}
    assert not unknown, f"say in ALLOWED what these may import: {sorted(unknown)}"


@pytest.mark.parametrize("file", source_files(), ids=lambda file: file.name)
def test_imports_stay_in_their_layers(file: SourceFile) -> None:
    for imported, line in file.imports():
        if imported.split(".")[0] != "braze":
            continue
        layer = layer_of(imported)
        if imported.count(".") == 1 and layer not in ALLOWED:
            layer = "__init__"  # `from braze import compile`: a name of the face
        allowed = layer == file.layer or layer in ALLOWED[file.layer]
        assert allowed, f"{file.name}:{line}: {file.layer} must not import {imported}"


def test_no_cycles_between_files() -> None:
    modules = {file.module: file for file in source_files()}
    graph = {
        name: {_owner(imported, modules) for imported, _ in file.imports(for_types=False)}
        - {None, name}
        for name, file in modules.items()
    }
    state: dict[str, str] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert state.get(name) != "open", f"import cycle: {' -> '.join((*path, name))}"
        if name not in state:
            state[name] = "open"
            for imported in sorted(filter(None, graph[name])):
                visit(imported, (*path, name))
            state[name] = "done"

    for name in graph:
        visit(name, ())


def _owner(imported: str, modules: dict[str, SourceFile]) -> str | None:
    """The file that an imported dotted name lives in."""
    if imported in modules:
        return imported
    parent = imported.rpartition(".")[0]
    return parent if parent in modules else None


@pytest.mark.parametrize("file", source_files(), ids=lambda file: file.name)
def test_no_imports_inside_functions(file: SourceFile) -> None:
    if file.name in LATE_IMPORTS:
        return
    for function in file.functions():
        for node in ast.walk(function):
            late = isinstance(node, (ast.Import, ast.ImportFrom)) or _is_import_call(node)
            assert not late, f"{file.name}:{node.lineno}: import at the top of the file"


def _is_import_call(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else None
    if isinstance(node.func, ast.Name):
        called = node.func.id
    return called in ("import_module", "__import__")


@pytest.mark.parametrize("file", source_files(), ids=lambda file: file.name)
def test_what_braze_replaces_is_not_used(file: SourceFile) -> None:
    if file.layer == "interop":
        return
    for name, line in _mentioned(file):
        replaced = any(f"{name}.".startswith(f"{module}.") for module in REPLACED_MODULES)
        replaced = replaced or not REPLACED_NAMES.isdisjoint(name.split("."))
        assert not replaced, f"{file.name}:{line}: {name} belongs to what Braze replaces"


def _mentioned(file: SourceFile) -> Iterator[tuple[str, int]]:
    """Dotted names in code, and strings that could be imported. Tables in compat may hold names
    as strings: capture recognises calls into PyTorch's compiler by them, without importing it."""
    yield from file.imports()
    for node in ast.walk(file.tree):
        if isinstance(node, (ast.Attribute, ast.Name)):
            yield ast.unparse(node), node.lineno
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " not in node.value
            and file.layer != "compat"
        ):
            yield node.value, node.lineno
