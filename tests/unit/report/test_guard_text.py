"""Guards as lines of text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from braze.ir.captured.guard import ABSENT, Guard, GuardKind, TensorFacts
from braze.ir.captured.guard_tree import build_guard_tree
from braze.ir.captured.print_guards import format_guard, format_guard_tree
from braze.ir.captured.source import AttributeSource, ItemSource, LocalSource
from braze.ir.origin import Origin
from braze.report.guard_text import format_failures

X = LocalSource("x")
FACTS = TensorFacts(torch.Tensor, torch.float32, torch.device("cpu"), True, (None, 3), (3, 1))


@pytest.mark.parametrize(
    ("guard", "text"),
    [
        (
            Guard(X, GuardKind.TENSOR_MATCH, FACTS, Origin("model.py", 7)),
            "model.py:7 TENSOR_MATCH L['x']: Tensor f32[?, 3][3, 1]cpu, requires_grad",
        ),
        (Guard(X, GuardKind.EQUALS_MATCH, 3), "EQUALS_MATCH L['x']: 3"),
        (Guard(X, GuardKind.TYPE_MATCH, torch.nn.Linear), "TYPE_MATCH L['x']: Linear"),
        (Guard(X, GuardKind.ID_MATCH, torch.nn.Linear(2, 2)), "ID_MATCH L['x']: Linear"),
        (
            Guard(X, GuardKind.NAMESPACE, (("a", len), ("b", ABSENT))),
            "NAMESPACE L['x']: a, b",
        ),
        (Guard(X, GuardKind.DICT_LACKS, frozenset("ba")), "DICT_LACKS L['x']: a, b"),
        (
            Guard(None, GuardKind.FUNCTIONS, ((torch.nn.Linear.forward, None, None, None),)),
            "FUNCTIONS: Linear.forward",
        ),
        (Guard(X, GuardKind.EQUALS_MATCH, (1, 2)), "EQUALS_MATCH L['x']: (1, 2)"),
        (Guard(X, GuardKind.EQUALS_MATCH, ()), "EQUALS_MATCH L['x']: ()"),
        (Guard(None, GuardKind.NO_HOOKS, None), "NO_HOOKS"),
    ],
)
def test_guard_text(guard: Guard, text: str) -> None:
    assert format_guard(guard) == text


def test_long_values_are_cut() -> None:
    long: Any = "x" * 1000
    assert len(format_guard(Guard(X, GuardKind.EQUALS_MATCH, long))) < 200
    names = tuple((f"n{i}", None) for i in range(50))
    assert format_guard(Guard(X, GuardKind.NAMESPACE, names)).endswith("and 44 more")


def test_a_tree_of_guards_has_the_users_lines() -> None:
    place, y = Origin("model.py", 7, "forward"), LocalSource("y")
    layer = ItemSource(AttributeSource(LocalSource("self"), "layers"), 0)
    guards = [
        Guard(None, GuardKind.NO_HOOKS, None),
        Guard(LocalSource("self"), GuardKind.TYPE_MATCH, torch.nn.Linear, place),
        Guard(layer, GuardKind.EQUALS_MATCH, 3, place),
        Guard(None, GuardKind.DISTINCT, (X, y)),
        Guard(None, GuardKind.STORAGE_OVERLAP, ((X, y), (), (layer,))),
        Guard(X, GuardKind.SAME_OBJECT, y),
    ]
    text = format_guard_tree(build_guard_tree(guards))
    assert text.splitlines() == [
        "NO_HOOKS",
        "SAME_OBJECT L['x']: L['y']",
        "DISTINCT: L['x'], L['y']",
        "STORAGE_OVERLAP: [L['x'], L['y']], [], [L['self'].layers[0]]",
        "L['self']",
        "  TYPE_MATCH: Linear   # model.py:7",
        "  L['self'].layers",
        "    L['self'].layers[0]",
        "      EQUALS_MATCH: 3  # model.py:7",
        "L['x']",
        "L['y']",
    ]


def test_failures_are_numbered_by_entry() -> None:
    assert format_failures("forward", ["'L['n']' value mismatch"]) == (
        "forward again: 1 entry failed by\n  0: 'L['n']' value mismatch"
    )


SIZES = """\
FILE:+6 [dynamic] FILE:+7 in sized: s0 = L['x'].size()[0] in [2, inf] (5 now)
    z = part(x, y)
FILE:+6 [dynamic] FILE:+7 in sized: s1 = L['x'].size()[1] in [2, inf] (3 now)
    z = part(x, y)
FILE:+6 [dynamic] FILE:+7 in sized: s2 = L['y'].size()[0] in [2, inf] (3 now)
    z = part(x, y)
FILE:+6 [dynamic] FILE:+7 in sized: s3 = L['y'].size()[1] in [2, inf] (7 now)
    z = part(x, y)
FILE:+6 [dynamic] FILE:+1 in part: s0 >= 5 is guarded (s0 is 5 now)
    if x.shape[0] > 4:
FILE:+6 [dynamic] FILE:+3 in part: s1 == s2 is guarded (s1 is 3, s2 is 3 now)
    return x @ y
FILE:+6 [dynamic] FILE:+8 in sized: s3 == 7 is guarded (s3 is 7 now)
    return z + 1 if y.shape[1] == 7 else z
FILE:+6 [dynamic] FILE:+8 in sized: s3 = L['y'].size()[1] is specialised to 7
    return z + 1 if y.shape[1] == 7 else z
"""


def part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 4:
        x = x * 2
    return x @ y


def sized(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = part(x, y)
    return z + 1 if y.shape[1] == 7 else z


def test_sizes_are_said_with_the_lines_that_made_and_guarded_them(
    capfd: pytest.CaptureFixture[str],
) -> None:
    braze.set_logs("dynamic")
    try:
        braze.compile(sized, dynamic=True)(torch.randn(5, 3), torch.randn(3, 7))
    finally:
        braze.set_logs()
    first = part.__code__.co_firstlineno
    said = capfd.readouterr().err.replace(__file__, "FILE")
    for line in range(first, first + 12):  # as offsets, which edits above leave alone
        said = said.replace(f"FILE:{line} ", f"FILE:+{line - first} ")
    assert said == SIZES
