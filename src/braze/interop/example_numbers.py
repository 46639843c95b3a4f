"""The numbers among a user compiler's example inputs, where a graph takes them at each call.

A compiler that runs the graph as it is never looks at them. One that traces the graph with its
example inputs would take a number for a constant, and what it makes would be silently wrong at the
next call. So it is given `ExampleNumber`, which notes that its value was asked. It is no
`torch.SymInt`: a product of a tensor and one of these is computed from a number that C++ made up.
A float reaches the graph as a tensor of one element; it is shown in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias, final

from braze.ir.captured.source import NumberSource, Source


@final
class ValueAsked(Exception):
    """The value of a number that changes from call to call was asked."""


@final
class ExampleNumber:
    """A number without its value. Whatever needs the value raises ValueAsked.

    name: what it is printed as. is_asked: whether something asked, since a compiler may catch that.
    """

    __slots__ = ("is_asked", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_asked = False

    def __repr__(self) -> str:
        return self.name

    def __copy__(self) -> ExampleNumber:
        return self

    def __deepcopy__(self, memory: object) -> ExampleNumber:
        return self

    def __getattr__(self, name: str) -> NoReturn:
        self.is_asked = True
        raise ValueAsked(f"{self.name} is another number at each call")


def _asking(name: str) -> Callable[..., NoReturn]:
    def ask(self: ExampleNumber, *arguments: object) -> NoReturn:
        self.__getattr__("value")

    ask.__name__ = name
    return ask


# What a number has of its own, and what objects answer without one.
_OF_VALUES = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__format__"}
for _name in ({*dir(int), *dir(float)} - set(dir(object))) | _OF_VALUES | {"__reduce_ex__"}:
    setattr(ExampleNumber, _name, _asking(_name))


Compiler: TypeAlias = Callable[[Any, Sequence[Any]], Callable[..., Any]]


@final
class NeedsConstants(Exception):
    """A compiler that looks at the numbers among its example inputs, or takes none."""


def hiding_numbers(
    compiler: Compiler, sources: Sequence[Source], example_inputs: Sequence[object]
) -> Compiler:
    """A compiler whose example inputs have no values where these are numbers. What it gives raises
    NeedsConstants where the compiler asked for one, or raised, which may be why."""
    places = [
        place
        for place, (source, given) in enumerate(zip(sources, example_inputs))
        if type(given) is int or type(source) is NumberSource
    ]
    if not places:
        return compiler

    def compile_for_all(graph: object, example_inputs: Sequence[object]) -> Callable[..., object]:
        hidden = {place: ExampleNumber(f"n{place}") for place in places}
        shown = [hidden.get(place, given) for place, given in enumerate(example_inputs)]
        try:
            made = compiler(graph, shown)
        except Exception as error:
            raise NeedsConstants(str(error)) from error
        if any(number.is_asked for number in hidden.values()):
            raise NeedsConstants("it asked for the value of a number")
        return made

    return compile_for_all
