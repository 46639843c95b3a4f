"""Symbols of inputs, and what is raised where one may not be a number and would have to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from braze.shapes.expr import Symbol


@final
@dataclass(slots=True)
class Unknown:
    """A symbol of an input.

    source: where its value is found. strict: the user marked it: it must not become a constant.
    unseen: and no question about it may be answered by the size at hand. now: that size.
    """

    symbol: Symbol
    source: Any
    strict: bool = False
    unseen: bool = False
    now: int | None = None


class SpecialisedError(BaseException):
    """A dimension that the user marked as dynamic was used as a constant. It passes through
    whatever asked for the constant; origin: where that was."""

    def __init__(self, message: str, origin: Any) -> None:
        super().__init__(message)
        self.origin = origin


class UnseenError(SpecialisedError):
    """The size of a dimension that the user marked as unbacked was asked for."""
