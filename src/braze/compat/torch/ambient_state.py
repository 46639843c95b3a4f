"""The ambient state that changes what a program computes, as one comparable vector."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Literal, final

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from braze.compat import private_names as private
from braze.compat.torch.tracers import is_fx_tracing, unusual_keys
from braze.frozen import frozen

# What lets a mode see all that follows: programs enter their own modes by it.
MODE_ENTRIES = (TorchFunctionMode.__enter__, private.TorchDispatchMode.__enter__)
MODE_EXIT = TorchFunctionMode.__exit__
# What sets how the library computes from then on: a graph's calls of it would not see that.
_SETTERS = (
    "_set_cublas_allow_bf16_reduced_precision_reduction",
    "_set_cublas_allow_fp16_accumulation",
    "_set_cublas_allow_fp16_reduced_precision_reduction",
    "_set_cublas_allow_tf32",
    "_set_cudnn_allow_tf32",
    "_set_cudnn_benchmark",
    "_set_cudnn_deterministic",
    "_set_cudnn_enabled",
    "_set_float32_matmul_precision",
    "_set_fp32_precision_setter",
    "_set_mkldnn_enabled",
    "_set_onednn_allow_tf32",
)
SET_DETERMINISTIC = private.set_deterministic  # nothing but the flags
LIBRARY_SETTERS = (
    torch.set_float32_matmul_precision,
    torch.backends.cudnn.set_flags,
    torch.backends.cudnn.flags,
    torch.backends.mkldnn.set_flags,
    torch.backends.mkldnn.flags,
    *[getattr(torch._C, name) for name in _SETTERS if hasattr(torch._C, name)],
)
# What enters an autocast region and leaves it, as calls that a torch.fx graph can have.
ENTER_AUTOCAST: Any = private.enter_autocast
EXIT_AUTOCAST: Any = private.exit_autocast
_AUTOCAST_DEVICES = ("cpu", "cuda")
CONVOLUTIONS = ("cuda", "conv")  # whose precision is asked for and set


@final
@frozen
class AmbientState:
    """What is the same at every call that an entry serves.

    autocast: (enabled, dtype) of each device type in turn. function_modes, dispatch_modes: how
    many are active; a compiled entry needs none but the one that stands for default_device.
    anomaly: whether the engine looks for the origin of errors, and for NaN as well.
    forward_level: the level of forward-mode gradients, -1 outside of one; a compiled entry needs
    none, since its inputs' tangents are nothing that a graph sees.
    convolutions: whether cuDNN computes them on a GPU, and in what it multiplies float32.
    unusual_keys, fx_tracing: what tells of tracers and transforms (compat/torch/tracers.py); a
    compiled
    entry needs none, since they are to see the program's own operators.
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    autocast_cache: bool
    default_dtype: torch.dtype
    deterministic: bool
    deterministic_warn_only: bool
    sdpa: tuple[bool, ...]
    function_modes: int
    dispatch_modes: int
    anomaly: tuple[bool, bool] = (False, False)
    default_device: torch.device | None = None
    forward_level: int = -1
    convolutions: tuple[bool, str] = (True, "tf32")
    unusual_keys: int = 0
    fx_tracing: bool = False

    def __str__(self) -> str:
        """Whether gradients are recorded, and all that a program has set otherwise than PyTorch
        begins with."""
        said = {"inference": self.inference, "deterministic": self.deterministic}
        said["anomaly"] = self.anomaly[0]
        counted = {"function modes": self.function_modes, "dispatch modes": self.dispatch_modes}
        words = [f"grad mode {'on' if self.grad else 'off'}"]
        words += [f"{name} mode on" for name, on in said.items() if on]
        words += [
            f"autocast on {device} to {dtype}"
            for device, (on, dtype) in zip(_AUTOCAST_DEVICES, self.autocast, strict=True)
            if on
        ]
        words += [f"default dtype {self.default_dtype}"] * (self.default_dtype != torch.float32)
        words += [f"default device {self.default_device}"] * (self.default_device is not None)
        words += ["not every attention kernel allowed"] * (not all(self.sdpa))
        words += ["forward-mode gradients"] * (self.forward_level >= 0)
        enabled, precision = self.convolutions
        words += ["no cuDNN"] * (not enabled)
        words += ["float32 convolutions without TF32"] * (precision != "tf32")
        return ", ".join(words + [f"{n} {name}" for name, n in counted.items() if n])

    def casts(self) -> tuple[tuple[str, torch.dtype, bool], ...]:
        """(device type, dtype, whether casts are remembered) of each device that autocast is on
        for."""
        pairs = zip(_AUTOCAST_DEVICES, self.autocast, strict=True)
        return tuple([(d, dtype, self.autocast_cache) for d, (on, dtype) in pairs if on])

    def settings(self) -> tuple[object, ...]:
        """What else changes what a call does: no node of a torch.fx graph sets it."""
        modes = self.inference, self.function_modes, self.default_device, self.forward_level
        flags = self.deterministic, self.deterministic_warn_only, self.sdpa, self.convolutions
        return (*modes, *flags, self.default_dtype)

    def holds(self) -> bool:
        """Whether the thread's state is this one now."""
        return ambient_state() == self

    def with_modes_of(self, before: AmbientState) -> AmbientState:
        """The state without what the capture itself has entered since."""
        return replace(self, dispatch_modes=before.dispatch_modes, unusual_keys=before.unusual_keys)

    def difference(self) -> str | None:
        """What is not as it was, in words; None where all is."""
        now = ambient_state()
        for what in fields(self):
            expected, actual = getattr(self, what.name), getattr(now, what.name)
            if expected != actual:
                name = what.name.replace("_", " ")
                return f"ambient state mismatch: {name}. expected {expected}, actual {actual}"
        return None


