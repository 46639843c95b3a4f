"""PyTorch and CPython lose a private name: Braze is imported, says so, and programs are right.

A part of the names is taken away here, another one for each week; BRAZE_ALL_NAMES=1, or `python -m
tests.unit.compat.names_removed`, takes all.
"""

from __future__ import annotations

import ast
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.architecture.tree import dotted, listed, source_files
from tests.unit.compat.names_removed import named, symbols

_ROOT = Path(__file__).parents[3]
# One essential name, one with a substitute, one that raises when it is used, one of a class.
_ALWAYS = (
    "torch._C:_dispatch_keys",
    "torch._C:_get_flash_sdp_enabled",
    "torch.nn.modules.lazy:LazyModuleMixin._infer_parameters",
    "torch._C:TensorBase._version",
)
_EACH = 24


def _chosen() -> list[str]:
    every = [*named(), *symbols()]
    if os.environ.get("BRAZE_ALL_NAMES"):
        return every
    week = datetime.date.today().isocalendar().week
    return [*_ALWAYS, *(name for name in every[week % _EACH :: _EACH] if name not in _ALWAYS)]


def test_losing_a_name_breaks_nothing_else() -> None:
    names = _chosen()
    run = subprocess.run(
        [sys.executable, "-m", "tests.unit.compat.names_removed", "torch:no_such_name", *names],
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": str(_ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    whole, *found = [json.loads(line) for line in run.stdout.splitlines()]
    assert whole["result"] == "right" and whole["graphs"] and not whole["other"], whole
    assert [row["name"] for row in found] == names
    for row in found:
        assert row["result"] == "right", row
        # Symbols of libraries have slower ways beside them, which are as good; and builds differ.
        is_silent = ":" not in row["name"] or row["name"] in named(["of_build"])
        assert row["named"] or is_silent, f"nothing is said of {row}"
    dispatch = next(row for row in found if row["name"] == "torch._C:_dispatch_keys")
    assert dispatch["graphs"] == 0, "an essential name is gone, and something was compiled"
    attention = next(row for row in found if row["name"] == "torch._C:_get_flash_sdp_enabled")
    assert attention["graphs"] == whole["graphs"], "a name with a substitute is gone"


def test_private_names_are_looked_up_in_one_place() -> None:
    # Modules whose functions are found by what they are called: none is taken for granted.
    lists = {"torch._C"}
    used = [
        f"{file.name}:{node.lineno}: {name} needs a row in private_names.py"
        for file in source_files()
        # Code of other Pythons is looked at where there is no PyTorch.
        if file.layer == "compat"
        and not file.name.endswith(("private_names.py", "compat/python/code_objects.py"))
        for node in file.nodes()
        if isinstance(node, ast.Attribute)
        and (name := dotted(node)).startswith(("torch.", "sys._", "warnings._"))
        and any(part.startswith("_") and part[1:2] != "_" for part in name.split("."))
        and name not in lists
        # Annotations; and a flag that is asked for in both of its forms.
        and not name.startswith(("torch._ops", "torch.fx._symbolic_trace"))
    ]
    imported = [
        f"{file.name}:{node.lineno}: {node.module} needs a row in private_names.py"
        for file in source_files()
        if not file.name.endswith(("private_names.py", "bytecode_versions.py"))
        for node in file.nodes()
        if isinstance(node, ast.ImportFrom)
        and node.level == 0
        and not (node.module or "").startswith(("braze", "__future__"))
        and any(p.startswith("_") for p in [*(node.module or "").split("."), *_names(node)])
    ]
    assert not used + imported, listed(used + imported)


def _names(node: ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names]
