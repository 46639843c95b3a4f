"""What passes between the driver of compiled frames and the compiler: a request and its answer.

    driver  --CompileRequest-->  compile_frame  --CompiledEntry | Refused-->  driver

Sources are read from `FrameValues`, the values that a frame has where its capture starts.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any, NoReturn, TypeAlias, final

import torch

from braze.compat.torch.autograd_engine import note_write
from braze.frozen import frozen
from braze.ir.captured.frame import Effect, Exit, Refused
from braze.ir.captured.guard import Guard
from braze.ir.captured.source import Source
from braze.kept_texts import FailedGuard
from braze.shapes.policy import SizeHistory

# inputs in graph order -> outputs in graph order; outputs are fresh tensors owned by the caller,
# or views as the graph's aliases say; mutations of inputs are written back last.
GraphCallable: TypeAlias = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


# An input of a graph, its contents, and how many of the program's writes those stand for.
PendingWrite: TypeAlias = tuple[torch.Tensor, torch.Tensor, int]


@final
class PartlyRun(Exception):
    """A graph raised `cause` after writes that cannot be undone: the program must not be run again
    in its place. Users see the cause."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause
        self.context = cause.__context__
        super().__init__(str(cause))

    def raise_cause(self) -> NoReturn:
        """Raise it as it was raised: raising it again gives it another context."""
        try:
            raise self.cause
        finally:
            self.cause.__context__ = self.context


def after_effects(fault: Exception, pending: Iterable[PendingWrite] = ()) -> PartlyRun:
    """What to raise in the place of a fault of a graph that has written or acted already.
    pending: what the program wrote before the operator that failed."""
    make_writes(pending)
    return fault if isinstance(fault, PartlyRun) else PartlyRun(fault)


def make_writes(pending: Iterable[PendingWrite]) -> None:
    """Give inputs of a graph that fails the contents that the program gave them until then."""
    with torch.no_grad():
        for target, value, count in pending:
            target.copy_(value)
            note_write((target,) * (count - 1))


@final
class HooksInForce(Exception):
    """A graph was asked to run where hooks are in force that it cannot show what the program's
    operators would: it has done nothing, and the program's own code is to run instead."""


def _nothing() -> None:
    return None


@final
class SavingGraph:
    """The identity of a compiled graph that saves tensors for a backward, or is left at a break
    behind which others do.

    entry, cache: refer to the driver's entry that the graph is of, and to the cache that it is in,
        which hold the graph; they give None until the driver has made them. name: in words.
    """

    __slots__ = ("cache", "entry", "name")

    def __init__(self) -> None:
        self.entry: Callable[[], object] = _nothing
        self.cache: Callable[[], object] = _nothing
        self.name = "a compiled graph"


@final
class FrameValues:
    """The values of a frame at the point where its capture starts.

    locals: bound locals by name. Names of free variables, and at a continuation (offset > 0) of
        the frame's own cell variables, map to the *cell objects*; at offset 0 an argument that is
        a cell variable maps to its plain value.
    stack: bottom first; a NULL slot holds `braze.ir.captured.frame.NULL`. The slot in which
    PUSH_EXC_INFO
        saved the previous exception holds the exception being handled since then.
    globals: of the code's function.
    """

    __slots__ = ("globals", "locals", "stack")

    def __init__(
        self, locals: dict[str, Any], stack: Sequence[object], globals: dict[str, Any]
    ) -> None:
        self.locals = locals
        self.stack = stack
        self.globals = globals


@final
@frozen(eq=False)
class CompileRequest:
    """One frame to compile, from `offset` (bytes of `code.co_code`; 0 is the function's entry).

    function: the function that was called, where it is known; None for a continuation whose
        function object is not at hand.
    history: sizes that earlier compiles of this place saw.
    failures: why each existing entry did not serve, most recently used first.
    is_first: nothing was tried here before.
    """

    code: types.CodeType
    offset: int
    values: FrameValues
    function: types.FunctionType | None = None
    failures: tuple[FailedGuard, ...] = ()
    is_first: bool = False
    history: SizeHistory = field(default_factory=SizeHistory)


@final
@frozen(eq=False)
class CompiledEntry:
    """One way to run a frame, good while its guards hold.

    inputs[i]: where the i-th tensor for `graph` is found, then the numbers of its sizes.
    draws_on: the devices whose random number generators `graph` advances: their states are kept
        while it runs, so that a faulting run can be repeated.
    operators: of the graph. fallbacks: what of it runs otherwise than by kernels of Braze.
    saving: identifies the graph where it, or the rest of its frame, may save tensors.
    """

    guards: tuple[Guard, ...]
    inputs: tuple[Source, ...]
    graph: GraphCallable
    effects: tuple[Effect, ...]
    exit: Exit
    draws_on: tuple[torch.device, ...] = ()
    operators: int = 0
    fallbacks: tuple[str, ...] = ()
    saving: SavingGraph | None = None


CompileAnswer: TypeAlias = CompiledEntry | Refused
CompileFrame: TypeAlias = Callable[[CompileRequest], CompileAnswer]


def is_left_out(debug_function: str, code: types.CodeType) -> bool:
    """Whether the operators of a function run eagerly, since the option names another."""
    return debug_function not in ("", code.co_name, code.co_qualname)
