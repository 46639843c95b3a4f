"""What a piece of a program being written can see: places with their types, and fresh names."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar, final

Shape: TypeAlias = tuple[int, ...]
_Item = TypeVar("_Item")


@final
@dataclass(frozen=True, slots=True)
class Place:
    """An expression that can be read, and mostly assigned to.

    kind: "tensor", "int", "float", "bool", "str", "tensors" (list), "ints" (list), "table" (dict of
        str to tensors), "counts" (dict of str to ints), "set" (of ints), "box", "net", "function",
        "ops" (list of functions).
    shape, dtype: of a tensor ("f", "d", "i", "b").
    owner: "local", "global", "cell" (assigned after `nonlocal`), or "" (an attribute or item).
    written: whether it may be assigned to; inplace: whether a tensor may be written in place.
    """

    text: str
    kind: str
    shape: Shape = ()
    dtype: str = "f"
    owner: str = "local"
    written: bool = True
    inplace: bool = True


@final
@dataclass(slots=True)
class Draft:
    """What the whole program has in common: the random source, names, classes and functions."""

    rng: random.Random
    fuel: int = 60
    count: int = 0
    boxes: list[str] = field(default_factory=list)
    has_net: bool = False
    has_subclasses: bool = False

    def fresh(self, prefix: str) -> str:
        """A name that nothing has."""
        self.count += 1
        return f"{prefix}{self.count}"


@final
@dataclass(slots=True)
class Scope:
    """Places that can be seen at one point of one function.

    assigned: names of globals and cells that the function assigns, by owner.
    returns: the shape and dtype that the function returns; in_loop, in_function, in_generator:
        whether `break`, `return` and `yield` mean something.
    """

    draft: Draft
    places: list[Place] = field(default_factory=list)
    assigned: dict[str, str] = field(default_factory=dict)
    in_loop: bool = False
    in_function: bool = True
    depth: int = 0
    result: Place | None = None

    @property
    def rng(self) -> random.Random:
        return self.draft.rng

    def branch(self, *, in_loop: bool | None = None) -> Scope:
        """The scope of a block: what is new there is not seen after it."""
        loop = self.in_loop if in_loop is None else in_loop
        return replace(self, places=list(self.places), in_loop=loop, depth=self.depth + 1)

    def of(self, *kinds: str) -> list[Place]:
        """Places of these kinds."""
        return [place for place in self.places if place.kind in kinds]

    def add(self, place: Place) -> Place:
        """Make a place visible."""
        self.places = [p for p in self.places if p.text != place.text]
        self.places.append(place)
        return place

    def note_assignment(self, place: Place) -> None:
        """Remember that the function has to declare a name that it assigns."""
        if place.owner in ("global", "cell"):
            self.assigned[place.text] = place.owner

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self.rng.random() < probability

    def pick(self, items: Sequence[_Item]) -> _Item:
        """One of them."""
        return self.rng.choice(items)


Rule: TypeAlias = Callable[..., Any]


@final
class Rules:
    """Weighted ways to write something; a rule that does not apply gives None."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._rules: list[Rule] = []
        self._weights: list[float] = []

    def __call__(self, weight: float) -> Callable[[Rule], Rule]:
        """Register a rule."""

        def add(rule: Rule) -> Rule:
            self.names.append(rule.__name__)
            self._rules.append(rule)
            self._weights.append(weight)
            return rule

        return add

    def write(self, scope: Scope, *arguments: Any) -> Any:
        """What the first rule that applies gives, out of some drawn by weight; None if none."""
        for rule in scope.rng.choices(self._rules, self._weights, k=12):
            written = rule(scope, *arguments)
            if written is not None:
                return written
        return None
