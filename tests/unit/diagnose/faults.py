"""Faults that are planted in the compiler, one of each kind, and what is expected to be named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from braze.codegen.cpp import scope as cpp_scope
from braze.frozen import frozen
from braze.ir.kernels.loops import Definition, Guarded, Literal, Statement
from braze.ir.kernels.scalars import rebuild, replace_children
from braze.ir.passes import Pass
from braze.lower.rules import RULES
from braze.schedule import passes


@frozen
class Fault:
    """plant: breaks the compiler for a test. kind, stage, part: what is to be named; part "" for
    any. operator: one of the few that are left, in part."""

    plant: Callable[[pytest.MonkeyPatch], None]
    kind: str
    stage: str
    part: str = ""
    operator: str = ""


def _crash_in_lowering(patch: pytest.MonkeyPatch) -> None:
    def rule(call: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise ZeroDivisionError("planted")

    name = "aten.sigmoid.default"
    patch.setitem(RULES, name, replace(RULES[name], rule=rule))


def _wrong_index(patch: pytest.MonkeyPatch) -> None:
    name = "aten.constant_pad_nd.default"
    right = RULES[name].rule

    def rule(call: Any, source: Any, pad: Sequence[int], value: Any = 0) -> Any:
        first, last = pad[:2]
        step = 1 if last else -1
        return right(call, source, [first + step, last - step, *pad[2:]], value)

    patch.setitem(RULES, name, replace(RULES[name], rule=rule))


def _in_pass(patch: pytest.MonkeyPatch, name: str, after: Callable[[Any], Any]) -> None:
    def broken(each: Pass[Any, Any]) -> Pass[Any, Any]:
        if each.name != name:
            return each
        return replace(each, run=lambda program, state: after(each.run(program, state)))

    patch.setattr(passes, "STATEMENT_PASSES", tuple(map(broken, passes.STATEMENT_PASSES)))


def _wrong_constant(patch: pytest.MonkeyPatch) -> None:
    def rewrite(node: Any, below: Any) -> Any:
        if isinstance(node, Literal) and node.value == 1.0 and node.dtype.is_floating_point:
            return Literal(1.25, node.dtype)
        return replace_children(node, below)

    def after(statements: list[Statement]) -> list[Statement]:
        return [
            replace(s, body=rebuild(s.body, rewrite)) if isinstance(s, Definition) else s
            for s in statements
        ]

    _in_pass(patch, "inline", after)


def _reordering(patch: pytest.MonkeyPatch) -> None:
    _in_pass(patch, "split_reduction", lambda statements: statements[::-1])


def _missing_mask(patch: pytest.MonkeyPatch) -> None:
    def unguarded(scope: Any, scalar: Guarded, guard: Any) -> Any:
        return scope.emit(scalar.value, guard)

    patch.setitem(cpp_scope._EMITTERS, Guarded, unguarded)


def _mask_lost_in_pass(patch: pytest.MonkeyPatch) -> None:
    def rewrite(node: Any, below: Any) -> Any:
        found = replace_children(node, below)
        return found.value if isinstance(found, Guarded) else found

    def after(statements: list[Statement]) -> list[Statement]:
        return [
            replace(s, body=rebuild(s.body, rewrite)) if isinstance(s, Definition) else s
            for s in statements
        ]

    _in_pass(patch, "inline", after)


FAULTS = {
    "crash in lowering": Fault(_crash_in_lowering, "crash", "lower", operator="sigmoid"),
    "wrong constant": Fault(_wrong_constant, "wrong value", "schedule", "inline"),
    "wrong index": Fault(_wrong_index, "wrong value", "lower", operator="constant_pad_nd"),
    "missing mask": Fault(_missing_mask, "wrong value", "codegen", operator="constant_pad_nd"),
    "mask lost in a pass": Fault(_mask_lost_in_pass, "wrong value", "schedule", "inline"),
    "reordering": Fault(_reordering, "crash", "schedule", "split_reduction"),
}
