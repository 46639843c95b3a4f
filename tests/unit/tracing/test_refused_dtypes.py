"""Fake tensors raise for the dtypes that real kernels lack, and for no others."""

from __future__ import annotations

import itertools

import pytest
import torch

from braze.tracing import Tracer
from braze.tracing.shape_rules import dtype_support
from braze.tracing.shape_rules.dtype_support import _LACKS, _REAL_ONLY

_TABLES = {*dtype_support._REFUSED, *dtype_support._ORDERED}
# Operators of tensors alone, up to three.
OPERATORS = sorted(
    (
        op
        for op in _TABLES
        if [str(a.type) for a in op._schema.arguments if not a.has_default_value()]
        in (["Tensor"] * 2, ["Tensor"] * 3)
    ),
    key=str,
)
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


def _dtype_of(call: object, arguments: list[torch.Tensor]) -> torch.dtype | None:
    """The dtype of the (first) result, None where the call raises."""
    try:
        made = call(*arguments)  # type: ignore[operator]
    except (IndexError, NotImplementedError, RuntimeError, TypeError):
        return None
    return (made if isinstance(made, torch.Tensor) else made[0]).dtype


@pytest.mark.parametrize("op", OPERATORS, ids=str)
def test_kernels_take_dtypes_that_differ(op: torch._ops.OpOverload) -> None:
    """Some are chosen by the first operand's dtype, others by what the operands promote to."""
    count = sum(str(a.type) == "Tensor" for a in op._schema.arguments if not a.has_default_value())
    mixed = (torch.bool, torch.int64, torch.float16, torch.float32)
    for dtypes in itertools.product(mixed, repeat=count):
        arguments = [torch.ones(2, 2).to(dtype) for dtype in dtypes]
        tracer = Tracer()
        with tracer:
            promised = _dtype_of(op, [tracer.add_input(a) for a in arguments])
        assert promised == _dtype_of(op, arguments), dtypes


def test_operators_of_two_operands_are_asked() -> None:
    assert {"aten.addcmul.default", "aten.huber_loss.default"} <= {*map(str, OPERATORS)}


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "expanded"])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_huber_losses_lie_as_their_input(layout: str, reduction: str) -> None:
    x = torch.rand(3, 1, dtype=torch.float16).expand(3, 2)
    x = {"expanded": x, "contiguous": x.contiguous(), "transposed": x.contiguous().t()}[layout]
    target = torch.rand(x.shape)
    tracer = Tracer()
    with tracer:
        fakes = tracer.add_input(x), tracer.add_input(target)
        promised = torch.nn.functional.huber_loss(*fakes, reduction=reduction)
    made = torch.nn.functional.huber_loss(x, target, reduction=reduction)
    assert (promised.dtype, promised.stride()) == (made.dtype, made.stride())
