"""Operators of our own, in the `braze` namespace, as PyTorch's dispatcher wants them registered."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from braze.compat import private_names as private
from braze.compat.python.other_compilers import unseen_by_other_compilers
from braze.compat.torch.aten import aten
from braze.compat.torch.autograd_engine import AutogradFunction
from braze.errors import IndexRangeError, OperatorRaises


def _library() -> torch.library.Library:
    """A namespace for our operators: "braze", or where another copy of Braze in the process has
    that one, the next that is free. Its operators are not ours."""
    for number in itertools.count(1):
        with contextlib.suppress(RuntimeError):
            return torch.library.Library("braze" if number == 1 else f"braze_{number}", "DEF")
    raise AssertionError("unreachable")


_LIBRARY = _library()
NAMESPACE: str = _LIBRARY.ns
_OURS: Any = getattr(torch.ops, NAMESPACE)


def _no_effect(*arguments: object) -> None:
    return None


def _operator(name: str) -> torch._ops.OpOverload:
    found: torch._ops.OpOverload = getattr(_OURS, name).default
    return found


def define_operator(name: str, schema: str, kernel: Callable[..., object]) -> torch._ops.OpOverload:
    """A new operator in our namespace without results, of one kernel for all devices, below
    autograd. It does nothing to tensors without memory: the kernel is never given one."""
    _LIBRARY.define(f"{name}{schema}")
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, _no_effect, "Meta")
    return _operator(name)


_LIBRARY.define("with_data(Tensor history, Tensor data) -> Tensor")


@unseen_by_other_compilers
class _WithData(AutogradFunction):
    saves_nothing = True

    @staticmethod
    def forward(
        ctx: object, history: torch.Tensor, data: torch.Tensor, grad_enabled: bool
    ) -> torch.Tensor:
        with private.below_autograd(), torch.set_grad_enabled(grad_enabled):
            made: torch.Tensor = _OURS.with_data.default(history, data)
            return made

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradient, None, None


def _autograd(history: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    # A trace notes under which mode the program calls it, not what autograd sets in a function.
    made: torch.Tensor = _WithData.apply(history, data, torch.is_grad_enabled())
    return made


def _copy(history: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    return data.clone()


_LIBRARY.impl("with_data", _autograd, "Autograd")
_LIBRARY.impl("with_data", _copy, "CompositeExplicitAutograd")

with_data = _OURS.with_data.default
"""with_data(history, data): the contents of `data`, with the gradients of `history`.

What a tensor that requires grad is after a write that autograd did not see (under `no_grad`, or
through `.detach()`): its data are new, its history is the old one.
"""

_LIBRARY.define("overwritten(Tensor before, Tensor data) -> Tensor")


@unseen_by_other_compilers
class _Overwritten(AutogradFunction):
    @staticmethod
    def forward(
        ctx: object, before: torch.Tensor, data: torch.Tensor, grad_enabled: bool
    ) -> torch.Tensor:
        with private.below_autograd(), torch.set_grad_enabled(grad_enabled):
            made: torch.Tensor = _OURS.overwritten.default(before, data)
            return made

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return torch.zeros_like(gradient), gradient, None


def _autograd_of_overwritten(before: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = _Overwritten.apply(before, data, torch.is_grad_enabled())
    return made


_LIBRARY.impl("overwritten", _autograd_of_overwritten, "Autograd")
_LIBRARY.impl("overwritten", _copy, "CompositeExplicitAutograd")

overwritten = _OURS.overwritten.default
"""overwritten(before, data): the contents of `data`; the gradient of `before` is zero, not absent.

