"""Changes of one object between questions: it is asked, changed, asked again, put back, asked.

Eager mode and compiled code each get an object of their own, to which the same happens. One
compiled function answers for all changes, so an entry made for one state is tried in all others.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import braze
from braze.options import config
from tests.recorded import recorded
from tests.surface.tensors import Difference, Tally, deadline

Undo: TypeAlias = Callable[[], object] | None
Function: TypeAlias = Callable[..., Any]
Answer: TypeAlias = Callable[[Function, Any], str]


class Change(NamedTuple):
    """make: gives the object as it is before. apply: changes it or the process, and may give what
    puts it back."""

    make: Callable[[], Any]
    apply: Callable[[Any], Any]


SECONDS = 20  # for all changes: eager answers a question in milliseconds, or never


def follow(
    text: str,
    way: str,
    function: Function,
    changes: Mapping[str, Change],
    answer: Answer,
    tally: Tally,
) -> None:
    """Put one question around each change, in eager mode and compiled; tally gets the first
    difference."""
    try:
        with deadline(SECONDS):
            expected = _answers(function, changes, answer)
    except TimeoutError:
        return
    braze.reset()
    with recorded() as journal, config.patch(recompile_limit=1024, dynamic=False):
        found = _answers(braze.compile(function, backend="eager"), changes, answer)
        tally.graphs += sum(record.outcome == "graph" for record in journal.records())
    tally.asked += len(expected)
    for (when, want), (_, got) in zip(expected, found, strict=True):
        if want != got:
            tally.differences.append(Difference(text, way, when, want, got))
            return


def _answers(
    function: Function, changes: Mapping[str, Change], answer: Answer
) -> list[tuple[str, str]]:
    """What each call answers, by when it was."""
    found: list[tuple[str, str]] = []
    for name, change in changes.items():
        subject = change.make()

        def ask(when: str, subject: Any = subject, name: str = name) -> None:
            found.append((f"{when} {name}", answer(function, subject)))

        ask("before")
        undo, refusal = _applied(change, subject)
        found.append((f"at {name}", refusal))
        try:
            ask("after")
            ask("again after")
        finally:
            if undo is not None:
                undo()
        found.append((f"undone {name}", answer(function, subject) if undo is not None else ""))
    return found


def _applied(change: Change, subject: Any) -> tuple[Undo, str]:
    """Apply a change; what a question did to the object may be in its way, in both runs alike."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            undo = change.apply(subject)
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
    return functools.partial(_quietly, undo) if callable(undo) else None, ""


def _quietly(undo: Callable[[], object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        undo()


def entered(manager: Callable[[], Any]) -> Callable[[Any], Callable[[], object]]:
    """A change that a context manager makes."""

    def apply(subject: Any) -> Callable[[], object]:
        made = manager()
        made.__enter__()
        return lambda: made.__exit__(None, None, None)

    return apply


def replaced(owner: Any, name: str, value: Any) -> Callable[[Any], Callable[[], object]]:
    """A change of an attribute of something else than the object."""

    def apply(subject: Any) -> Callable[[], object]:
        missing = object()
        before = vars(owner).get(name, missing)
        setattr(owner, name, value)
        if before is missing:
            return lambda: delattr(owner, name)
        return lambda: setattr(owner, name, before)

    return apply


def set_by(setter: Callable[[Any], object], value: Any, before: Any) -> Callable[[Any], Any]:
    """A change that a function makes, which the same function undoes."""

    def apply(subject: Any) -> Callable[[], object]:
        setter(value)
        return lambda: setter(before)

    return apply


def those_that_apply(changes: Mapping[str, Change]) -> list[str]:
    """The changes that an object takes which nobody has asked."""
    found = []
    for name, change in changes.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                undo = change.apply(change.make())
            except Exception:
                continue
            if callable(undo):
                undo()
        found.append(name)
    return found


def every(texts: Iterable[str], only: str) -> list[str]:
    """The questions that hold a piece of text."""
    return [text for text in texts if only in text]
