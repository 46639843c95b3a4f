"""Private names of torch's autograd engine, and the state in which a backward is traced."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch

from braze.class_facts import fact_of_class
from braze.compat import private_names as private

if TYPE_CHECKING:

    class AutogradFunction(torch.autograd.Function):
        """`torch.autograd.Function`, whose `apply` PyTorch leaves without types."""

        @classmethod
        def apply(cls, *args: object) -> Any:
            """The results of `forward`, with the history that `backward` is for."""
else:
    AutogradFunction = torch.autograd.Function

# A Function's `apply` below the Python part that only function transforms need: that part looks
# at every argument (some 30 us for 300 parameters).
_FUNCTION_BASE: Any = private.FUNCTION_BASE


# What `Function.apply` is a class method of: a function of Python's up to 2.13, C's from 2.14.
_APPLY: Any = inspect.getattr_static(torch.autograd.Function, "apply")
FUNCTION_APPLY: Any = _APPLY.__func__ if isinstance(_APPLY, classmethod) else _APPLY


def quick_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` where no function transform is active."""
    if _FUNCTION_BASE is torch.autograd.Function:
        return function.apply
    apply: Callable[..., Any] = super(_FUNCTION_BASE, function).apply
    return apply


def preset_context(function: type[torch.autograd.Function], **values: object) -> None:
    """What the `ctx` of each call of a Function has until it is given something else."""
    for name, value in values.items():
        setattr(function._backward_cls, name, value)


