"""Who may import whom: dependencies point one way, and siblings share nothing but IR."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.tree import SourceFile, dotted, layer_of, listed, source_files

BASE = frozenset({"class_facts", "frozen", "errors", "options", "trace", "marks", "compat"}) | {
    "locks",
    "regions",
    "labels",
    "compile_time",
    "kept_texts",
    "kernel_times",
    "compile_records",
    "version",
    "environment",
}
DATA = BASE | {"ir", "shapes"}
STAGES = frozenset("capture autograd rewrite lower schedule codegen runtime report debug".split())

# layer -> the other layers that it may import.
ALLOWED: dict[str, frozenset[str]] = {
    "frozen": frozenset(),
    "locks": frozenset(),
    "version": frozenset(),
    "errors": frozenset({"frozen"}),
    "exc": frozenset({"errors"}),
    "environment": frozenset({"frozen", "errors"}),
    "options": frozenset({"frozen", "errors", "locks", "environment"}),
    "kept_texts": frozenset({"frozen"}),
    "kernel_times": frozenset({"frozen", "locks"}),
    "compile_records": frozenset({"frozen", "errors", "locks", "kept_texts"}),
    "trace": frozenset({"frozen", "locks", "kept_texts", "kernel_times", "compile_records"}),
    "marks": frozenset({"frozen", "errors", "locks"}),
    "regions": frozenset(),
    "labels": frozenset({"compat"}),
    "compile_time": frozenset(),
    "class_facts": frozenset(),
    "compat": frozenset({"class_facts", "frozen", "errors", "locks"}),
    "shapes": frozenset({"frozen", "errors", "compat"}),
    "ir": frozenset({"frozen", "errors", "locks", "compat", "shapes", "kernel_times"})
    | {"kept_texts"},
    "tracing": DATA,
    # What outlasts a process. Beside it only its command line, and what builds kernels, know it.
    "cache": BASE,
    "command_line": BASE
    | {"cache", "api", "installation", "runtime", "diagnose", "stances", "report"},
    "__main__": frozenset({"command_line"}),
    **{stage: DATA | {"tracing"} for stage in STAGES},
    "runtime": DATA | {"tracing", "cache"},
    # torch_compile is the way in from PyTorch: it calls the face as a user does.
    "interop": DATA | {"api"},
    # What differs between devices: the last three stages of each.
    "devices": DATA | {"schedule", "codegen", "runtime"},
    "pipeline": DATA | STAGES | {"tracing", "interop", "devices", "diagnose"},
    # What is compiled is called through the runtime.
    "targets": DATA | {"pipeline", "runtime", "interop"},
    # Programs as files. What loads them knows the runtime alone; `packaging` writes them.
    "packages": DATA | {"runtime"},
    "packaging": DATA | {"packages", "pipeline", "targets", "devices", "runtime", "interop"},
    # What the stages compute, one behind the other, beside eager.
    "diagnose": DATA | STAGES | {"tracing", "interop", "devices"},
    # Of the stages the face knows only reports, which it hands to the user.
    "api": BASE | {"targets", "interop", "report", "diagnose", "packages", "packaging", "disabled"},
    "disabled": BASE | {"targets"},
    # A second face beside it, for a class: what everything compiled does for a while.
    "stances": BASE | {"targets", "interop", "runtime"},
    # What else calls it, by PyTorch's name.
    "installation": BASE | {"api", "interop", "options", "packages", "stances"},
    "__init__": frozenset(
        "api compile_time environment exc installation options report stances version".split()
    ),
}

# file -> why it imports inside a function.
LATE_IMPORTS: dict[str, str] = {
    "src/braze/devices/__init__.py": "what serves a GPU takes memory, and few processes have one",
    "src/braze/interop/backends.py": "foreign compilers cost seconds and are rarely asked for",
    "src/braze/report/printed_report.py": "tables take memory, and are rarely asked for",
    "src/braze/report/html_report.py": "an optional dependency, for the one command that needs it",
}

# Private names of torch go through compat; the class of an operator has no public name.
PRIVATE_EVERYWHERE = ("torch._ops",)
# Files that were written before the rule had a test. May only shrink.
PRIVATE_STILL = frozenset(
    {
        "src/braze/capture/calls/torch_calls.py",
        "src/braze/capture/calls/torch_allowlist.py",
        "src/braze/tracing/fake_tensor.py",
    }
)

# What Braze replaces. Only interop may run it, as somebody else's backend.
REPLACED_MODULES = ("torch._dynamo", "torch._inductor", "torch._functorch")
REPLACED_NAMES = frozenset(
    {"FakeTensor", "FakeTensorMode", "make_fx", "ShapeEnv", "proxy_tensor", "aot_autograd"}
)


def test_every_part_has_a_layer() -> None:
    unknown = {file.name for file in source_files() if file.layer not in ALLOWED}
    assert not unknown, f"say in ALLOWED what these may import: {sorted(unknown)}"


def test_imports_stay_in_their_layers() -> None:
    wrong = []
    for file in source_files():
        for imported, line in file.imports():
            layer = layer_of(imported)
            if imported.count(".") == 1 and layer not in ALLOWED:
                layer = "__init__"  # `from braze import compile`: a name of the face
            ours = imported.split(".")[0] == "braze"
            if ours and layer != file.layer and layer not in ALLOWED[file.layer]:
                wrong.append(f"{file.name}:{line}: {file.layer} must not import {imported}")
    assert not wrong, listed(wrong)


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


def test_no_imports_inside_functions() -> None:
    late = [
        f"{file.name}:{node.lineno}: import at the top of the file"
        for file in source_files()
        if file.name not in LATE_IMPORTS
        for function in file.functions()
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom)) or _is_import_call(node)
    ]
    assert not late, listed(late)


def _is_import_call(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else None
    if isinstance(node.func, ast.Name):
        called = node.func.id
    return called in ("import_module", "__import__")


def test_private_names_of_torch_go_through_compat() -> None:
    used = [
        f"{file.name}:{node.lineno}: {name}"
        for file in source_files()
        if file.layer not in ("compat", "interop") and file.name not in PRIVATE_STILL
        for node in file.nodes()
        if isinstance(node, ast.Attribute)
        and (name := dotted(node)).startswith("torch._")
        and not name.startswith(PRIVATE_EVERYWHERE)
    ]
    assert not used, listed(used)


def test_what_braze_replaces_is_not_used() -> None:
    used = [
        f"{file.name}:{line}: {name} belongs to what Braze replaces"
        for file in source_files()
        if file.layer != "interop"
        for name, line in _mentioned(file)
        if _is_replaced(name)
    ]
    assert not used, listed(used)


def _is_replaced(name: str) -> bool:
    in_module = any(f"{name}.".startswith(f"{module}.") for module in REPLACED_MODULES)
    return in_module or not REPLACED_NAMES.isdisjoint(name.split("."))


def _mentioned(file: SourceFile) -> Iterator[tuple[str, int]]:
    """Dotted names in code, and strings that could be imported. Tables in compat may hold names
    as strings: capture recognises calls into PyTorch's compiler by them, without importing it."""
    yield from file.imports()
    for node in file.nodes():
        if isinstance(node, (ast.Attribute, ast.Name)):
            yield dotted(node), node.lineno
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " not in node.value
            and file.layer != "compat"
        ):
            yield node.value, node.lineno
