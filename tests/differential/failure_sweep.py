"""Programs that write, or act, and fail: compiled and eager, call after call.

    python -m tests.differential.failure_sweep          all programs, those that differ are printed
    python -m tests.differential.failure_sweep index    those of one kind of failure

A program is an effect, a failure, in which order, and whether gradients flow. It is called well and
badly by turns. After each call everything that it can reach is compared with eager: how it ended,
the tensors, the random state, attributes, lists, and how often an operator with effects was called.
Where something fails in, or behind, an operator with effects (but indices, which are checked before
it), the program is not run again: it ends as in eager, no operator is called twice, and what it
wrote to tensors before is written. Attributes and lists of Python are not, yet.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import braze

CALLS: list[str] = []
_LIBRARY = torch.library.Library("failing_tests", "DEF")
_LIBRARY.define("note(Tensor x) -> Tensor")
_LIBRARY.define("bump(Tensor(a!) x) -> ()")
_LIBRARY.define("refuse(Tensor x, Tensor code) -> Tensor")


def _note(x: torch.Tensor) -> torch.Tensor:
    CALLS.append("note")
    return x.clone()


def _bump(x: torch.Tensor) -> None:
    CALLS.append("bump")
    x.add_(1)


def _refuse(x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    CALLS.append("refuse")
    if int(code[0]) == 7:
        raise ValueError("refused")
    if int(code[0]) == 8:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # the handler runs between two of Python's instructions
            pass
    return x * 2


for _name, _function in (("note", _note), ("bump", _bump), ("refuse", _refuse)):
    _LIBRARY.impl(_name, _function, "CPU")
_LIBRARY.impl("note", torch.empty_like, "Meta")
_LIBRARY.impl("bump", lambda x: None, "Meta")
_LIBRARY.impl("refuse", lambda x, code: torch.empty_like(x), "Meta")
note, bump = torch.ops.failing_tests.note.default, torch.ops.failing_tests.bump.default
refuse = torch.ops.failing_tests.refuse.default


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 2.0))
        self.register_buffer("seen", torch.zeros(3))
        self.steps = 0


@dataclass
class GuardContext:
    """What a program can reach."""

    model: Counter = field(default_factory=Counter)
    shared: torch.Tensor = field(default_factory=lambda: torch.zeros(3))
    log: list[Any] = field(default_factory=list)


# --- effects ---------------------------------------------------------------------------------


def _input(w: GuardContext, x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x


def _outside(w: GuardContext, x: torch.Tensor) -> torch.Tensor:
    w.shared.mul_(2).add_(x.detach())
    return x + w.shared


def _buffer(w: GuardContext, x: torch.Tensor) -> torch.Tensor:
    w.model.seen += 1
    return x * w.model.seen


def _place(w: GuardContext, x: torch.Tensor) -> torch.Tensor:
    w.shared[1:2] = x.detach()[:1] + 5
    return x + 1


def _draw(w: GuardContext, x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(3)


def _attribute(w: GuardContext, x: torch.Tensor) -> torch.Tensor:
    w.model.steps += 1
    return x + w.model.steps


def _append(w: GuardContext, x: torch.Tensor) -> torch.Tensor:
    w.log.append(x.detach() * 3)
    return x + 1


def _acting(w: GuardContext, x: torch.Tensor) -> torch.Tensor:
    note(x.detach())
    return x + 1


def _acting_write(w: GuardContext, x: torch.Tensor) -> torch.Tensor:
    bump(w.shared)
    return x + w.shared


EFFECTS = {
    "input": _input,
    "outside": _outside,
    "buffer": _buffer,
    "place": _place,
    "draw": _draw,
    "attribute": _attribute,
    "append": _append,
    "operator": _acting,
    "operator-that-writes": _acting_write,
}

# --- failures: what is called with a code of 1 (good) or another ------------------------------


def _index(x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, code).sum() + x


def _gather(x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    return torch.gather(x, 0, code) * x


def _divided(x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    return x * (6 // (code - 7))


def _singular(x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(torch.eye(3) * (code - 7)) @ x


def _raising(x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    return x + refuse(x.detach(), code)


def _asserting(x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    assert (code < 7).all(), "code"
    return x * 2


def _too_large(x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    large = x.new_zeros(1 << 60 if code.shape[0] > 1 else 4)
    return x + torch.sort(large).values[:3]


FAILURES: dict[str, tuple[Callable[..., torch.Tensor], list[int]]] = {
    "index": (_index, [9]),
    "gather": (_gather, [9]),
    "division": (_divided, [7]),
    "singular": (_singular, [7]),
    "operator": (_raising, [7]),
    "interrupt": (_raising, [8]),
    "assertion": (_asserting, [7]),
    "allocation": (_too_large, [1, 1]),
}


@dataclass(frozen=True)
class Program:
    """An effect, then a failure; or, where `fails_first`, the other way round."""

    effect: str
    failure: str
    fails_first: bool
    gradients: bool

    def __str__(self) -> str:
        first, second = (
            (self.failure, self.effect)
            if self.fails_first
            else (
                self.effect,
                self.failure,
            )
        )
        return f"{first} then {second}{', with gradients' if self.gradients else ''}"

    def is_partly_run(self) -> bool:
        """Whether it may fail where its effects on objects of Python are not made."""
        is_behind = self.effect in ("attribute", "append") and not self.fails_first
        return is_behind and self.failure in ("operator", "interrupt")

    def function(self, w: GuardContext) -> Callable[..., torch.Tensor]:
        """The program in a world."""
        effect, (failure, _) = EFFECTS[self.effect], FAILURES[self.failure]
        fails_first, gradients = self.fails_first, self.gradients

        def program(x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
            y = x * w.model.weight if gradients else x
            if fails_first:
                y = failure(y, code)
                y = effect(w, x if effect is _input else y) + y
            else:
                y = effect(w, x if effect is _input else y) + y
                y = failure(y, code)
            if gradients:
                y.sum().backward()
                return y.detach()
            return y

        return program


def programs() -> Iterator[Program]:
    """All of them."""
    for effect, failure in itertools.product(EFFECTS, FAILURES):
        for fails_first, gradients in itertools.product((False, True), repeat=2):
            yield Program(effect, failure, fails_first, gradients)


def outcomes(program: Program, compiled: bool, **options: Any) -> list[Any]:
    """How each call ended, and the state behind it."""
    w, found = GuardContext(), []
    function = program.function(w)
    called = braze.compile(function, **options) if compiled else function
    torch.manual_seed(3)
    CALLS.clear()
    for code in ([1], FAILURES[program.failure][1], [2], FAILURES[program.failure][1], [0]):
        x = torch.arange(3.0) + 1
        try:
            ended = called(x, torch.tensor(code)).tolist()
        except (Exception, KeyboardInterrupt) as raised:
            ended = _kind(raised)
        state = w.model.weight, w.model.weight.grad, w.model.seen, w.shared, x, w.log
        tensors = [v.tolist() if isinstance(v, torch.Tensor) else str(v) for v in state]
        drawn = torch.get_rng_state().sum().item()
        found.append((ended, tensors, w.model.steps, drawn, list(CALLS)))
    return found


class _Kinds(str):
    """The classes of an exception, as the program sees it: one of Braze's own is of several. It
    equals the name of each of those, and shows the first."""

    kinds: list[str]

    def __eq__(self, other: object) -> bool:
        return other in self.kinds

    def __hash__(self) -> int:
        raise TypeError("compare it only")


def _kind(raised: BaseException) -> str:
    classes = [c for c in type(raised).__mro__ if not c.__module__.startswith("braze")]
    is_ours = len(classes) < len(type(raised).__mro__)
    kinds = [c.__name__ for c in classes] if is_ours else [classes[0].__name__]
    made = _Kinds(kinds[0])
    made.kinds = kinds
    return made


def difference(program: Program, **options: Any) -> str | None:
    """Where the compiled program differs first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pairs = zip(outcomes(program, False), outcomes(program, True, **options))
        partly = program.is_partly_run() or "backend" in options
        for number, (eager, ours) in enumerate(pairs):
            if partly and number:  # later calls begin with another state
                ends = number == 1 and ours[0] != eager[0]
                if not ends and type(eager[0]) is type(ours[0]) and eager[-1] == ours[-1]:
                    continue
            if ours != eager:
                return f"{program}, call {number}:\n  eager {eager}\n  ours  {ours}"
    return None


def main() -> None:
    """Print those that differ."""
    wanted = sys.argv[1:]
    chosen = [p for p in programs() if not wanted or p.failure in wanted or p.effect in wanted]
    differ = 0
    for program in chosen:
        if text := difference(program):
            differ += 1
            print(text, flush=True)
    print(f"{len(chosen)} programs, {differ} differ")


if __name__ == "__main__":
    main()
