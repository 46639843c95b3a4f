"""Looking into the builtin iterators without advancing them, by what they say when pickled.

An iterator over a list says `(iter, (the list,), index)`, `zip` the iterators in it, an iterator
over a dict copies what is left. Failures are LookErrors: the iterator is of another kind, has
fewer items, or its dict has changed its size.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

LookError = TypeError


def reduced(iterator: Any) -> tuple[Any, ...]:
    """What a builtin iterator says when it is pickled: a callable, its arguments, a state where it
    has one. From Python 3.14 on those of itertools say nothing; the parts that they show to the
    garbage collector tell what is left of some. Raises TypeError of the others."""
    cls: Any = type(iterator)
    if cls.__reduce__ is not object.__reduce__ or cls not in _BY_PARTS:
        found: tuple[Any, ...] = iterator.__reduce__()
        return found
    parts = [part for part in gc.get_referents(iterator) if part is not cls]
    return _BY_PARTS[cls](iterator, *parts)


def _rest_of_chain(_: object, source: object = (), *active: object) -> tuple[object, ...]:
    return _chain, (source, *active)


def _chain(source: Any, *active: Any) -> Iterator[object]:
    """A chain that takes from the iterators of `source`, and first from the one that it is in."""
    return itertools.chain.from_iterable(itertools.chain(active, source))


def _rest_of_repeat(iterator: Any, element: object) -> tuple[object, ...]:
    left: tuple[int, ...]
    try:
        left = (iterator.__length_hint__(),)
    except TypeError:  # without end
        left = ()
    return itertools.repeat, (element, *left)


# The iterators of itertools whose parts say everything: no count of what they gave, no flag.
_BY_PARTS: dict[type, Callable[..., tuple[Any, ...]]] = {
    itertools.chain: _rest_of_chain,
    itertools.compress: lambda _, data, selectors: (itertools.compress, (data, selectors)),
    itertools.count: lambda iterator, *_: (itertools.count, _count(iterator)),
    itertools.filterfalse: lambda _, inner, test: (itertools.filterfalse, (test, inner)),
    itertools.repeat: _rest_of_repeat,
    itertools.starmap: lambda _, inner, function: (itertools.starmap, (function, inner)),
}


def _reduced(iterator: object) -> tuple[Any, ...]:
    try:
        return reduced(iterator)
    except RuntimeError as error:  # a dict that has changed its size
        raise LookError(str(error)) from None


def _sequence(iterator: object) -> tuple[Any, int]:
    said = _reduced(iterator)
    state = said[2] if len(said) > 2 else None
    return said[1][0], state or 0


def _builtin(items: object) -> Any:
    """The class whose methods the iterator goes by: those of a subclass it does not ask."""
    return next((base for base in (list, tuple) if issubclass(type(items), base)), type(items))


def _length(items: object) -> int:
    length: int = _builtin(items).__len__(items)
    return length


def _left_in_sequence(iterator: object) -> int:
    items, index = _sequence(iterator)
    return max(_length(items) - index, 0)


def _in_sequence(iterator: object, place: int) -> Any:
    items, index = _sequence(iterator)
    return _builtin(items).__getitem__(items, index + place)


def _left_backwards(iterator: object) -> int:
    items, index = _backwards(iterator)
    return max(min(index, _length(items) - 1) + 1, 0)


def _backwards(iterator: object) -> tuple[Any, int]:
    said = _reduced(iterator)
    return said[1][0], said[2] if len(said) > 2 else -1


def _in_backwards(iterator: object, place: int) -> Any:
    items, index = _backwards(iterator)
    if index < place:
        raise IndexError(place)
    return _builtin(items).__getitem__(items, index - place)


def inner_iterators(iterator: object) -> tuple[Any, ...]:
    """The iterators that an enumerate or zip advances."""
    if type(iterator) is zip:
        return tuple(_reduced(iterator)[1])
    return (_reduced(iterator)[1][0],) if type(iterator) is enumerate else ()


def _zipped(iterator: object) -> tuple[object, ...]:
    inner = inner_iterators(iterator)
    if len({id(each) for each in inner}) < len(inner) or len(_reduced(iterator)) > 2:
        raise LookError("a zip of one iterator twice, or a strict one")
    return inner


def _left_in_zip(iterator: object) -> int:
    return min(map(items_left, _zipped(iterator)), default=0)


def _in_zip(iterator: object, place: int) -> tuple[object, ...]:
    return tuple([peek(each, place) for each in _zipped(iterator)])


def _in_enumerate(iterator: object, place: int) -> Any:
    inner, count = _reduced(iterator)[1]
    return count + place, peek(inner, place)


def _count(iterator: object) -> tuple[Any, Any]:
    """The next number of a `count`, and its step. From Python 3.12 it warns where it is asked what
    it says when pickled."""
    if not all(type(held) in (int, float, type) for held in gc.get_referents(iterator)):
        raise LookError("a count of other numbers")
    texts = repr(iterator).removeprefix("count(").removesuffix(")").split(", ")
    try:
        start, *step = [float(t) if set(t) & set(".en") else int(t) for t in texts]
    except ValueError:  # an integer of too many digits
        raise LookError("a count of large numbers") from None
    return start, step[0] if step else 1


def _left_in_count(iterator: object) -> int:
    _count(iterator)
    return sys.maxsize


def _in_count(iterator: object, place: int) -> object:
    number, step = _count(iterator)
    if type(number) is int and type(step) is int:
        return number + place * step
    for _ in range(place):  # rounded each time
        number += step
    return number


# By class: (how many items are left, the item that comes after so many others).
_Row = tuple[Callable[[Any], int], Callable[[Any, int], Any]]
_BY_SEQUENCE: tuple[Any, ...] = (
    [],
    (),
    range(0),
    {},
    {}.values(),
    {}.items(),
    set(),
    OrderedDict(),
)
_LOOKS: dict[type, _Row] = {
    **{type(iter(each)): (_left_in_sequence, _in_sequence) for each in _BY_SEQUENCE},
    type(reversed([])): (_left_backwards, _in_backwards),
    enumerate: (lambda it: items_left(_reduced(it)[1][0]), _in_enumerate),
    zip: (_left_in_zip, _in_zip),
    itertools.count: (_left_in_count, _in_count),
}


def can_be_looked_into(iterator: object) -> bool:
    """Whether `items_left` and `peek` know the iterator, and those in it."""
    if type(iterator) not in _LOOKS:
        return False
    try:
        items_left(iterator)
    except LookError:
        return False
    return True


def items_left(iterator: object) -> int:
    """How many items an iterator has yet to give. Raises LookError."""
    row = _LOOKS.get(type(iterator))
    if row is None:
        raise LookError(f"a {type(iterator).__qualname__} cannot be looked into")
    return row[0](iterator)


def base_items(value: Any) -> Iterator[object]:
    """The items of a list or tuple by that class itself, not by the `__iter__` of a subclass; of
    anything else, nothing."""
    for base in (tuple, list):
        if issubclass(type(value), base):
            return base.__iter__(value)
    return iter(())


def peek(iterator: object, place: int) -> object:
    """The item that the iterator gives after `place` others. Raises LookError or IndexError."""
    row = _LOOKS.get(type(iterator))
    if row is None:
        raise LookError(f"a {type(iterator).__qualname__} cannot be looked into")
    return row[1](iterator, place)


def iterated_containers(iterator: object) -> tuple[object, ...]:
    """The lists, dicts and sets that are iterated over; those of an iterator that is over are
    gone. An iterator over a dict shows it to the garbage collector only."""
    kind = _CHANGING.get(type(iterator))
    found = gc.get_referents(iterator) if kind is not None else []
    found = [each for each in found if isinstance(each, kind)] if kind is not None else found
    return (*found, *itertools.chain(*map(iterated_containers, inner_iterators(iterator))))


_CHANGING: dict[type, type] = {
    type(iter([])): list,
    type(reversed([])): list,
    type(iter({})): dict,
    type(iter({}.values())): dict,
    type(iter({}.items())): dict,
    type(iter(OrderedDict())): OrderedDict,
    type(iter(set())): set,
}


def advance(iterator: Iterator[object], count: int, to_the_end: bool) -> None:
    """Take items; to_the_end: and ask once more, which an iterator that is over remembers."""
    for _ in range(count):
        next(iterator)
    if to_the_end:
        next(iterator, None)
