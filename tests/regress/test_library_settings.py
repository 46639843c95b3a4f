"""How PyTorch's libraries compute is set where the program sets it, and holds for what it calls
there: writes to `torch.backends.cudnn` were lost, and calls inside of `cudnn.flags` were made under
the settings outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze
from tests.unit.capture.test_backward import breaks_of

cudnn = torch.backends.cudnn


def settings() -> tuple[Any, ...]:
    c = torch._C
    precisions = [c._get_fp32_precision_getter("cuda", op) for op in ("conv", "matmul")]
    flags = (c._get_cudnn_enabled(), c._get_cudnn_benchmark(), c._get_cudnn_deterministic())
    return (*flags, *precisions)


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # PyTorch's own tests freeze them.
    space = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(space, "__allow_nonbracketed_mutation_flag", True)
    before = settings()
    yield
    put_back(before)


def put_back(before: tuple[Any, ...]) -> None:
    enabled, benchmark, deterministic, conv, matmul = before
    c = torch._C
    c._set_cudnn_enabled(enabled)
    c._set_cudnn_benchmark(benchmark)
    c._set_cudnn_deterministic(deterministic)
    c._set_cudnn_allow_tf32(conv == "tf32")  # of recurrent networks, too, as it was
    c._set_fp32_precision_setter("cuda", "matmul", matmul)


@torch.library.custom_op("braze_library_settings::look", mutates_args=())
def look(x: torch.Tensor) -> torch.Tensor:
    """What a call of a library would see."""
    enabled, benchmark, deterministic, conv, matmul = settings()
    seen = [enabled, benchmark, deterministic, conv == "tf32", matmul == "tf32"]
    return x + torch.tensor(seen, dtype=x.dtype)


look.register_fake(torch.empty_like)


def cudnn_tf32(x: torch.Tensor) -> torch.Tensor:
    y = look(x)
    cudnn.allow_tf32 = False
    return y * look(x)


def cudnn_benchmark(x: torch.Tensor) -> torch.Tensor:
    cudnn.benchmark = True
    cudnn.deterministic = True
    return look(x)


def flags(x: torch.Tensor) -> torch.Tensor:
    with cudnn.flags(enabled=False, benchmark=True, allow_tf32=False):
        y = look(x * 2)
    return y * look(x)


def matmul_tf32(x: torch.Tensor) -> torch.Tensor:
    torch.backends.cuda.matmul.allow_tf32 = True
    return look(x)


def matmul_precision(x: torch.Tensor) -> torch.Tensor:
    y = look(x)
    torch.set_float32_matmul_precision("high")
    return y * look(x)


def precision(x: torch.Tensor) -> torch.Tensor:
    cudnn.conv.fp32_precision = "ieee"
    return look(x)


@pytest.mark.parametrize(
    "program", [cudnn_tf32, cudnn_benchmark, flags, matmul_tf32, matmul_precision, precision]
)
def test_settings(program: Callable[..., Any]) -> None:
    x = torch.zeros(5)
    before = settings()
    found = []
    compiled = braze.compile(program)
    for call in (program, compiled):
        found.append([(call(x).tolist(), settings()) for _ in range(3)])
        put_back(before)
    assert found[0] == found[1]
    assert breaks_of(compiled)
