"""State is passed, never ambient: no module global is written after import."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.tree import SourceFile, source_files


@pytest.mark.parametrize("file", source_files(), ids=lambda file: file.name)
def test_no_global_statements(file: SourceFile) -> None:
    for node in ast.walk(file.tree):
        assert not isinstance(node, ast.Global), f"{file.name}:{node.lineno}: pass the state"


@pytest.mark.parametrize("file", source_files(), ids=lambda file: file.name)
def test_no_thread_locals_at_module_level(file: SourceFile) -> None:
    for node in file.tree.body:
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
        ambient = called in ("threading.local", "local", "ContextVar", "contextvars.ContextVar")
        assert not ambient, f"{file.name}:{node.lineno}: pass the state"


@pytest.mark.parametrize("file", source_files(), ids=lambda file: file.name)
def test_environment_is_read_in_options_only(file: SourceFile) -> None:
    if file.layer == "options":
        return
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            assert name not in ("os.environ", "os.getenv"), f"{file.name}:{node.lineno}: {name}"
