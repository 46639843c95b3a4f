"""What torch.func's transforms give: Python functions whose free variable `func` is what they
transform."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import torch
from torch.autograd import forward_ad

from braze.compat import private_names as private


def _nothing() -> None: ...


_MAKERS: tuple[Any, ...] = (
    torch.vmap,
    torch.func.grad,
    torch.func.grad_and_value,
    torch.func.jacrev,
    torch.func.jacfwd,
    torch.func.functionalize,
)
_CODES: dict[types.CodeType, int] = {
    code: code.co_freevars.index("func") for code in [maker(_nothing).__code__ for maker in _MAKERS]
}


def place_of_transformed(code: types.CodeType) -> int | None:
    """Which free variable of a function holds what it transforms; None if it is no transform's."""
    return _CODES.get(code)


def sets_generator_back(function: object) -> bool:
    """Whether a function is what `vmap` gave for chunks with the same random numbers: PyTorch sets
    the state of its generator back before each chunk."""
    if not isinstance(function, types.FunctionType):
        return False
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    held = {name: cell.cell_contents for name, cell in cells if name in _OF_CHUNKS}
    chunks = held.get("chunk_size") or held.get("chunks")
    return chunks is not None and held.get("randomness") == "same"


_OF_CHUNKS = ("randomness", "chunk_size", "chunks")

# What leaves the innermost level of each kind. PyTorch 2.11 leaves those of several kinds at once
# by the wrong one's.
_LEAVERS: dict[str, Any] = {
    "Vmap": private.leave_vmap,
    "Grad": private.leave_grad,
    "Jvp": private.leave_jvp,
    "Functionalize": private.leave_functionalize,
}

# What torch.func's own code, where a program has it interpreted, changes of the thread and process
# for as long as a level is open.
LEVEL_CALLS: tuple[Any, ...] = (
    *_LEAVERS.values(),
    private.enter_vmap,
    private.enter_grad,
    private.enter_jvp,
    private.enter_functionalize,
    private.enter_legacy_vmap,  # of `torch.autograd.functional`, vectorised
    private.leave_legacy_vmap,
    private.disable_saved_hooks,
    private.enable_saved_hooks,
)

# What enters and leaves a level of forward mode.
ENTER_FORWARD: Any = private.enter_forward
EXIT_FORWARD: Any = private.exit_forward

# The globals in which `jvp` counts how deep it is nested.
_OF_JVP: dict[str, Any] = torch.func.jvp.__globals__


@final
class TransformLevels(NamedTuple):
    """How many levels of transforms the thread is in, whether forward-mode gradients are taken and
    why hooks on saved tensors are forbidden; and the levels of forward mode, which are the
    process's."""

    depth: int
    takes_forward: bool
    no_hooks: str | None
    dual_level: int
    jvp_nesting: int


def transform_levels() -> TransformLevels:
    """What is so now."""
    return TransformLevels(
        private.transform_depth(),
        private.takes_forward(),
        private.why_no_saved_hooks(),
        forward_ad._current_level,
        _OF_JVP["JVP_NESTING"],
    )


def leave_transforms(before: TransformLevels) -> None:
    """Leave what was not open before: an interrupt at a transform's beginning or end leaves it
    open. Call it for a thread that was interrupted, since others may be in forward mode."""
    while private.transform_depth() > before.depth:
        _LEAVERS[private.innermost_transform().key().name]()
    with contextlib.suppress(RuntimeError):  # it is not open
        private.exit_forward(level=before.dual_level + 1)
    forward_ad._current_level = before.dual_level
    _OF_JVP["JVP_NESTING"] = before.jvp_nesting
    private.set_takes_forward(before.takes_forward)
    if before.no_hooks is None:
        private.enable_saved_hooks()
    else:
        private.disable_saved_hooks(before.no_hooks)


@final
class WithoutTransforms:
    """A block outside of all levels of transforms that the thread is in, where saved tensors may
    have hooks. `kinds`: those levels, outermost first, by PyTorch's names ("Vmap", "Grad", "Jvp",
    "Functionalize")."""

    __slots__ = ("_layers", "_no_hooks", "kinds")

    def __init__(self) -> None:
        self._layers: list[Any] = []
        self._no_hooks: str | None = None
        self.kinds: tuple[str, ...] = ()

    def __enter__(self) -> WithoutTransforms:
        found: list[str] = []
        while private.transform_depth():
            found.append(private.innermost_transform().key().name)
            self._layers.append(private.pop_transform())
        self.kinds = tuple(reversed(found))
        self._no_hooks = private.why_no_saved_hooks()
        private.enable_saved_hooks()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._no_hooks is not None:
            private.disable_saved_hooks(self._no_hooks)
        while self._layers:
            private.push_transform(self._layers.pop())


def have_tangents(inputs: Sequence[torch.Tensor]) -> tuple[bool, ...]:
    """Whether each tensor has a tangent of forward mode. Call it outside of transforms."""
    if forward_ad._current_level < 0 or not private.takes_forward():
        return (False,) * len(inputs)
    return tuple(
        [
            (x.is_floating_point() or x.is_complex()) and forward_ad.unpack_dual(x)[1] is not None
            for x in inputs
        ]
    )


def is_transformed() -> bool:
    """Whether the thread is in a level of a transform."""
    return private.transform_depth() > 0


def tangents_of(
    function: Callable[..., tuple[torch.Tensor, ...]],
    primals: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """The tangents of a function's results by `jvp`, also in a level of forward mode, which PyTorch
    refuses to nest but in a `jvp`."""
    is_nested = forward_ad._current_level >= 0 and _OF_JVP["JVP_NESTING"] == 0
    _OF_JVP["JVP_NESTING"] += is_nested
    try:
        made: tuple[torch.Tensor, ...] = torch.func.jvp(function, (*primals,), (*tangents,))[1]
        return made
    finally:
        _OF_JVP["JVP_NESTING"] -= is_nested


# What reads tangents of forward mode, or gives them.
TANGENT_FUNCTIONS: frozenset[Any] = frozenset(
    [getattr(torch, name) for name in ("_unpack_dual", "_make_dual") if hasattr(torch, name)]
)


def is_batched_within(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds a batch that some `vmap` around does not show."""
    while private.is_functorch_wrapped(tensor):
        if private.is_batched(tensor):
            return True
        tensor = private.unwrapped(tensor)
    return False


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Whether gradients of a tensor are taken at some level: it needs one, or has a tangent. Call
    it outside of all levels."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    in_forward = forward_ad._current_level >= 0
    while private.is_functorch_wrapped(tensor):
        if in_forward or tensor.requires_grad:
            return True
        tensor = private.unwrapped(tensor)
    if tensor.requires_grad or not in_forward:
        return tensor.requires_grad
    with private.no_dispatch():
        return forward_ad.unpack_dual(tensor)[1] is not None


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor of which transforms made this one."""
    while private.is_functorch_wrapped(tensor):
        tensor = private.unwrapped(tensor)
    return tensor


def storage_behind(tensor: torch.Tensor) -> Any:
    """The storage of a tensor, or of the one of which transforms made it."""
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return unwrapped(tensor).untyped_storage()


def with_transformed(function: types.FunctionType, place: int, inner: object) -> types.FunctionType:
    """The same transform of another function."""
    cells = list(function.__closure__ or ())
    cells[place] = types.CellType(inner)
    made = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells),
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made
