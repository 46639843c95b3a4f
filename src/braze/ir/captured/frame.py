"""What capture found in one frame: guards, graph, writes, and how the frame goes on.

Recipes say how to build a Python value after the graph ran. They are compared by identity: one
recipe object that is used twice is one Python object.
"""

from __future__ import annotations

import types
from typing import Any, TypeAlias, final

import torch

from braze.compat.python.opcode_semantics import NULL as NULL
from braze.frozen import frozen
from braze.ir.captured.guard import Guard, GuardKind
from braze.ir.captured.source import Source
from braze.ir.graphs.graph import Graph, Value
from braze.ir.origin import Origin
from braze.shapes.expr import Expr, Symbol

# --- recipes ---------------------------------------------------------------------------------


@final
@frozen(eq=False)
class FromConstant:
    """An object of which every call may share one: immutable values, functions, classes."""

    value: Any


@final
@frozen(eq=False)
class FromSource:
    """The object that was at `source` when the frame was entered (before any effect)."""

    source: Source


@final
@frozen(eq=False)
class FromGraph:
    """Result `index` of the graph."""

    index: int


@final
@frozen(eq=False)
class FromSizes:
    """An int: the value of an expression over sizes and numbers of the call's inputs. sources:
    where the number is found that each of its symbols stands for."""

    expr: Expr
    sources: tuple[tuple[Symbol, Source], ...]


@final
@frozen(eq=False)
class NewSequence:
    """A new list, tuple, set or frozenset (`cls` exact), or a named tuple class."""

    cls: type
    items: tuple[Recipe, ...]


@final
@frozen(eq=False)
class NewDict:
    """A new dict, OrderedDict, defaultdict (with `default_factory`) or Counter."""

    cls: type
    items: tuple[tuple[Recipe, Recipe], ...]
    default_factory: Recipe | None = None


@final
@frozen(eq=False)
class NewInstance:
    """`cls.__new__(cls)` without `__init__`; its state follows as FillInstance effects, so that
    cycles can be built."""

    cls: type


@final
@frozen(eq=False)
class NewCall:
    """`function(*args, **kwargs)` for a callable without side effects (slice, partial, range
    iterator, MethodType, cell ...).

    after_effects: called when all effects are done, where no new object holds the result: an
        iterator, which notices that its dict is changed. place: given to the result's
        `__setstate__` then: an iterator's, which Python cuts to what its list holds."""

    function: Any
    args: tuple[Recipe, ...]
    kwargs: tuple[tuple[str, Recipe], ...] = ()
    after_effects: bool = False
    place: int | None = None


@final
@frozen(eq=False)
class NewFunction:
    """A function made inside the frame. `closure` are recipes of cells."""

    code: types.CodeType
    globals: dict[str, Any]
    name: str
    qualname: str
    module: str | None
    defaults: Recipe | None
    keyword_defaults: Recipe | None
    closure: tuple[Recipe, ...]
    annotations: Recipe | None = None


Recipe: TypeAlias = (
    FromConstant
    | FromSource
    | FromGraph
    | FromSizes
    | NewSequence
    | NewDict
    | NewInstance
    | NewCall
    | NewFunction
)

# --- effects: in the order in which they are replayed ------------------------------------------


@final
@frozen(eq=False)
class FillInstance:
    """Give a NewInstance, what a NewCall made, or a graph's result its state: `__dict__` entries
    in order, slots by their descriptors (a dict may have an entry of a slot's name), and the
    contents of the builtin container that it extends, written through that base class."""

    target: Recipe
    attributes: tuple[tuple[str, Recipe], ...]
    list_items: tuple[Recipe, ...] | None = None
    dict_items: tuple[tuple[Recipe, Recipe], ...] | None = None
    slots: tuple[tuple[types.MemberDescriptorType, Recipe], ...] = ()


@final
@frozen(eq=False)
class SetAttribute:
    """A write into an existing object; value None deletes. `through_dict` writes `__dict__[name]`,
    otherwise the class's descriptor of that name does (a slot, a field of C code), which may be
    empty when it is deleted. No code of the program runs: the frame ran it."""

    target: Recipe
    name: str
    value: Recipe | None
    through_dict: bool = True


@final
@frozen(eq=False)
class SetItem:
    """Write (value None: delete) one key of an existing dict."""

    target: Recipe
    key: Recipe
    value: Recipe | None


@final
@frozen(eq=False)
class ReplaceContents:
    """Give an existing list, set, dict, bytearray or deque new contents (a recipe of the same
    kind), in place."""

    target: Recipe
    contents: Recipe


@final
@frozen(eq=False)
class SetGlobal:
    """Write (value None: delete) a global of a module's dict."""

    globals: dict[str, Any]
    name: str
    value: Recipe | None


@final
@frozen(eq=False)
class SetCell:
    """Write (value None: empty) a closure cell that existed before the call."""

    cell: Recipe
    value: Recipe | None


@final
@frozen(eq=False)
class CapturedCall:
    """A call replayed for its effect only: setting grad mode, `requires_grad_`, a log line."""

    function: Any
    args: tuple[Recipe, ...]


Effect: TypeAlias = (
    FillInstance | SetAttribute | SetItem | ReplaceContents | SetGlobal | SetCell | CapturedCall
)

# --- how the frame goes on -----------------------------------------------------------------------


@final
@frozen(eq=False)
class FrameState:
    """A frame stopped before the instruction at `offset` (in bytes, of `code.co_code`).

    local_values: name -> recipe, unbound locals absent; names of cells that the frame owns or got
        (`co_cellvars`, `co_freevars`) map to recipes of the *cell objects*.
    stack: bottom first; a NULL slot is FromConstant(NULL).
    """

    code: types.CodeType
    globals: dict[str, Any]
    offset: int
    local_values: tuple[tuple[str, Recipe], ...]
    stack: tuple[Recipe, ...]
    function: Any = None


