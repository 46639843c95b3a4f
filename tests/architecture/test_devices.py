"""No card is in the code: what a decision takes of a GPU is a field of its DeviceModel."""

from __future__ import annotations

import ast
import re

from tests.architecture.tree import listed, source_files

_WHERE = ("schedule", "codegen", "runtime", "rewrite", "devices")
# Numbers that only one card has: its processors, and rates a second.
_COUNTS = frozenset({108, 114, 132, 264, 528, 1056})
_RATES = (1e10, 1e15)
_NAME = re.compile(r"PROCESSOR|BANDWIDTH|FLOPS")


def test_no_counts_and_rates_of_one_card() -> None:
    found = [
        f"{file.name}:{node.lineno}: {ast.unparse(node)}: a field of ir/device_model.py"
        for file in source_files()
        if file.layer in _WHERE and file.name != "src/braze/schedule/target.py"
        for node in file.nodes()
        if _is_of_a_card(node)
    ]
    assert not found, listed(found)


def _is_of_a_card(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store) and bool(_NAME.search(node.id))
    if not isinstance(node, ast.Constant):
        return False
    value = node.value
    return (type(value) is int and value in _COUNTS) or (
        type(value) is float and _RATES[0] <= value < _RATES[1]
    )
