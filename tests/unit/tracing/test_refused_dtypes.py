"""Fake tensors raise for the dtypes that real kernels lack, and for no others."""

from __future__ import annotations

import pytest
import torch

from braze.tracing import Tracer
from braze.tracing.shape_rules.dtype_support import _LACKS, _REAL_ONLY

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int16, torch.bool)
NAMES = sorted({name for _, names in _LACKS for name in names.split()})
ORDERED = sorted(_REAL_ONLY.split())
# What is called with, behind a matrix.
VECTOR = torch.ones(2)
MORE = {
    "_softmax": (-1, False),
    "_log_softmax": (-1, False),
    "mse_loss": ("same",),
    "smooth_l1_loss": ("same",),
    "huber_loss": ("same",),
    "lerp.Scalar": ("same", 0.5),
    "lerp.Tensor": ("same", "same"),
    "addcdiv": ("same", "same"),
    "addcmul": ("same", "same"),
    "addmm": ("same", "same"),
    "mm": ("same",),
    "bmm": ("same",),
    "baddbmm": ("same", "same"),
    "dot": ("same",),
    "mv": ("vector",),
    "addmv": ("matrix", "same"),
    "logcumsumexp": (0,),
    "topk": (1,),
    "threshold": (0, 1),
    "hardshrink": (0.5,),
    "multinomial": (1,),
}
PAIRS = (
    "atan2 copysign.Tensor floor_divide fmax fmin fmod.Tensor gcd ge.Tensor gt.Tensor hypot lcm "
    "le.Tensor logaddexp2 lt.Tensor maximum minimum remainder.Tensor special_xlog1py xlogy.Tensor"
)
MORE |= dict.fromkeys(PAIRS.split(), ("same",))
MORE |= dict.fromkeys(
    "clamp clamp_max clamp_min floor_divide.Scalar fmod.Scalar ge.Scalar gt.Scalar le.Scalar "
    "lt.Scalar max.dim min.dim remainder.Scalar bernoulli.p".split(),
    (1,),
)
VECTORS = frozenset({"dot", "addmv"})


def _arguments(name: str, dtype: torch.dtype) -> list[object]:
    first = torch.ones(2, 2).to(dtype)
    if name in VECTORS:
        first = first[0].clone()
    if name in ("bmm", "baddbmm"):
        first = first[None].clone()
    kinds = {
        "same": first,
        "vector": torch.ones(2).to(dtype),
        "matrix": torch.ones(2, 2).to(dtype),
    }
    rest = [kinds.get(item, item) if isinstance(item, str) else item for item in MORE.get(name, ())]
    if name == "nll_loss_forward":
        rest = [torch.zeros(2, dtype=torch.int64), None, 1, -100]
    return [first, *rest]


def _raises(call: object, arguments: list[object]) -> bool:
    try:
        call(*arguments)  # type: ignore[operator]
    except (NotImplementedError, RuntimeError, TypeError):
        return True
    return False


@pytest.mark.parametrize("name", NAMES)
def test_stand_ins_refuse_what_kernels_refuse(name: str) -> None:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    for dtype in DTYPES:
        arguments = _arguments(name, dtype)
        tracer = Tracer()
        fakes = [tracer.add_input(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        with tracer:
            refused = _raises(op, fakes)
        assert refused == _raises(op, arguments), (name, dtype)


@pytest.mark.parametrize("name", ORDERED)
def test_complex_numbers_have_no_order(name: str) -> None:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    real, mixed = _arguments(name, torch.float32), _arguments(name, torch.complex64)
    for arguments in (mixed, [real[0], *mixed[1:]]):
        if not any(isinstance(a, torch.Tensor) and a.is_complex() for a in arguments):
            continue
        assert _raises(op, arguments)
        tracer = Tracer()
        with tracer:
            fakes = [tracer.add_input(a) if isinstance(a, torch.Tensor) else a for a in arguments]
            assert _raises(op, fakes)
