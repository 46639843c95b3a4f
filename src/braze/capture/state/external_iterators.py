"""Iterators that existed before the call: their next items are looked at, and taken after the graph
ran.

What is guarded is the items that the program saw and that there are so many, not how far the
iterator was: a loop that breaks the graph each time round comes back to the same entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from braze.capture.frames.control_signals import CannotRebuild, ProgramRaised
from braze.capture.state.side_effects import SideEffects
from braze.compat.python.iterator_state import (
    advance,
    can_be_looked_into,
    inner_iterators,
    items_left,
    iterated_containers,
    peek,
)
from braze.ir.captured.frame import CapturedCall, FromConstant, FromSource
from braze.ir.captured.guard import GuardKind
from braze.ir.captured.source import ItemSource, IteratedSource, PeekSource, Source

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def _parts(iterator: object) -> tuple[object, ...] | None:
    """Where the items of an iterator are tuples of its own: the iterator that each part is of
    (None: of none); else None."""
    if type(iterator) is enumerate:
        return (None, *inner_iterators(iterator))
    if type(iterator) is zip:
        return inner_iterators(iterator)
    return (None, None) if type(iterator) is type(iter({}.items())) else None


@final
class OutsideIterators:
    """Those that one attempt to capture a frame advances.

    _taken: identity -> (iterator, how many items the program took, whether it asked at the end,
    the step of the outermost loop that took the first).
    """

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._guard_context = interpreter.guard_context
        self._taken: dict[int, tuple[Any, int, bool, int]] = {}

    def release(self) -> None:
        """Let go of the capture."""
        del self._interpreter
        self._taken.clear()

    def knows(self, iterator: object) -> bool:
        """Whether a value is an iterator from outside whose items can be looked at."""
        return id(iterator) in self._guard_context.known and can_be_looked_into(iterator)

    def next(self, iterator: object) -> object:
        """The item that comes next; ProgramRaised(StopIteration) if there is none."""
        step = self._interpreter.outer_step
        _, taken, ended, step = self._taken.get(id(iterator), (iterator, 0, False, step))
        ended = ended or taken >= items_left(iterator)
        self._taken[id(iterator)] = (iterator, taken if ended else taken + 1, ended, step)
        if ended:
            raise ProgramRaised(StopIteration())
        source = PeekSource(self._guard_context.known[id(iterator)][1], taken)
        return self._taken_in(iterator, peek(iterator, taken), source)

    def _taken_in(self, iterator: object, item: Any, source: Source) -> object:
        """An item; a tuple that is made anew at each look is made here, too."""
        kinds = _parts(iterator)
        if kinds is None:
            self._guard_context.keep(item)
            return self._guard_context.wrap_value(item, source)
        parts = enumerate(zip(kinds, item, strict=True))
        return tuple([self._taken_in(k, part, ItemSource(source, i)) for i, (k, part) in parts])

    def finish(self, side_effects: SideEffects) -> list[CapturedCall]:
        """Guard what there must be left, and say how far each iterator goes. Raises CannotRebuild
        where an iterator sees what the program writes, or is advanced by another."""
        effects = []
        for iterator, taken, ended, step in self._taken.values():
            if inner_iterators(iterator) and len(self._taken) > 1:
                raise CannotRebuild("an iterator that another one may advance", step)
            source = self._guard_context.known[id(iterator)][1]
            self._keep_apart(iterator, source, side_effects, step)
            self._guard_context.guard(source, GuardKind.ITEMS_LEFT, (taken, ended))
            parts = (FromSource(source), FromConstant(taken), FromConstant(ended))
            effects.append(CapturedCall(advance, parts))
        return effects

    def _keep_apart(
        self, iterator: object, source: Source, side_effects: SideEffects, step: int
    ) -> None:
        """Guard that the program writes to none of the containers that are iterated over."""
        for index, container in enumerate(iterated_containers(iterator)):
            for written, place in side_effects.written_containers():
                if written is container:
                    raise CannotRebuild("an iterator over what the program changes", step)
                if type(written) is type(container):
                    apart = (IteratedSource(source, index), place)
                    self._guard_context.guard(None, GuardKind.DISTINCT, apart)
