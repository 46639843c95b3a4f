"""Generated Python is defined in one place, so that no function is in its own globals."""

from __future__ import annotations

import ast
import gc
import types
import weakref
from typing import Any

from braze.ir.generated_code import define
from tests.architecture.tree import dotted, listed, source_files

# file -> why it calls `exec` itself.
_OWN_EXEC = {
    "src/braze/ir/generated_code.py": "the one place",
    "src/braze/compat/python/code_patching.py": "one function a process, whose code is copied",
    "src/braze/runtime/cuda/cubin_worker.py": "a process of its own, which ends",
}


def test_no_other_exec() -> None:
    found = [
        f"{file.name}:{node.lineno}: use braze.ir.generated_code.define"
        for file in source_files()
        if file.name not in _OWN_EXEC
        for node in file.nodes()
        if isinstance(node, ast.Call) and dotted(node.func) == "exec"
    ]
    assert not found, listed(found)


def test_a_function_of_parts_goes_without_the_collector() -> None:
    class Kept:
        pass

    kept: Any = Kept()
    texts = ["def part(x):\n    return kept, x\n", "def call(x, part=part):\n    return part(x)\n"]
    function = define(texts, "<test>", {"kept": kept})
    assert function(3) == (kept, 3) and type(function) is types.FunctionType
    going = weakref.ref(kept)
    gc.disable()
    try:
        del function, kept
        assert going() is None
    finally:
        gc.enable()