@final
@frozen(eq=False)
class GraphBreak:
    """Why capture stopped, and the way on.

    code: stable identifier of the catalogue ("data-dependent-branch").
    reason: what happened, in a sentence; hint: one concrete fix.
    is_forbidden: the program says there that a break is an error.
    """

    code: str
    reason: str
    hint: str
    origin: Origin
    is_forbidden: bool = False


@final
@frozen(eq=False)
class Return:
    value: Recipe


@final
@frozen(eq=False)
class Break:
    """Run the graph and the effects, rebuild `frames` (outermost first; each but the last waits
    at the CALL-like instruction whose callee is the next), run the last one's instruction.

    natively: the last one's rest is run natively, not its instruction alone.
    """

    reason: GraphBreak
    frames: tuple[FrameState, ...]
    natively: bool = False


Exit: TypeAlias = Return | Break


@final
@frozen(eq=False)
class Refused:
    """Nothing was captured and nothing has happened: run the frame eagerly.

    kind: "raises" (the program raised: the replay gives the exact exception), "break" (a break
        where no resumption is possible), "unsupported" (a kind of frame that is not captured),
        "once" (this call ends what a graph of it would be guarded by: the next one is compiled),
        "now" (while a mode of torch's is active that is not the frame's own, or hardly any stack is
        left).
    code: stable identifier of the break catalogue, or the exception's class name.
    is_forbidden: of a break: the program says there that it is an error.
    """

    kind: str
    code: str
    reason: str
    hint: str
    origin: Origin
    is_forbidden: bool = False


@final
@frozen(eq=False)
class TorchCall:
    """One torch-level call, for user backends and logs. `target` is a callable, or the name of a
    tensor method with the tensor as first argument. Tensors in args, kwargs and result are
    `braze.ir.graphs.graph.Value` of the graph's numbering: for each tensor object the value that it
    held
    when a call first named it, also after a call in place (whose result is its argument).
    grad_enabled: whether the call was made under grad mode.
    casts: what autocast did then: (device type, dtype, whether casts are remembered) of each device
        for which it was on.
    is_plain: whether all else that changes what a call does was as at the frame's entry, and the
        program makes the call whatever tensors hold."""

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    result: Any
    origin: Origin
    grad_enabled: bool = True
    casts: tuple[tuple[str, torch.dtype, bool], ...] = ()
    is_plain: bool = True


@final
@frozen(eq=False)
class Draw:
    """`function(generator, *args)` of a generator of random numbers, Python's or NumPy's, called
    before the graph runs, at each call and in order. input: which of the graph's inputs the number
    that it gives is, as a 0-dim tensor of float64 or int64, or its array; -1 where no operator
    takes it."""

    generator: Any
    function: Any
    args: tuple[Any, ...]
    input: int


@final
@frozen(eq=False)
class RuntimeCheck:
    """Result `result` of the graph must be true (or false: `holds`), else the program raises, and
    the frame runs eagerly instead: nothing has been written by then."""

    result: int
    holds: bool
    origin: Origin


@final
@frozen(eq=False)
class CapturedFrame:
    """inputs[i] is where graph.inputs[i] is found at a call; the numbers of `graph.sizes` follow.
    bytecodes: instructions interpreted, for reports.
    call_results[i]: the tensor object that result i of the graph is, as `calls` name it; the
        value of `graph.outputs[i]` itself where no call named it.
    size_notes: which symbols were made and which were specialised, and where.
    symbols: what each symbol of the graph is in terms of the call's inputs.
    marked: sizes that the user said must not be specialised, and where they are found.
    is_known: whether a call can tell every symbol, from its inputs or from what the graph computes.
    written_names: of the tensor objects that `calls` name, those written to after they got their
        names, or before if no call made them.
    draws: random numbers of Python's that each call begins with.
    checks: what has to be true of the graph's results before anything is done with them.
    dropped: inputs of the graph whose `.grad` the frame drops before it computes anything.
    saves: whether autograd saves tensors in eager, for a backward in the frame or after it.
    runs_backward: whether a backward is in the frame, which reads what it saved.
    in_inference: the frame enters inference mode for all that it computes.
    switched: inputs that begin to need gradients (True), or cease to (False), before it computes
        anything with them."""

    code: types.CodeType
    guards: tuple[Guard, ...]
    inputs: tuple[Source, ...]
    graph: Graph
    calls: tuple[TorchCall, ...]
    effects: tuple[Effect, ...]
    exit: Exit
    bytecodes: int = 0
    call_results: tuple[Value, ...] = ()
    written_names: frozenset[Value] = frozenset()
    size_notes: tuple[tuple[str, Origin], ...] = ()
    symbols: tuple[tuple[Symbol, FromSizes], ...] = ()
    marked: tuple[tuple[Symbol, Source], ...] = ()
    is_known: bool = True
    draws: tuple[Draw, ...] = ()
    checks: tuple[RuntimeCheck, ...] = ()
    dropped: tuple[int, ...] = ()
    switched: tuple[tuple[int, bool], ...] = ()
    saves: bool = False
    runs_backward: bool = False
    in_inference: bool = False

    @property
    def grad_enabled(self) -> bool:
        """The grad mode at the frame's entry."""
        return all(g.expected.grad for g in self.guards if g.kind is GuardKind.AMBIENT)

    @property
    def casts(self) -> tuple[tuple[str, torch.dtype, bool], ...]:
        """What autocast does at the frame's entry, as in `TorchCall.casts`."""
        states = [g.expected for g in self.guards if g.kind is GuardKind.AMBIENT]
        return states[0].casts() if states else ()
