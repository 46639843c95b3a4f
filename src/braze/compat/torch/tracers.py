"""What watches the operations of this thread from outside of a compiled function.

A tracer of somebody else's (`torch.jit.trace`, `torch.export`, `make_fx`), a mode or a transform
has to see the operators of the program: those of a graph it would see otherwise, or not at all,
and then take results for constants. So a compiled call runs the original program meanwhile.
What is active is told by the thread's dispatch keys, the depth of the stacks of modes, and the flag
of `torch.fx`; a key that nobody here has heard of counts as a tracer, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from braze.compat import private_names as private
from braze.compat.torch.functorch import WithoutTransforms

_included: Any = private.included_keys
_excluded: Any = private.excluded_keys


# Where an essential name is gone nothing is compiled, and nobody asks for keys.
_HAS_KEYS = not private.gone_essentials()


def _bits(name: str) -> int:
    if not _HAS_KEYS:
        return 0
    return int(private.DispatchKeySet(private.parse_dispatch_key(name)).raw_repr())


def _number(name: str) -> int:
    key: Any = private.parse_dispatch_key(name)
    return int(key)


def _inference_keys() -> int:
    with torch.inference_mode():
        found: int = _excluded().raw_repr()
        return found


# Modes are counted, and inference mode and autocast are asked for, by questions of their own.
_OF_MODES = _bits("Python") | _bits("PythonTLSSnapshot")
_USUAL = _bits("BackendSelect") | _bits("ADInplaceOrView")
_AUTOCAST: int = private.excluded_keys().raw_repr() | _bits("AutocastCPU")
_OF_INFERENCE = _inference_keys() & ~_AUTOCAST


def _bits_of_names() -> int:
    """The key of dimension names, which backwards of PyTorch 2.11 exclude; later ones have none."""
    try:
        return _bits("Named")
    except RuntimeError:
        return 0


_HARMLESS = _AUTOCAST | _bits_of_names()

# By their numbers: what programs can have included, and excluded, at a call. All keys together are
# compared when something is compiled.
INCLUDED_BY_TRACERS = tuple(
    _number(name)
    for name in (
        "Tracer",
        "FuncTorchDynamicLayerFrontMode",
        "FuncTorchVmapMode",
        "VmapMode",
        "Functionalize",
        "PreDispatch",
        "PythonDispatcher",
    )
)
EXCLUDED_BELOW_AUTOGRAD = _number("AutogradOther")


def _fx_question() -> tuple[Callable[..., bool], str | None]:
    """What says, asked with the argument if there is one, whether a tracer of torch.fx is at work:
    a function since PyTorch 2.14, where each thread has a flag, and a global before."""
    space: dict[str, Any] = vars(torch.fx._symbolic_trace)
    asked = space.get("_get_is_fx_tracing")
    return (space.__getitem__, "_is_fx_tracing_flag") if asked is None else (asked, None)


FX_QUESTION = _fx_question()


def unusual_keys() -> int:
    """The dispatch keys, as bits, that the thread includes or excludes beyond what PyTorch begins
    with and what inference mode, autocast and modes do; 0 where there are none."""
    inference = torch.is_inference_mode_enabled()
    usual = _USUAL & ~_bits("ADInplaceOrView") if inference else _USUAL
    included = (_included().raw_repr() & ~_OF_MODES) ^ usual
    excluded = (_excluded().raw_repr() & ~_HARMLESS) ^ (_OF_INFERENCE if inference else 0)
    return int(included | excluded)


def is_fx_tracing() -> bool:
    """Whether `torch.fx.symbolic_trace`, or another tracer of torch.fx, is at work."""
    asked, argument = FX_QUESTION
    return asked() if argument is None else asked(argument)


FORWARD = "a level of forward mode"  # among the kinds of transforms
_TRANSFORMS = frozenset(("Vmap", "Grad", "Jvp"))


def only_transforms() -> tuple[str, ...]:
    """The kinds of transforms around, outermost first, where what watches is nothing else; `()`
    where something else does."""
    if private.pop_transform is None or private.push_transform is None:
        return ()
    with WithoutTransforms() as outside:
        modes, functions = private.dispatch_modes(), private.function_modes()
        own = len(functions) > 0 and type(functions[0]) is private.DeviceContext
        if modes or len(functions) > own or unusual_keys() or is_fx_tracing():
            return ()
        if private.jit_trace() is not None or not _TRANSFORMS.issuperset(outside.kinds):
            return ()
    return outside.kinds + (FORWARD,) * (forward_ad._current_level >= 0)


def active_tracer() -> str | None:
    """What must see the operators of the program itself, in words; None if nothing does."""
    modes: list[Any] = [*private.dispatch_modes()]
    functions = private.function_modes()
    modes += functions[type(functions[0]) is private.DeviceContext :] if functions else []
    keys = unusual_keys()
    if not (modes or keys or is_fx_tracing() or forward_ad._current_level >= 0):
        return None
    if private.jit_trace() is not None:
        return "torch.jit.trace"
    if is_fx_tracing():
        return "a tracer of torch.fx"
    with contextlib.suppress(IndexError):
        return f"the mode {type(modes[-1]).__qualname__}"
    if forward_ad._current_level >= 0:
        return "forward-mode gradients"
    if private.innermost_transform() is not None:
        return "a transform of torch.func"
    return f"unusual dispatch keys ({_included()}, without {_excluded()})"
