"""Products whose operands are computed where they are multiplied: by Triton's interpreter, beside
eager and float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from braze.codegen.triton import alternatives, generate, host_sources
from braze.ir.kernels.print_schedule import print_schedule
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule
from tests.unit.codegen.test_triton_products import planned
from tests.unit.codegen.triton_running import MARKS, OPTIONS, run_sources

pytestmark = MARKS
_BYTE = torch.int8
_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def _given(dtype: torch.dtype, *specs: Any) -> list[torch.Tensor]:
    """Random tensors: of the dtype, or of that a pair names."""
    torch.manual_seed(0)
    found = []
    for spec in specs:
        shape, kind = (
            spec if isinstance(spec[-1:], tuple) and _names_a_dtype(spec) else (spec, dtype)
        )
        values = torch.randn(shape) / 2
        found.append((values * 40 if kind in (_BYTE, torch.uint8) else values).to(kind))
    return found


def _names_a_dtype(spec: Any) -> bool:
    return len(spec) == 2 and isinstance(spec[1], torch.dtype)


def _of_groups(x: Any, w: Any, s: Any) -> Any:
    wide = w.view(*s.shape, -1).to(x.dtype) * s[:, :, None]
    return F.linear(x, wide.view(w.shape))


def _masters(x: Any, w: Any, b: Any) -> Any:
    return F.linear(x, w.to(x.dtype), b.to(x.dtype))


# function, inputs, which matrices are computed.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[bool, bool]]] = {
    "bytes, a scale a row": (
        lambda x, w, s: F.linear(x, w.to(x.dtype) * s[:, None]),
        ((5, 64), ((96, 64), _BYTE), (96,)),
        (False, True),
    ),
    "bytes, one token, activation": (
        lambda x, w, s, b: F.gelu(F.linear(x, w.to(x.dtype) * s[:, None], b)),
        ((1, 1, 300), ((70, 300), _BYTE), (70,), (70,)),
        (False, True),
    ),
    "bytes, a scale a column": (
        lambda x, w, s: x @ (w.to(x.dtype) * s),
        ((20, 40), ((40, 33), _BYTE), (33,)),
        (False, True),
    ),
    "bytes, a scale of groups": (_of_groups, ((3, 64), ((40, 64), _BYTE), (40, 4)), (False, True)),
    "unsigned bytes and a zero": (
        lambda x, w, s, z: F.linear(x, (w.to(x.dtype) - z[:, None]) * s[:, None]),
        ((5, 64), ((96, 64), torch.uint8), (96,), (96,)),
        (False, True),
    ),
    "floats of a byte": (
        lambda x, w, s: F.linear(x, w.to(x.dtype) * s),
        ((5, 40), ((33, 40), _E4M3), ()),
        (False, True),
    ),
    "other floats of a byte": (
        lambda x, w: x @ w.to(x.dtype),
        ((5, 40), ((40, 33), _E5M2)),
        (False, True),
    ),
    "masters of float32": (
        _masters,
        ((7, 48), ((20, 48), torch.float64), ((20,), torch.float32)),
        (False, True),
    ),
    "a gated pair": (
        lambda a, b, w: (F.silu(a) * b) @ w,
        ((70, 72), (70, 72), (72, 24)),
        (True, False),
    ),
    "an activation, then a residual": (
        lambda h, w, y: torch.mm(F.gelu(h), w) + y,
        ((33, 40), (40, 17), (33, 17)),
        (True, False),
    ),
    "a weight's gradient": (
        lambda h, g: F.relu(h).t() @ g,
        ((50, 24), (50, 40)),
        (True, False),
    ),
    "both": (
        lambda a, b: torch.mm(a.relu(), b.sigmoid()),
        ((40, 50), (50, 24)),
        (True, True),
    ),
    "one kernel makes both": (
        lambda a, b: torch.mm(a.relu(), b.exp().t()),
        ((40, 48), (40, 48)),
        (True, True),
    ),
    "batches": (
        lambda a, b, s: torch.bmm(a * s[:, None, None], b.transpose(1, 2)),
        ((3, 20, 24), (3, 17, 24), (3,)),
        (True, False),
    ),
    "one row, both": (
        lambda a, b, w, s: (F.silu(a) * b) @ (w.to(a.dtype) * s),
        ((1, 90), (1, 90), ((90, 35), _BYTE), (35,)),
        (True, True),
    ),
    "one row of batches": (
        lambda a, b, s: torch.bmm(a * s[:, None, None], b.transpose(1, 2)),
        ((3, 1, 1100), (3, 5, 1100), (3,)),
        (True, False),
    ),
    "a batch of one": (
        lambda a, b: torch.bmm(a.relu(), b.tanh()).relu(),
        ((1, 20, 24), (1, 24, 17)),
        (True, True),
    ),
    "a slice of it": (
        lambda a, b: torch.mm(F.relu(a)[3:, 4:28], b),
        ((20, 40), (24, 17)),
        (True, False),
    ),
    "padded": (lambda a, b: torch.mm(F.pad(a, (0, 3)), b), ((20, 37), (40, 17)), (True, False)),
    "nothing is not zero": (
        lambda a, b: torch.mm(1 / a, b.exp()),
        ((20, 37), (37, 17)),
        (True, True),
    ),
    "another dtype's numbers": (
        lambda a, b: torch.mm((a > 0).to(b.dtype), b),
        ((20, 37), (37, 17)),
        (True, False),
    ),
}


def _products(plan: Schedule) -> list[Kernel]:
    return [s for s in plan.steps if isinstance(s, Kernel) and s.product is not None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_results_are_eagers(name: str, dtype: torch.dtype) -> None:
    function, specs, wanted = CASES[name]
    if name == "masters of float32" and dtype == torch.float32:
        specs = (specs[0], specs[1], specs[2][0])
    given = _given(dtype, *specs)
    made, plan = planned(function, given)
    (kernel,) = _products(plan)
    assert kernel.product is not None
    assert tuple(c is not None for c in kernel.product.computed) == wanted, print_schedule(plan)
    assert not any(isinstance(step, ExternStep) for step in plan.steps)
    (found,) = run_sources(made, plan, generate(plan, OPTIONS), given)
    right = function(*given)
    assert found.stride() == right.stride() and found.dtype == right.dtype
    _is_as_exact(found, right, function(*map(_widened, given)))


def _widened(x: torch.Tensor) -> torch.Tensor:
    return x.double()


def _is_as_exact(found: torch.Tensor, right: torch.Tensor, exact: torch.Tensor) -> None:
    """At most twice eager's error; where that has none, the rounding of the results'."""
    errors = [float((x.double() - exact).norm() / exact.norm()) for x in (found, right)]
    assert errors[0] <= max(2 * errors[1], torch.finfo(right.dtype).eps / 4), errors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "name", ["bytes, a scale a row", "bytes, one token, activation", "a gated pair"]
)
def test_every_candidate_of_tuning(name: str, dtype: torch.dtype) -> None:
    function, specs, _ = CASES[name]
    given = _given(dtype, *specs)
    made, plan = planned(function, given)
    (ways,) = alternatives(plan, OPTIONS)
    assert len({launch.function for launch in ways}) == len(ways) >= 3
    exact = function(*map(_widened, given))
    for launch in ways:
        (found,) = run_sources(made, plan, host_sources(plan, [(launch,)]), given)
        _is_as_exact(found, function(*given), exact)
