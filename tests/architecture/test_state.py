"""State is passed, never ambient: no module global is written after import."""

from __future__ import annotations

import ast

from tests.architecture.tree import dotted, listed, source_files


def test_no_global_statements() -> None:
    written = [
        f"{file.name}:{node.lineno}: pass the state"
        for file in source_files()
        for node in file.nodes()
        if isinstance(node, ast.Global)
    ]
    assert not written, listed(written)


def test_no_thread_locals_at_module_level() -> None:
    ambient = [
        f"{file.name}:{node.lineno}: pass the state"
        for file in source_files()
        for node in file.tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        and isinstance(node.value, ast.Call)
        and dotted(node.value.func).split(".")[-1] in ("local", "ContextVar")
    ]
    assert not ambient, listed(ambient)


def test_environment_is_read_in_one_file_only() -> None:
    read = [
        f"{file.name}:{node.lineno}: {dotted(node)}"
        for file in source_files()
        if file.layer != "environment"
        for node in file.nodes()
        if isinstance(node, ast.Attribute) and dotted(node) in ("os.environ", "os.getenv")
    ]
    assert not read, listed(read)


_FACTORIES = (
    "arange empty empty_strided eye full linspace ones rand randn scalar_tensor tensor zeros"
).split()


def test_new_tensors_say_where_they_are() -> None:
    """Else they are where the program's `torch.set_default_device` says."""
    ambient = [
        f"{file.name}:{node.lineno}: pass device="
        for file in source_files()
        for node in file.nodes()
        if isinstance(node, ast.Call)
        and dotted(node.func) in {f"torch.{name}" for name in _FACTORIES}
        and not {"device", None} & {keyword.arg for keyword in node.keywords}
    ]
    assert not ambient, listed(ambient)