def gradients(
    results: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad` straight to the engine: its Python part imports SymPy (0.5 s) to
    compare shapes."""
    engine = private.engine
    found: tuple[torch.Tensor | None, ...] = engine.run_backward(
        tuple(results), tuple(tangents), False, False, tuple(inputs), True, accumulate_grad=False
    )
    return found


def run_engine(
    results: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    keeps_graph: bool,
    inputs: Sequence[torch.Tensor],
    may_miss: bool,
    creates_graph: bool,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of `inputs`, which nothing is accumulated to; `may_miss`: where one does not
    depend on the other there is None, not an error; `creates_graph`: with a history."""
    engine = private.engine
    found: tuple[torch.Tensor | None, ...] = engine.run_backward(
        tuple(results),
        tuple(tangents),
        keeps_graph,
        creates_graph,
        tuple(inputs),
        may_miss,
        accumulate_grad=False,
    )
    return found


def history_nodes(roots: Sequence[Any]) -> list[Any]:
    """Every node of autograd's graph above these; what this keeps alive keeps its identity."""
    found: dict[int, Any] = {id(root): root for root in roots}
    waiting = list(roots)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and id(node) not in found:
                found[id(node)] = node
                waiting.append(node)
    return list(found.values())


def executed_nodes(roots: Sequence[object], ends: Sequence[Any] | None) -> list[object]:
    """The nodes that a backward from these nodes executes, and frees unless it keeps the graph:
    those from which a way leads to one of the tensors it is asked for; None: all."""
    nodes = history_nodes(roots)
    if ends is None:
        return nodes
    makers = {id(end.grad_fn) for end in ends if end.grad_fn is not None}
    leaves = {id(end) for end in ends if end.grad_fn is None}
    above: dict[int, list[Any]] = {}
    waiting: list[Any] = []
    for node in nodes:
        for below, _ in node.next_functions:
            above.setdefault(id(below), []).append(node)
        if id(node) in makers or id(getattr(node, "variable", None)) in leaves:
            waiting.append(node)
    executed: dict[int, Any] = {}
    while waiting:
        for node in above.get(id(waiting.pop()), ()):
            if id(node) not in executed:
                executed[id(node)] = node
                waiting.append(node)
    return list(executed.values())


def refuses_always(root: Any, freed: Mapping[int, object]) -> bool:
    """Whether each backward from a node comes to a freed one, by identity, whatever it is asked
    for. Such a node is executed before anything below it."""
    refuses: dict[int, bool] = {}
    waiting = [(root, False)]
    while waiting:
        node, is_left = waiting.pop()
        if id(node) in refuses:
            continue
        following = [below for below, _ in node.next_functions if below is not None]
        if id(node) in freed or not following:
            refuses[id(node)] = id(node) in freed
        elif is_left:
            refuses[id(node)] = all(refuses[id(below)] for below in following)
        else:
            waiting.append((node, True))
            waiting += [(below, False) for below in following]
    return refuses[id(root)]


def can_be_used_again(roots: Sequence[object]) -> bool:
    """Whether a history lets a second backward through without `retain_graph`: none of its nodes
    saves a tensor."""
    return not any(saves_tensors(node) for node in history_nodes(roots))


def freed_together(roots: Sequence[object]) -> tuple[frozenset[int], ...]:
    """For each of several histories (None: there is none), the numbers of those whose backward
    takes from it what it needs: those that share a node that saves a tensor, itself among them."""
    found = [0] * len(roots)
    shared: set[int] = set()
    for node, members in _members(roots):
        if members not in shared and saves_tensors(node):
            shared.add(members)
    for members in shared:
        for number in _numbers(members):
            found[number] |= members
    return tuple([frozenset(_numbers(members)) for members in found])


def reached_from(
    roots: Sequence[object], leaves: Sequence[torch.Tensor]
) -> tuple[frozenset[int], ...]:
    """For each of the leaves, the numbers of those of several histories (None: there is none) whose
    backward comes to it."""
    ends = {id(getattr(node, "variable", None)): members for node, members in _members(roots)}
    return tuple([frozenset(_numbers(ends.get(id(leaf), 0))) for leaf in leaves])


def _members(roots: Sequence[Any]) -> list[tuple[object, int]]:
    """Every node of several histories, and a bit for each history that it is in."""
    known = [root for root in roots if root is not None]
    order: dict[int, Any] = {}  # a node has its identity while it is held; children come first
    waiting = [(root, False) for root in known]
    entered: set[int] = set()
    while waiting:
        node, is_done = waiting.pop()
        if is_done:
            order[id(node)] = node
        elif id(node) not in entered:
            entered.add(id(node))
            waiting.append((node, True))
            waiting += [(child, False) for child, _ in node.next_functions if child is not None]
    members = dict.fromkeys(order, 0)
    for number, root in enumerate(roots):
        if root is not None:
            members[id(root)] |= 1 << number
    for node in reversed(order.values()):
        for child, _ in node.next_functions:
            if child is not None:
                members[id(child)] |= members[id(node)]
    return [(node, members[identity]) for identity, node in order.items()]


def _numbers(members: int) -> list[int]:
    return [number for number in range(members.bit_length()) if members >> number & 1]


def saves_tensors(node: object) -> bool:
    """Whether a node keeps tensors, which one backward through it frees."""
    kind: Any = type(node)
    always = _always_saves(kind)
    if always is not None:
        return always
    with private.disable_torch_dispatch():  # what is taken out is a fake tensor's copy
        return any(_holds(node, name) for name in _saved_names(kind))


@fact_of_class
def _always_saves(kind: type) -> bool | None:
    """None: each node is asked."""
    if issubclass(kind, torch.autograd.function.BackwardCFunction):
        return not getattr(getattr(kind, "_forward_cls", None), "saves_nothing", False)
    # A write through a view holds the node of what was written, and lets go of it.
    return True if kind.__name__ == "CopySlices" else None


@fact_of_class
def _saved_names(kind: type) -> tuple[str, ...]:
    """Of the tensors that a node may save, each for a gradient that somebody may need."""
    raw = "_raw_saved_"
    return tuple(["_saved_" + name.removeprefix(raw) for name in dir(kind) if name.startswith(raw)])


def _holds(node: object, name: str) -> bool:
    try:
        return getattr(node, name) is not None
    except RuntimeError:  # it was there, until a backward let go of it
        return True


# tensor -> how often it was written to.
VERSION: Callable[[torch.Tensor], int] = private.version_getter.__get__


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written to; 0 for what inference mode made, which does not count."""
    return 0 if tensor.is_inference() else VERSION(tensor)


def versions_of(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The same of several, of which few are of inference mode."""
    try:
        return tuple(map(VERSION, tensors))
    except RuntimeError:  # of inference mode
        return tuple(map(version_of, tensors))


_creation_of: Callable[[torch.Tensor], Any] = private.creation_of
_IS_PLAIN_VIEW: Any = private.plain_view


_IS_PIECE: Any = private.piece_view
_IS_UNTRACKED: Any = private.untracked_view
_WITHOUT_GRADIENTS = (_IS_UNTRACKED, private.inference_view)


def is_piece(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of several views that one call made: autograd refuses to write to
    such a view."""
    return tensor._is_view() and _creation_of(tensor) == _IS_PIECE


def is_plain_view(view: torch.Tensor) -> bool:
    """Whether autograd lets a view be written to like any tensor: a call that made no other made
    it with gradients enabled."""
    return bool(_creation_of(view) == _IS_PLAIN_VIEW)


def view_kind(tensor: torch.Tensor) -> str:
    """What autograd takes a tensor for where it is written to."""
    if not tensor._is_view():
        return "no view"
    if not is_plain_view(tensor):
        return f"a view of kind {_creation_of(tensor).name}"
    if views_what_needs_no_gradient(tensor):
        return "a view of what needs no gradient"
    assert tensor._base is not None
    return "a view of a leaf" if tensor._base.is_leaf else "a view"


def views_what_needs_no_gradient(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view of what needs no gradient: with a history, which it has of a leaf
    that was itself a view when it began to need gradients. When its memory is written to and
    autograd does not see it, autograd looks for its history there."""
    return tensor._base is not None and not tensor._base.requires_grad


def follows_its_base(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view that gets the history of a later write to its base: one made with
    gradients enabled, and not by `detach()`."""
    return tensor._is_view() and _creation_of(tensor) in (_IS_PLAIN_VIEW, _IS_PIECE)


def refuses_changed_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view that autograd refuses from when its memory is written to otherwise
    than through it: one of several views that one call made, or one made without gradients."""
    return tensor._is_view() and tensor.requires_grad and _creation_of(tensor) != _IS_PLAIN_VIEW


def is_refused_by_autograd(tensor: torch.Tensor) -> bool:
    """Whether autograd refuses to say what history a view has, since its memory was written to."""
    if not tensor._is_view():
        return False
    try:
        _ = tensor.grad_fn
    except RuntimeError:
        return True
    return False


def as_piece(view: torch.Tensor) -> torch.Tensor:
    """The view, such that autograd takes it for one of several that one call made."""
    if view._is_view():
        private.set_creation(view, _IS_PIECE)
    return view


def as_plain_view(view: torch.Tensor) -> torch.Tensor:
    """The view, such that autograd takes it for one that was made with gradients enabled."""
    if view._is_view():
        private.set_creation(view, _IS_PLAIN_VIEW)
    return view


def is_untracked_view(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view that was made without gradients, or in inference mode: autograd
    refuses to write to it what carries some."""
    return tensor._is_view() and _creation_of(tensor) in _WITHOUT_GRADIENTS


def as_untracked_view(view: torch.Tensor) -> torch.Tensor:
    """The view, such that autograd takes it for one that was made without gradients."""
    if view._is_view() and not (view.requires_grad or is_untracked_view(view)):
        private.set_creation(view, _IS_UNTRACKED)
    return view


def copy_uncounted(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`target.copy_(value)`, which autograd does not count: views of the target made behind it stay
    what they are when its version is put back. What inference mode made has none."""
    if target.is_inference():
        return target.copy_(value)
    version = VERSION(target)
    target.copy_(value)
    set_versions((target,), (version,))
    return target


def is_write_refused(tensor: torch.Tensor, carries_gradient: bool) -> bool:
    """Whether autograd raises where a tensor is written to in place with gradients enabled: a leaf
    that needs gradients, a view of a leaf, one of several views made by one call, a view made
    without gradients. carries_gradient: whether what is written requires grad."""
    needs_gradient = tensor.requires_grad
    if not (needs_gradient or carries_gradient):
        return False
    if needs_gradient and tensor.is_leaf:
        return True
    if not tensor._is_view():
        return False
    assert tensor._base is not None
    return _creation_of(tensor) != _IS_PLAIN_VIEW or (needs_gradient and tensor._base.is_leaf)


# Gives tensors the versions that they had.
set_versions: Callable[[tuple[torch.Tensor, ...], tuple[int, ...]], None] = private.set_versions
# Tensors whose memory was written to behind PyTorch's back: their versions go up.
note_write: Callable[[tuple[torch.Tensor, ...]], None] = private.note_write


_IS_BATCHED: tuple[Callable[[torch.Tensor], bool], ...] = (
    private.is_legacy_batched,  # `torch.autograd.grad(is_grads_batched=True)`
    private.is_batched,
)


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for each of a batch that a vmap goes through: it has no memory."""
    return _IS_BATCHED[0](tensor) or _IS_BATCHED[1](tensor)


def saved_data(context: Any) -> list[torch.Tensor] | None:
    """What a Function saved, whether it was written to since or not; None where hooks keep it."""
    saved = context._raw_saved_tensors
    return None if any(one.unpack_hook is not None for one in saved) else [o.data for o in saved]


# Inside of a backward: whether its graph is kept for another one (`retain_graph=True`).
keeps_graph: Callable[[], bool] = private.keeps_graph
# The number of the engine's run; and what is to be called when it is done.
graph_task: Callable[[], int] = private.graph_task
queue_callback: Callable[[Callable[[], Any]], None] = private.engine.queue_callback


def _same(x: object) -> object:
    return x


# silence_saved_hooks(True): nodes keep what they save as it is, whatever hooks on saved tensors are
# in force in the thread; gives what was so before.
silence_saved_hooks: Callable[[bool], bool] = private.silence_saved_hooks


def saved_hooks() -> tuple[Any, Any] | None:
    """The hooks on saved tensors that are in force in the thread. While there are any, autograd
    does not notice that a saved tensor was written to."""
    found: tuple[Any, Any] | None = private.top_saved_hooks(True)
    return found


def pop_saved_hooks(wanted: tuple[object, object] | None) -> None:
    """Take away hooks on saved tensors until those in force are `wanted`."""
    while True:
        found = saved_hooks()
        if found is None or (wanted is not None and all(map(operator.is_, found, wanted))):
            return
        private.pop_saved_hooks()


@final
class _OnlyHooks:
    """Of hooks on saved tensors only these."""

    def __init__(
        self, pack: Callable[[object], object], unpack: Callable[[object], object]
    ) -> None:
        self._pack, self._unpack = pack, unpack
        self._were_silent = False

    def __enter__(self) -> None:
        private.push_saved_hooks(self._pack, self._unpack)
        self._were_silent = silence_saved_hooks(False)

    def __exit__(self, *exception: object) -> None:
        silence_saved_hooks(self._were_silent)
        private.pop_saved_hooks()


# The devices for which autocast is on, each with its dtype.
Casts: TypeAlias = tuple[tuple[str, torch.dtype], ...]
_DEVICES = ("cpu", "cuda")


def active_casts() -> Casts:
    """What autocast does in this thread now."""
    return tuple(
        [(d, torch.get_autocast_dtype(d)) for d in _DEVICES if torch.is_autocast_enabled(d)]
    )


def casting(casts: Casts) -> ExitStack:
    """Autocast as it was then; no cast of a weight is remembered."""
    with ExitStack() as stack:
        for device, dtype in casts:
            stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
        return stack.pop_all()


def plain_autograd(pack: Callable[[object], object]) -> ExitStack:
    """Gradients on, and nothing around them: no autocast, no anomaly mode, and of hooks on saved
    tensors only `pack`. (It has to give another object where a node saves its own result: the two
    would keep each other alive.)"""
    with ExitStack() as stack:
        for device in _DEVICES:
            stack.enter_context(torch.autocast(device, enabled=False, cache_enabled=False))
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        stack.enter_context(_OnlyHooks(pack, _same))
        stack.enter_context(torch.enable_grad())
        return stack.pop_all()
