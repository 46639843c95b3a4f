"""What capture is asked for."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, final

from braze.frozen import frozen
from braze.ir.graphs.region import RegionOp
from braze.shapes.policy import SizePolicy


@final
@frozen(eq=False)
class FrameRequest:
    """One frame to capture.

    code, globals: of the function, or of the original function for a continuation.
    local_values: every bound argument and local at entry, by name (`*args` as a tuple, `**kwargs`
        as a dict); their sources are LocalSource(name).
    cells: the closure cells, and for a continuation the frame's own cells too, by name.
    function: the function object, where there is one: reports and recursion name it.
    offset, stack: 0 and () at a function's entry; a continuation enters before the instruction at
        `offset` (bytes) with these values on the stack (StackSource(index)), NULL included.
    make_tracer: makes the Tracer that records this frame's operators.
    must_not_inline: says of a function that it gets graphs of its own: the call breaks.
    leaves_out: the operators of this frame, and of those that are inlined, run eagerly.
    max_inline_depth: of inlined calls.
    is_watched: whether somebody watches the gradient of a leaf; None: a backward breaks the graph.
    policy: which sizes and numbers are symbols; None: none is.
    is_foreign: whether another backend gets the graph, which takes no wrapper subclasses.
    keeps_calls: whether torch-level calls are kept where sizes are symbols, too.
    keeps_states: whether it is kept which autocast and settings each of these calls is made under.
    keeps_unread: whether the graph has what torch-level calls compute that nobody reads.
    long_loops: those that are not unrolled, by code and the index of their first step; capture adds
        what it finds.
    refusing: calls of reentrant checkpoints that refuse what is asked of them, and of loops whose
        turns are unrolled, likewise.
    shared: inputs that have elements in common, one of which is written to, likewise; unshared:
        those that get a history by it, where the write breaks the graph.
    counted_calls: calls of cached functions that a capture of a whole graph made, by function and
        key, likewise.
    puts_off_schedules: whether steps of schedules of rates are left for the frame's end.
    copies_freely: whether one program for all sizes may copy what eager views at some of them, and
        whether what eager conjugates lazily may be computed.
    differentiate_region: as in `RegionOp`.
    is_transformed: the call is under transforms of torch.func or in a level of forward mode, by
        whose rules the whole graph will be called.
    is_exporting: whether the program asked for the graph itself, to be run without the program.
    """

    code: types.CodeType
    globals: dict[str, Any]
    local_values: Mapping[str, Any]
    make_tracer: Callable[[], Any]
    cells: Mapping[str, types.CellType] = field(default_factory=dict)
    function: types.FunctionType | None = None
    offset: int = 0
    stack: tuple[Any, ...] = ()
    options: Any = None
    must_not_inline: Callable[[Any], bool] | None = None
    leaves_out: bool = False
    max_inline_depth: int = 400
    is_watched: Callable[[Any], bool] | None = None
    policy: SizePolicy | None = None
    keeps_calls: bool = False
    keeps_states: bool = False
    is_foreign: bool = False
    keeps_unread: bool = False
    long_loops: set[tuple[types.CodeType, int]] = field(default_factory=set)
    refusing: set[tuple[types.CodeType, int]] = field(default_factory=set)
    shared: list[Any] = field(default_factory=list)
    unshared: list[Any] = field(default_factory=list)
    counted_calls: dict[Any, Any] = field(default_factory=dict)
    puts_off_schedules: bool = True
    copies_freely: bool = True
    differentiate_region: Callable[..., RegionOp] | None = None
    is_transformed: bool = False
    is_exporting: bool = False
