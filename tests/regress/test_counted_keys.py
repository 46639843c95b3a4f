"""Keys that count their `__eq__` and `__hash__` in the frame's own state: as often as in eager.

The operations are those of `dir` of dicts and sets, with every arrangement of arguments that they
take, and those that Python has syntax for; the container is made in the frame or comes from
outside.
"""

from __future__ import annotations

import collections
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze


class Key:
    """Equal by a number. counts: questions so far, by their kinds."""

    counts = [0, 0]

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        Key.counts[0] += 1
        return isinstance(other, Key) and self.number == other.number

    def __hash__(self) -> int:
        Key.counts[1] += 1
        return hash(self.number)


# Of memory, attributes and classes; and the ones whose text names no key.
_NO_LOOKUPS = {*dir(object), "__class_getitem__"} - {"__eq__", "__ne__", "__init__"}
CONTAINERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "dict": (dict, lambda x: {Key(1): x, Key(2): 3}),
    "comprehension": (dict, lambda x: {key: x for key in [Key(1), Key(2), Key(1)]}),  # noqa: C420
    "update": (dict, lambda x: dict([(Key(1), x), (Key(2), 3)])),  # noqa: C406
    "fromkeys": (dict, lambda x: dict.fromkeys([Key(1), Key(2)], x)),
    "ordered": (collections.OrderedDict, lambda x: collections.OrderedDict({Key(1): x})),
    "default": (
        collections.defaultdict,
        lambda x: collections.defaultdict(list, {Key(1): x, Key(2): 3}),
    ),
    "set": (set, lambda x: {Key(1), Key(2)}),
    "set comprehension": (set, lambda x: {key for key in [Key(1), Key(2), Key(1)]}),  # noqa: C416
    "frozen": (frozenset, lambda x: frozenset([Key(1), Key(2)])),
}
ARGUMENTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "nothing": lambda x: (),
    "a key": lambda x: (Key(1),),
    "an absent key": lambda x: (Key(9),),
    "a key and a tensor": lambda x: (Key(1), x),
    "an absent key and a number": lambda x: (Key(9), 7),
    "a dict": lambda x: ({Key(1): 7, Key(3): x},),
    "pairs": lambda x: ([(Key(1), 7), (Key(3), x)],),
    "keys": lambda x: ([Key(1), Key(3)],),
    "a set": lambda x: ({Key(1), Key(3)},),
    "two sets": lambda x: ({Key(1), Key(3)}, frozenset([Key(2), Key(4)])),
    "keywords": lambda x: ({Key(1): x},),
}
SYNTAX: dict[str, Callable[[Any, Any], Any]] = {
    "d[key]": lambda c, x: c[Key(1)],
    "d[key] = x": lambda c, x: operator.setitem(c, Key(1), x + 5),
    "d[absent] = x": lambda c, x: operator.setitem(c, Key(9), x + 5),
    "del d[key]": lambda c, x: operator.delitem(c, Key(1)),
    "key in d": lambda c, x: Key(1) in c,
    "{**d}": lambda c, x: {**c, Key(1): 1, **c},
    "{*c}": lambda c, x: {*c, Key(1), *c},
    "copies": lambda c, x: (type(c)(c), set(c), dict.fromkeys(c), list(c)),
    "tuples": lambda c, x: (Key(1), 2) in {(Key(1), 2): c},
    "sorted by": lambda c, x: [key for key in c if key == Key(2)],
    "Counter": lambda c, x: collections.Counter([*c, *c]),
}

# What an OrderedDict's C code looks up by itself: its class method reads what it made, and an
# iterator over one is copied between the pieces of a frame.
_LEFT = {collections.OrderedDict: ("fromkeys", "sorted by")}


def _operations(kind: Any) -> Iterator[tuple[str, Callable[[Any, Any], Any]]]:
    for name in sorted({*dir(kind)} - _NO_LOOKUPS):
        method = getattr(kind, name)
        for arranged, arguments in ARGUMENTS.items():
            keywords = {"extra": 1} if arranged == "keywords" else {}
            try:
                example = {"a": 1} if issubclass(kind, dict) else {"a"}
                method(kind(example), *arguments(1), **keywords)
            except TypeError:
                continue
            except KeyError:
                pass
            yield (
                f"{name} of {arranged}",
                lambda c, x, m=method, a=arguments, k=keywords: m(c, *a(x), **k),
            )
    yield from SYNTAX.items()


def _shown(value: Any) -> Any:
    """A value by what is in it."""
    if hasattr(value, "__next__"):
        return "iterator"
    if isinstance(value, Key):
        return f"K{value.number}"
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return [(_shown(k), _shown(v)) for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, map(_shown, value)))
    if isinstance(value, (list, tuple)) or type(value).__name__.startswith(("dict_", "odict_")):
        return list(map(_shown, value))
    return repr(value) if isinstance(value, (int, str, bool, type(None))) else type(value).__name__


def _outcome(step: Callable[..., Any], *args: Any) -> Any:
    Key.counts[:] = [0, 0]
    try:
        result = step(*args)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        return [*Key.counts], type(error).__name__
    counts = [*Key.counts]
    return counts, _shown(result)


@pytest.mark.parametrize("is_inside", [True, False], ids=["made", "outside"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_counts(container: str, is_inside: bool) -> None:
    kind, make = CONTAINERS[container]
    differ = []
    for name, operation in _operations(kind):
        if name.startswith(_LEFT.get(kind, ("-",))):
            continue

        def step(x: torch.Tensor, given: Any, operation: Any = operation) -> Any:
            c = make(x) if given is None else given
            result = operation(c, x)
            return c, result, x + 1

        def call(f: Callable[..., Any]) -> Any:
            x = torch.ones(2)
            return _outcome(f, x, None if is_inside else make(x))

        compiled = braze.compile(step, backend="eager")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for turn in range(2):
                expected, actual = call(step), call(compiled)
                if actual != expected:
                    differ.append(f"{name}, call {turn + 1}: eager {expected}, compiled {actual}")
    assert not differ, f"{len(differ)}\n" + "\n".join(differ)


def test_arrangements_are_taken() -> None:
    """The sweep is not empty: each kind has its methods."""
    names = {kind: {name for name, _ in _operations(kind)} for kind in (dict, set)}
    assert {"update of a dict", "pop of a key and a tensor", "__ior__ of pairs"} <= names[dict]
    assert {"add of a key", "difference_update of two sets", "__contains__ of a key"} <= names[set]