What `copy_` leaves in a tensor that requires grad, as autograd sees it: the tensor goes on to
require grad, and what it was made from gets zeros.
"""


_LIBRARY.define("check_holds(Tensor holds) -> ()")
_LIBRARY.define("keep_whole(Tensor made) -> ()")


def _check_holds(holds: torch.Tensor) -> None:
    if holds.device.type == "cpu" and not holds:
        raise OperatorRaises("an operator whose result is not used raises")


def _keep_whole(made: torch.Tensor) -> None:
    return None


_LIBRARY.impl("check_holds", _check_holds, "CompositeExplicitAutograd")
_LIBRARY.impl("keep_whole", _keep_whole, "CompositeExplicitAutograd")

check_holds = _OURS.check_holds.default
"""check_holds(holds): raises OperatorRaises unless a tensor of one truth holds."""

keep_whole = _OURS.keep_whole.default
"""keep_whole(made): does nothing, but what it is given is computed, all of it."""


_LIBRARY.define("check_positions(Tensor holds) -> ()")


def _check_positions(holds: torch.Tensor) -> None:
    if holds.device.type == "cpu" and not holds:
        raise IndexRangeError("an index, or a divisor, behind an operator with effects is refused")


_LIBRARY.impl("check_positions", _check_positions, "CompositeExplicitAutograd")

check_positions = torch.ops.braze.check_positions.default
"""check_positions(holds): raises IndexRangeError unless a tensor of one truth holds."""

_LIBRARY.define("pending_writes(Tensor[] targets, Tensor[] values, int[] counts) -> ()")
_LIBRARY.define("end_pending(Tensor[] targets, Tensor[] values) -> ()")


_LIBRARY.impl("pending_writes", _no_effect, "CompositeExplicitAutograd")
_LIBRARY.impl("end_pending", _no_effect, "CompositeExplicitAutograd")

pending_writes = torch.ops.braze.pending_writes.default
"""pending_writes(targets, values, counts): until `end_pending`, targets are left with these values
if the graph raises, and count as often as written to."""

end_pending = torch.ops.braze.end_pending.default
"""end_pending(targets, values): what `pending_writes` began ends; both are alive until here."""


def _python_function(
    plain: torch._ops.OpOverload, python: Callable[[float], float]
) -> torch._ops.OpOverload:
    def compute(number: torch.Tensor) -> torch.Tensor:
        try:
            return torch.full_like(number, python(number.item()))
        except (ValueError, OverflowError):  # a check beside it makes the program raise
            unchecked: torch.Tensor = plain(number)
            return unchecked

    name = f"python_{python.__name__}"
    _LIBRARY.define(f"{name}(Tensor number) -> Tensor")
    _LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    return _operator(name)


PYTHON_FUNCTIONS: dict[torch._ops.OpOverload, torch._ops.OpOverload] = {
    getattr(aten, python.__name__).default: _python_function(
        getattr(aten, python.__name__).default, python
    )
    for python in (math.sqrt, math.exp, math.log, math.sin, math.cos, math.tanh)
}
"""ATen's operator -> the same of a Python float, which is a 0-dim float64 tensor: kernels of ATen
may round the last bit otherwise than the `math` module does."""

_LIBRARY.define(
    "custom_gradient(Tensor[] inputs, Tensor[] results, Tensor[] captured, SymInt[] sizes) "
    "-> Tensor[]"
)
custom_gradient = _OURS.custom_gradient.default
"""The schema of nodes whose gradients a program defines (`ir/graphs/custom_gradient.py`)."""

_LIBRARY.define("region(Tensor[] operands, SymInt[] sizes) -> Tensor[]")
region = _OURS.region.default
"""The schema of nodes that run graphs (`ir/graphs/region.py`)."""

_LIBRARY.define(
    "convolution(Tensor image, Tensor weight, Tensor? bias, Tensor[] norm, float eps, "
    "Tensor? added, int[] stride, int[] padding, int[] dilation, int groups, "
    "str activation, float[] bounds) -> Tensor"
)


_ACTIVATIONS = {
    "relu": aten.relu.default,
    "hardswish": aten.hardswish.default,
    "hardsigmoid": aten.hardsigmoid.default,
    "sigmoid": aten.sigmoid.default,
    "silu": aten.silu.default,
}


def _convolution(
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm: list[torch.Tensor],
    eps: float,
    added: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    activation: str,
    bounds: list[float],
) -> torch.Tensor:
    zeros = [0] * len(stride)
    window = (stride, padding, dilation, False, zeros, groups)
    made = aten.convolution.default(image, weight, bias, *window)
    if norm:
        made = aten._native_batch_norm_legit_no_training.default(made, *norm, 0.0, eps)[0]
    if added is not None:
        made = made + added
    if activation == "hardtanh":
        made = made.clamp(*bounds)
    elif activation:
        made = _ACTIVATIONS[activation](made)
    result: torch.Tensor = made
    return result.contiguous(memory_format=torch.channels_last)


_LIBRARY.impl("convolution", _convolution, "CompositeExplicitAutograd")

convolution = _OURS.convolution.default
"""convolution(image, weight, bias, norm, eps, added, ...): activation(norm(conv) + added), channels
last. norm: weight, bias, mean and variance of a batch norm in eval mode, or none."""

_LIBRARY.define("pack_weights(Tensor[] weights, int[] places) -> Tensor[]")
_LIBRARY.impl(
    "pack_weights",
    lambda weights, places: [weights[0].new_empty(0) for _ in range(len(places) // 6)],
    "CompositeExplicitAutograd",
)

pack_weights = _OURS.pack_weights.default
"""pack_weights(weights, places): matrices in the panels that kernels of products multiply, or
nothing of one, which a kernel then packs itself. places: for each matrix, the number of its weight,
its offset there, its rows and columns, and the steps from one to the next."""

_RNN = aten.mkldnn_rnn_layer.default
_LIBRARY.define(str(_RNN._schema).replace("aten::mkldnn_rnn_layer", "mkldnn_rnn_training"))


def _rnn_training(*args: object) -> object:
    with torch.enable_grad(), private.below_autograd():
        return _RNN(*args)


_LIBRARY.impl("mkldnn_rnn_training", _rnn_training, "CompositeExplicitAutograd")

TRAINING_FORMS: dict[torch._ops.OpOverload, torch._ops.OpOverload] = {
    _RNN: _OURS.mkldnn_rnn_training.default
}
"""Operators whose kernels look at the grad mode to see whether a backward will follow, and what
does the same whatever the mode is."""
