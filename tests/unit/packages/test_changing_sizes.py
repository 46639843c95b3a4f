"""Sizes of one and zero, where the range of a dimension allows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import braze
from braze.exc import PackageInputError
from tests.unit.packages.test_packages import Calls, assert_close, run_elsewhere

BATCH, LENGTH = Dim("batch"), Dim("length", max=64)
SIZES = (3, 1, 0, 2, 7)


class Together(nn.Module):
    """Two arguments of one size, in containers."""

    def forward(self, x: torch.Tensor, more: list[torch.Tensor]) -> torch.Tensor:
        return (x.sum(0) + more[0].t() @ x.softmax(1)) / (x.shape[0] + 1)


class Mixed(nn.Module):
    """What differs for a row or none: strides, broadcasts, views, an outer product."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        table = x[:, None] + x[None, :]
        return table, x @ x.t(), x.t() * 2, torch.cat([x, x * 2]).transpose(0, 1) + 1


class Views(nn.Module):
    """The reshape is a view for one row only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).reshape(-1) * 2


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def rows(n: int, width: int = 4) -> tuple[Any, ...]:
    return (torch.rand(n, width),)


def pairs(n: int) -> tuple[Any, ...]:
    return torch.rand(n, 4), [torch.rand(n, 4)]


# A model, its example, which sizes change, and its calls.
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Any, Any, list[tuple[Any, ...]]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)),
        rows(3),
        {"input": {0: BATCH}},
        [rows(n) for n in SIZES],
    ),
    "together": (
        Together,
        pairs(3),
        {"x": {0: BATCH}, "more": [{0: BATCH}]},
        [pairs(n) for n in SIZES],
    ),
    "mixed": (Mixed, rows(3), {"x": {0: BATCH}}, [rows(n) for n in SIZES]),
    "views": (Views, rows(3), {"x": {0: BATCH}}, [rows(n) for n in SIZES]),
    "words": (
        lambda: nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4)),
        (torch.randint(10, (2, 3)),),
        {"input": {1: LENGTH}},
        [(torch.randint(10, (2, n)),) for n in SIZES],
    ),
    "encoder": (
        encoder,
        (torch.rand(3, 5, 16),),
        {"src": {0: BATCH, 1: LENGTH}},
        [(torch.rand(*sizes, 16),) for sizes in ((3, 5), (1, 1), (1, 4), (6, 1))],
    ),
}


def test_sizes_in_another_process(tmp_path: Path) -> None:
    """Of functions and of exported programs; the results have eager's strides."""
    packages: dict[str, Path] = {}
    calls: dict[str, Calls] = {}
    models = {}
    for name, (make, example, shapes, given) in PROGRAMS.items():
        torch.manual_seed(0)
        model = models[name] = make().eval()
        exported = torch.export.export(model, example, dynamic_shapes=shapes)
        own, other = tmp_path / f"{name}.braze", tmp_path / f"{name}_exported.braze"
        packages[name] = braze.package(model, example, own, dynamic_shapes=shapes)
        packages[f"{name}_exported"] = braze.package(exported, path=other)
        calls[name] = calls[f"{name}_exported"] = [("forward", args, {}) for args in given]
    made, facts = run_elsewhere(tmp_path, packages, calls)
    assert facts["compiles"] == 0 and facts["modules"] == []
    for name in packages:
        model = models[name.removesuffix("_exported")]
        with torch.no_grad():
            wanted = [model(*args) for _, args, _ in calls[name]]
        for one, other in zip(made[name], wanted, strict=True):
            found, expected = (v if isinstance(v, tuple) else (v,) for v in (one, other))
            assert_close(list(found), list(expected))


def programs_of(path: Path) -> int:
    return 1 + len(braze.load_package(path)["forward"]._plan.further)


def test_one_program_serves_one_and_more(tmp_path: Path) -> None:
    """And zero has its own; one has, too, where the program asks."""

    def package(function: Any, shape: Any, count: int = 3) -> int:
        path, shapes = tmp_path / "a.braze", {"x": {0: shape}}
        return programs_of(braze.package(function, rows(count), path, dynamic_shapes=shapes))

    assert package(lambda x: x * 2, Dim("n")) == 2
    assert package(lambda x: x * 2, Dim("n", min=1)) == 1
    assert package(lambda x: x * 2, Dim("n", min=2)) == 1
    assert package(lambda x: x * 2, Dim("n"), 1) == 2
    assert package(Views(), Dim("n")) == 3
    assert package(Views(), Dim("n", min=1), 1) == 2
    assert braze.load_package(tmp_path / "a.braze")(torch.ones(5, 4)).shape == (20,)


def test_sizes_outside_the_range(tmp_path: Path) -> None:
    shapes = {"x": {0: Dim("n", min=1, max=5)}}
    path = braze.package(lambda x: x + 1, rows(3), tmp_path / "a", dynamic_shapes=shapes)
    loaded = braze.load_package(path)
    assert loaded(torch.zeros(1, 4)).tolist() == [[1.0] * 4]
    for wrong in (0, 6):
        with pytest.raises(PackageInputError, match=r"1 <= x.size\(\)\[0\] <= 5 does not hold"):
            loaded(torch.zeros(wrong, 4))


def test_sizes_that_the_program_raises_for(tmp_path: Path) -> None:
    shapes = {"x": {0: BATCH}}
    path = braze.package(lambda x: x.amax(0), rows(3), tmp_path / "a", dynamic_shapes=shapes)
    loaded = braze.load_package(path)
    assert torch.equal(loaded(torch.ones(1, 4)), torch.ones(4))
    with pytest.raises(
        PackageInputError, match=r"(?s)could not be packaged:.*batch=0: .*zero-size dimension"
    ):
        loaded(torch.ones(0, 4))


def test_no_call_is_made(tmp_path: Path) -> None:
    """Neither of the example nor of the sizes that are tried."""
    ran = []

    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] < 2:
                raise ValueError(f"{x.shape[0]} rows")
            return x * 2

    model = Raises()
    model.register_forward_hook(
        lambda *_: ran.append(1) if not torch.compiler.is_compiling() else None
    )
    path = braze.package(model, rows(3), tmp_path / "a", dynamic_shapes={"x": {0: BATCH}})
    assert not ran
    loaded = braze.load_package(path)
    assert loaded(torch.ones(7, 4)).shape == (7, 4)
    with pytest.raises(PackageInputError, match=r"batch=1: .*ValueError"):
        loaded(torch.ones(1, 4))
