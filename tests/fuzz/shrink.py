"""A failing program made small: statements, steps and expressions dropped while it still fails."""

from __future__ import annotations

import ast
import copy
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, final

from tests.fuzz.program import Program
from tests.fuzz.runner import TimedOut

Fails = Callable[[Program], bool]
Edit: TypeAlias = Callable[[], None]
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
_LITERALS: tuple[Any, ...] = (0, 1, None, True)


def shrink(program: Program, fails: Fails, seconds: float = 60.0) -> Program:
    """The smallest program found by deleting parts for at most so long, such that `fails`."""
    search = _Search(program, fails, time.monotonic() + seconds)
    while search.round():
        pass
    return search.best


@final
class _Search:
    def __init__(self, program: Program, fails: Fails, end: float) -> None:
        self.best = program
        self._fails = fails
        self._end = end

    def round(self) -> bool:
        """One pass over steps, statements and expressions; whether anything went away."""
        before = self.best
        self._drop_steps()
        for edits in (_deletions, _hoistings, _simplifications):
            self._shrink_text(edits)
        for index in range(len(self.best.steps)):
            self._shrink_step(index)
        return self.best is not before and not self._is_over()

    def _is_over(self) -> bool:
        return time.monotonic() > self._end

    def _accept(self, candidate: Program) -> bool:
        if self._is_over() or not any("run(" in step for step in candidate.steps):
            return False
        try:
            failing = self._fails(candidate)
        except (Exception, TimedOut):  # a candidate may be no program at all, or never end
            return False
        if failing:
            self.best = candidate
        return failing

    def _drop_steps(self) -> None:
        for size in (4, 2, 1):
            position = 0
            while position < len(self.best.steps):
                steps = self.best.steps
                rest = steps[:position] + steps[position + size :]
                if not self._accept(dataclasses.replace(self.best, steps=rest)):
                    position += size

    def _shrink_text(self, edits: Callable[[ast.Module], Iterator[Edit]]) -> None:
        """Try each edit by number; after one that is kept, its number is another edit."""
        number = 0
        while not self._is_over():
            text = _edited(self.best.text, edits, number)
            if text is None:
                return
            smaller = dataclasses.replace(self.best, text=text)
            if text == self.best.text or not self._accept(smaller):
                number += 1

    def _shrink_step(self, index: int) -> None:
        number = 0
        while not self._is_over():
            steps = self.best.steps
            text = _edited(steps[index], _simplifications, number)
            if text is None:
                return
            rest = (*steps[:index], text, *steps[index + 1 :])
            keeps_call = ("run(" in text) == ("run(" in steps[index])
            smaller = dataclasses.replace(self.best, steps=rest)
            if text == steps[index] or not keeps_call or not self._accept(smaller):
                number += 1


def _edited(text: str, edits: Callable[[ast.Module], Iterator[Edit]], number: int) -> str | None:
    """The text after the edit of this number (as it was, if the result is no program); None if
    there are not so many."""
    tree = ast.parse(text)
    edit = next(itertools.islice(edits(tree), number, None), None)
    if edit is None:
        return None
    edit()
    try:
        changed = ast.unparse(ast.fix_missing_locations(tree))
        compile(changed, "<shrinking>", "exec", ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError, TypeError, AttributeError):
        return text
    return changed


def _bodies(tree: ast.Module) -> Iterator[tuple[str, list[Any]]]:
    for node in ast.walk(tree):
        for name in _BODIES:
            body = getattr(node, name, None)
            if isinstance(body, list):
                yield name, body


def _deletions(tree: ast.Module) -> Iterator[Edit]:
    """Statements away, in runs of several first."""
    for size in (8, 3, 1):
        for name, body in _bodies(tree):
            for start in range(len(body) - size, -1, -size):
                yield lambda name=name, body=body, start=start, size=size: _delete(  # type: ignore[misc]
                    name, body, start, size
                )


def _delete(name: str, body: list[Any], start: int, size: int) -> None:
    is_handler = isinstance(body[start], ast.ExceptHandler)
    del body[start : start + size]
    if not body and name == "body" and not is_handler:
        body.append(ast.Pass())


def _hoistings(tree: ast.Module) -> Iterator[Edit]:
    """A block replaced by what is in it."""
    kept = (ast.ClassDef, ast.FunctionDef, ast.ExceptHandler)
    for _, body in _bodies(tree):
        for index, child in enumerate(body):
            for name in () if isinstance(child, kept) else _BODIES[:3]:
                inner = getattr(child, name, None)
                if inner:
                    where = slice(index, index + 1)
                    yield lambda body=body, where=where, inner=inner: body.__setitem__(where, inner)  # type: ignore[misc]


def _simplifications(tree: ast.Module) -> Iterator[Edit]:
    """An expression replaced by one of its parts or by a literal; an argument dropped."""
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                for index, child in enumerate(value):
                    if isinstance(child, (ast.expr, ast.keyword)):
                        yield lambda value=value, index=index: value.pop(index)  # type: ignore[misc]
                        for other in _replacements(child):
                            yield lambda value=value, index=index, other=other: value.__setitem__(  # type: ignore[misc]
                                index, other
                            )
            elif isinstance(value, ast.expr):
                for other in _replacements(value):
                    yield lambda node=node, name=name, other=other: setattr(node, name, other)  # type: ignore[misc]


def _replacements(node: ast.AST) -> Iterator[Any]:
    if isinstance(node, (ast.keyword, ast.Constant, ast.Name)):
        return
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.expr):
            yield copy.deepcopy(part)
    for literal in _LITERALS:
        yield ast.Constant(literal)