def ambient_state() -> AmbientState:
    """The vector as it is now, in this thread. Call it with no mode of one's own active."""
    return AmbientState(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple(
            [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _AUTOCAST_DEVICES]
        ),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        tuple([question() for question, _ in _SDPA_FLAGS]),
        len(private.function_modes()),
        len(private.dispatch_modes()),
        anomaly_mode(),
        default_device(),
        forward_ad._current_level,
        _convolutions(),
        unusual_keys(),
        is_fx_tracing(),
    )


def _convolutions() -> tuple[bool, str]:
    enabled: bool = private.cudnn_enabled()
    return enabled, private.precision_of(*CONVOLUTIONS)


def convolution_precision() -> Literal["ieee", "tf32"] | None:
    """In what the library multiplies float32 in convolutions on a GPU; None where it is not cuDNN
    that computes them."""
    enabled, precision = _convolutions()
    if not enabled:
        return None
    return "tf32" if precision == "tf32" else "ieee"


def anomaly_mode() -> tuple[bool, bool]:
    """Whether anomalies of the backward are looked for, and NaN too."""
    enabled = torch.is_anomaly_enabled()
    return enabled, enabled and torch.is_anomaly_check_nan_enabled()


def default_device() -> torch.device | None:
    """What `torch.set_default_device` or `with torch.device(...)` asks for in this thread."""
    modes = private.function_modes()
    is_device = bool(modes) and type(modes[0]) is private.DeviceContext
    return modes[0].device if is_device else None


def autocast_depth() -> int:
    """How many autocast regions the thread is in."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def set_ambient_state(state: AmbientState, deeper: int = 0) -> None:
    """Make the thread's state this one; modes are left alone.

    deeper: autocast regions entered (left, where negative) by that; autocast forgets its casts of
        weights when the last one is left.
    """
    for _ in range(deeper):
        torch.autocast_increment_nesting()
    for _ in range(-deeper):
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
    private.set_grad_enabled(state.grad)
    for device, (enabled, dtype) in zip(_AUTOCAST_DEVICES, state.autocast):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(state.autocast_cache)
    if anomaly_mode() != state.anomaly:
        enabled, checks_nan = state.anomaly
        torch.set_anomaly_enabled(enabled, checks_nan or not enabled)
    if torch.get_default_dtype() is not state.default_dtype:
        torch.set_default_dtype(state.default_dtype)
    found = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    if found != (state.deterministic, state.deterministic_warn_only):
        torch.use_deterministic_algorithms(
            state.deterministic, warn_only=state.deterministic_warn_only
        )
    for (question, setter), enabled in zip(_SDPA_FLAGS, state.sdpa):
        if question() is not enabled:
            setter(enabled)
    enabled, precision = state.convolutions
    if private.cudnn_enabled() is not enabled:
        private.set_cudnn_enabled(enabled)
    if _convolutions()[1] != precision:
        private.set_precision(*CONVOLUTIONS, precision)


_SDPA_FLAGS: tuple[tuple[Any, Any], ...] = (
    (private.sdpa_flash, private.set_sdpa_flash),
    (private.sdpa_efficient, private.set_sdpa_efficient),
    (private.sdpa_math, private.set_sdpa_math),
    (private.sdpa_cudnn, private.set_sdpa_cudnn),
    (private.sdpa_overrideable, private.set_sdpa_overrideable),
)


def call_untraced(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call with no dispatch mode active: tensors made in it are real."""
    with private.no_dispatch():
        return function(*args, **kwargs)
