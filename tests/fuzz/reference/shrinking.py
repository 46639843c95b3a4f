"""A failing program made small: idioms, then statements and expressions, dropped while it fails
alike."""

from __future__ import annotations

import ast
import dataclasses
import re
import time
from collections.abc import Callable
from typing import Any, cast, final

from tests.fuzz.reference.check import Found, check
from tests.fuzz.reference.program import Program
from tests.fuzz.reference.vocabulary import OPERATORS
from tests.fuzz.shrink import shrink

_NUMBERED = re.compile(r"(?<=[A-Za-z_])(\d+)[a-z]?$")
_PLAIN = frozenset(idiom.name for idiom in OPERATORS)


def shrunk(program: Program, found: Found, seconds: float) -> tuple[Program, Found]:
    """The smallest program that is found in so many seconds, and what differs in it."""
    end = time.monotonic() + seconds

    def fails(candidate: Any) -> bool:
        other = check(candidate).found
        return other is not None and other.key == found.key

    smaller = _with_few_idioms(program, fails, end)
    left = max(end - time.monotonic(), 0)
    smaller = cast(Program, shrink(cast(Any, smaller), fails, left))
    return smaller, check(smaller).found or found


def idioms_of(program: Program) -> list[str]:
    """The idioms of a program, but for plain operators."""
    return sorted({name for name in program.idioms.values() if name not in _PLAIN})


def idioms_left(program: Program) -> list[str]:
    """The idioms whose names a shrunk program still has, but for plain operators."""
    numbers = set(map(int, re.findall(r"(?<=[A-Za-z_])(\d+)[a-z]?\b", _code(program))))
    names = {program.idioms[number] for number in numbers if number in program.idioms}
    return sorted(names - _PLAIN or names)


def _code(program: Program) -> str:
    return "\n".join([program.text, *program.steps])


def _with_few_idioms(program: Program, fails: Callable[[Program], bool], end: float) -> Program:
    """Without all idioms but one, if one is enough; then without each that is not needed."""
    numbers = sorted(program.idioms)
    special = [number for number in numbers if program.idioms[number] not in _PLAIN]
    for number in special if len(numbers) > 1 else []:
        smaller = without(program, {one for one in numbers if one != number})
        if time.monotonic() < end and fails(smaller):
            return smaller
    for number in numbers:
        smaller = without(program, {number})
        if time.monotonic() < end and fails(smaller):
            program = smaller
    return program


def without(program: Program, numbers: set[int]) -> Program:
    """The program without some idioms: what they define goes away, and where other statements use
    their results, `x` and `n` stand instead."""
    tree = _Remover(numbers).visit(ast.parse(program.text))
    text = ast.unparse(ast.fix_missing_locations(tree))
    steps = tuple([step for step in program.steps if not _numbers_of(step) & numbers])
    idioms = {one: name for one, name in program.idioms.items() if one not in numbers}
    return dataclasses.replace(program, text=text, steps=steps, idioms=idioms)


def _numbers_of(text: str) -> set[int]:
    return set(map(int, re.findall(r"(?<=[A-Za-z_])(\d+)[a-z]?\b", text))) if text else set()


@final
class _Remover(ast.NodeTransformer):
    """Removes statements that belong to idioms of some numbers."""

    def __init__(self, numbers: set[int]) -> None:
        self._numbers = numbers

    def _is_of(self, name: str) -> bool:
        match = _NUMBERED.search(name)
        return match is not None and int(match[1]) in self._numbers

    def _is_theirs(self, node: ast.stmt) -> bool:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            marks = [node.name, *[ast.unparse(one) for one in node.decorator_list]]
            return any(self._is_of(name) for text in marks for name in re.findall(r"\w+", text))
        if isinstance(node, ast.Return):
            return False
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            words = [word for one in targets for word in re.findall(r"\w+", ast.unparse(one))]
            return any(map(self._is_of, words))
        if isinstance(node, (ast.Expr, ast.If, ast.With, ast.For, ast.While, ast.Try, ast.Match)):
            return any(map(self._is_of, re.findall(r"\w+", ast.unparse(node))))
        return any(map(self._is_of, re.findall(r"\w+", ast.unparse(node))))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                kept = [one for one in body if not self._is_theirs(one)]
                setattr(node, name, kept or ([ast.Pass()] if name == "body" else []))
        return super().generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not self._is_of(node.id):
            return node
        if node.id.startswith("o"):
            return ast.Constant(0)
        return ast.Name("n" if node.id.startswith("k") else "x", node.ctx)
