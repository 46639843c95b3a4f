"""Which convolutions may become kernels with what reads them, in which ways, and why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from braze.codegen.triton import kernel_alternatives
from braze.ir.device_model import H200
from braze.ir.kernels.loops import Load
from braze.ir.kernels.print_schedule import print_schedule
from braze.ir.kernels.schedule import Kernel, Product, Schedule
from tests.unit.codegen.running import OPTIONS
from tests.unit.schedule.test_products import listed, shown

Given = list[torch.Tensor]


def _images(*shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> Given:
    made = [torch.empty(shape, dtype=dtype) for shape in shapes]
    return [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in made]


def _padded(x: Any, w: Any, *rest: Any) -> Any:
    return F.relu(F.conv2d(x, w, *rest, padding=1))


def _products(plan: Schedule) -> list[Product]:
    return [k.product for k in plan.steps if isinstance(k, Kernel) and k.product]


IMAGE, SQUARE, POINT = (2, 32, 6, 5), (32, 32, 3, 3), (32, 32, 1, 1)
WAYS: dict[str, tuple[Callable[..., Any], Given, list[str]]] = {
    "a window": (_padded, _images(IMAGE, SQUARE), ["c k", "p*"]),
    "a window and a bias": (_padded, _images(IMAGE, SQUARE, (32,)), ["c k", "p*"]),
    "a point": (lambda x, w: F.relu(F.conv2d(x, w)), _images(IMAGE, POINT), ["c k", "p"]),
    "a point and steps": (
        lambda x, w: F.relu(F.conv2d(x, w, stride=2)),
        _images(IMAGE, POINT),
        ["c k", "p*"],
    ),
    "what makes the image of a point": (
        lambda x, w: F.relu(F.conv2d(F.silu(x), w)),
        _images(IMAGE, POINT),
        ["k c k", "p*", "k p"],
    ),
    "what makes it, and nothing behind": (
        lambda x, w: F.conv2d(F.silu(x), w),
        _images(IMAGE, POINT),
        ["k c", "p*", "k p"],
    ),
    "a weight of another dtype": (
        lambda x, w: F.relu(F.conv2d(x, w.to(x.dtype))),
        [*_images(IMAGE), torch.empty(POINT)],
        ["k c k", "p*", "k p"],
    ),
    "a weight of another dtype, of windows": (
        lambda x, w: _padded(x, w.to(x.dtype)),
        [*_images(IMAGE), *_images(SQUARE, dtype=torch.float32)],
        ["k c k", "p**", "k p*"],
    ),
    "a weight in another order": (
        lambda x, w: _padded(x, w.contiguous(memory_format=torch.channels_last)),
        [*_images(IMAGE), torch.empty(SQUARE, dtype=torch.bfloat16)],
        ["c k", "p*"],
    ),
    "what makes the image of a window": (
        lambda x, w: _padded(F.silu(x), w),
        _images(IMAGE, SQUARE),
        ["c k", "p*"],
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_ways_of(name: str) -> None:
    function, given, wanted = WAYS[name]
    (ways,), _ = listed(function, given)
    assert [shown(way) for way in ways] == wanted


def test_the_image_is_read_where_it_is() -> None:
    _, plan = listed(_padded, _images(IMAGE, SQUARE), 1)
    (kernel,) = plan.steps
    assert isinstance(kernel, Kernel)
    assert print_schedule(plan).splitlines()[:3] == [
        f"kernel {kernel.name}: memory b0, b1, b3",
        "  t0 = b0{[60, 288][288, 1]} @ b1{[288, 32][1, 288]}",
        "    b0 at [pr1, pc1]: (b0[((pr1) // (30)), ((pc1) % (32)), ((((pr1) // (5))) % (6)) + "
        "((pc1) // (96)) + -1, ((((pc1) // (32))) % (3)) + ((pr1) % (5)) + -1] if "
        "((((index(((((pr1) // (5))) % (6)) + ((pc1) // (96)) + -1) >= 0:i64) & "
        "(index(((((pr1) // (5))) % (6)) + ((pc1) // (96)) + -1) < 6:i64)) & "
        "(index(((((pc1) // (32))) % (3)) + ((pr1) % (5)) + -1) >= 0:i64)) & "
        "(index(((((pc1) // (32))) % (3)) + ((pr1) % (5)) + -1) < 5:i64)) else 0.0:bf16)",
    ]


def test_without_padding_nothing_is_asked() -> None:
    """Nor is what steps over the last row, which no window reaches."""
    _, plan = listed(
        lambda x, w: F.relu(F.conv2d(x, w, stride=2)), _images((2, 32, 8, 8), SQUARE), 1
    )
    (product,) = _products(plan)
    assert product.computed[0] is not None and isinstance(product.computed[0].value, Load)


def test_the_result_that_others_read_is_written() -> None:
    """The caller gets it."""

    def both(x: Any, w: Any) -> Any:
        y = F.conv2d(x, w, padding=1)
        return y, F.relu(y)

    _, plan = listed(both, _images(IMAGE, SQUARE), 1)
    (kernel,) = plan.steps
    assert isinstance(kernel, Kernel) and len(kernel.phases[0].body) == 2
    assert {view.buffer for view in plan.outputs} <= {*kernel.memory}


def test_of_two_that_one_kernel_reads_one_is_taken() -> None:
    """As in a block that changes the number of channels."""

    def block(x: Any, w: Any, v: Any) -> Any:
        return F.relu(F.conv2d(x, w, padding=1) + F.conv2d(x, v))

    ways, plan = listed(block, _images(IMAGE, SQUARE, POINT), 1)
    assert len(ways) == 1 and len(plan.steps) == 2 and len(_products(plan)) == 1


def test_each_layer_is_the_same_text() -> None:
    """Names of windows depend on the convolution alone: layers are tuned once."""
    _, plan = listed(lambda x, w, v: _padded(_padded(x, w), v), _images(IMAGE, SQUARE, SQUARE), 1)
    kernels = [k for k in plan.steps if isinstance(k, Kernel)]
    names = {tuple(x.function.name for x in kernel_alternatives(k, OPTIONS, H200)) for k in kernels}
    assert len(kernels) == 2 and len(names) == 1


LEFT: dict[str, tuple[Callable[..., Any], Given, str]] = {
    "groups": (
        lambda x, w: F.relu(F.conv2d(x, w, groups=2)),
        _images(IMAGE, (32, 16, 3, 3)),
        "of groups",
    ),
    "transposed": (
        lambda x, w: F.relu(F.conv_transpose2d(x, w)),
        _images(IMAGE, SQUARE),
        "it is transposed",
    ),
    "one dimension": (
        lambda x, w: F.relu(F.conv1d(x, w)),
        _images((2, 32, 20), (32, 32, 3)),
        "not over rows and columns",
    ),
    "a stem": (
        _padded,
        _images((2, 3, 8, 8), (32, 3, 3, 3)),
        "3 channels are not read 16 bytes at a time",
    ),
    "few channels": (
        _padded,
        _images((2, 8, 8, 8), (32, 8, 3, 3)),
        "8 channels are not read 16 bytes at a time",
    ),
    "odd channels": (
        _padded,
        _images((2, 20, 8, 8), (32, 20, 3, 3)),
        "20 channels are not read 16 bytes at a time",
    ),
    "float64": (_padded, _images(IMAGE, SQUARE, dtype=torch.float64), "of torch.float64"),
    "rows innermost": (
        lambda x, w: _padded(x.contiguous(), w.contiguous()),
        [torch.empty(IMAGE), torch.empty(SQUARE)],
        "its result is not channels-last",
    ),
    "a weight with its rows innermost": (
        _padded,
        [*_images(IMAGE), torch.empty(SQUARE, dtype=torch.bfloat16)],
        "its weight is not channels-last",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_the_library(name: str, caplog: pytest.LogCaptureFixture) -> None:
    function, given, reason = LEFT[name]
    with caplog.at_level("INFO", "braze.fusion"):
        ways, plan = listed(function, given, 1)
    assert not ways and not _products(plan)
    assert "is left to the library: " in caplog.text and reason in caplog.text


BEHIND: dict[str, Callable[..., Any]] = {
    "a fold": lambda x, w: F.relu(F.conv2d(x, w)).float().mean((2, 3)),
    "neighbours": lambda x, w: F.max_pool2d(F.conv2d(x, w), 2),
    "nothing": F.conv2d,
}


@pytest.mark.parametrize("name", BEHIND)
def test_what_does_not_read_it_point_by_point(name: str) -> None:
    ways, plan = listed(BEHIND[name], _images(IMAGE, SQUARE), 1)
    assert not ways and not _products(plan)


@pytest.fixture
def _switches() -> Iterator[None]:
    before = torch._C._get_cudnn_enabled(), torch._C._get_cudnn_allow_tf32()
    yield
    torch._C._set_cudnn_enabled(before[0])
    torch._C._set_cudnn_allow_tf32(before[1])


@pytest.mark.parametrize("allowed", [True, False])
def test_float32_is_multiplied_as_the_library_may(allowed: bool, _switches: None) -> None:
    torch._C._set_cudnn_allow_tf32(allowed)
    _, plan = listed(_padded, _images(IMAGE, SQUARE, dtype=torch.float32), 1)
    (product,) = _products(plan)
    assert product.precision == ("tf32" if allowed else "ieee")
    assert (" as tf32" in print_schedule(plan)) is allowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_cudnn_the_precision_is_not_known(
    dtype: torch.dtype, _switches: None, caplog: pytest.LogCaptureFixture
) -> None:
    torch._C._set_cudnn_enabled(False)
    with caplog.at_level("INFO", "braze.fusion"):
        _, plan = listed(_padded, _images(IMAGE, SQUARE, dtype=dtype), 1)
    assert len(_products(plan)) == (dtype == torch.bfloat16)
    assert ("the library's precision is not known" in caplog.text) is (dtype == torch.float32)


def test_products_of_float32_are_never_of_less() -> None:
    _, plan = listed(lambda x, w: (x @ w).relu(), [torch.empty(40, 32), torch.empty(32, 16)], 1)
    (product,) = _products(plan)
    assert product.precision == "ieee"


def test_the_log_says_which_way(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "braze.fusion"):
        listed(_padded, _images(IMAGE, SQUARE), 1)
    wanted = "aten.convolution.default to b2: a kernel of ours, its reader in it (not: separate)"
    assert any(wanted in record.getMessage() for record in caplog.records), caplog.text
