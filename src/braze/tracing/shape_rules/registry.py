"""The table of shape rules; a rule registers beside its code with `@rule(op, ...)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

RULES: dict[Any, Callable[..., Any]] = {}
VIEW_RULES: dict[Any, Callable[..., Any]] = {}

_Rule = TypeVar("_Rule", bound=Callable[..., Any])


def rule(*ops: object) -> Callable[[_Rule], _Rule]:
    """Register a rule for overloads; a second rule for an overload is an error."""

    def register(function: _Rule) -> _Rule:
        for op in ops:
            if op in RULES:
                raise ValueError(f"two shape rules for {op}")
            RULES[op] = function
        return function

    return register
