"""Text with sizes in it: messages of assertions, mostly, that nobody ever reads.

`f"expected 3, got {x.shape}"` shows the sizes at hand and specialises them only when the text is
used: compared, hashed, handed to native code or returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

from braze.compat.python.iterator_state import base_items
from braze.shapes.symbolic import ProgramInt


@final
class ShownText(str):
    """A text that depends on symbolic sizes. Every method of `str` specialises them first.

    made_at: the step of the outermost frame at which the first of them was shown."""

    __slots__ = ("made_at", "numbers")
    numbers: tuple[ProgramInt, ...]
    made_at: int

    def settle(self) -> str:
        """The plain text, from now on the same at every call."""
        for number in self.numbers:
            int(number)
        return "".join(str.__iter__(self))


def shown(text: str, numbers: Iterable[ProgramInt], made_at: int) -> ShownText:
    """A text that shows numbers."""
    made = ShownText(text)
    made.numbers = tuple(numbers)
    made.made_at = made_at
    return made


def symbolic_numbers(value: object) -> tuple[ProgramInt, ...]:
    """The symbolic integers that the text of a value shows."""
    if type(value) is ProgramInt:
        return (value,)
    return tuple([number for item in base_items(value) for number in symbolic_numbers(item)])


def at_hand(value: Any) -> object:
    """A value with numbers in the place of symbols."""
    if type(value) is ProgramInt:
        return value.hint
    if issubclass(type(value), (tuple, list)):
        return type(value)([at_hand(item) for item in value])
    return value


def joined(parts: Iterable[str]) -> str:
    """`"".join(parts)`; with sizes in a part, a text that shows them."""
    parts = list(parts)
    showing = [part for part in parts if type(part) is ShownText]
    if not showing:
        return "".join(parts)
    numbers = [number for part in showing for number in part.numbers]
    text = "".join(["".join(str.__iter__(part)) for part in parts])
    return shown(text, numbers, min(part.made_at for part in showing))


def _settling(name: str) -> Callable[..., object]:
    def method(self: ShownText, *args: object, **kwargs: object) -> object:
        plain = self.settle()
        others = [a.settle() if type(a) is ShownText else a for a in args]
        return getattr(plain, name)(*others, **kwargs)

    return method


_KEPT = {"__class__", "__new__", "__init__", "__init_subclass__", "__subclasshook__", "__doc__"}
_KEPT |= {"__getattribute__", "__setattr__", "__delattr__", "__dir__", "__sizeof__"}
SETTLING: dict[str, Any] = {name: _settling(name) for name in sorted(set(dir(str)) - _KEPT)}
for _name, _method in SETTLING.items():
    setattr(ShownText, _name, _method)
