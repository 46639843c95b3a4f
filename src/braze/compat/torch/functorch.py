"""What torch.func's transforms give: Python functions whose free variable `func` is what they
transform."""

from __future__ import annotations

import contextlib
import types
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


def is_batched_within(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds a batch that some `vmap` around does not show."""
    while private.is_functorch_wrapped(tensor):
        if private.is_batched(tensor):
            return True
        tensor = private.unwrapped(tensor)
    return False


def with_transformed(function: types.FunctionType, place: int, inner: Any) -> Any:
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
