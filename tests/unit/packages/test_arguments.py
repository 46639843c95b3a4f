"""What a packaged call refuses, and what a package cannot hold: each says which and why."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import braze
from braze.exc import GraphBreakError, PackageInputError, UserError
from braze.packages.loaded import Package
from tests.unit.packages.models import Pairs


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Package:
    path = tmp_path_factory.mktemp("package") / "a.braze"
    example = (torch.rand(5, 8), {"a": [torch.rand(8)]})
    shapes = {"x": {0: Dim("rows", min=3, max=9)}}
    return braze.load_package(braze.package(Pairs(), example, path, {"scale": 2.0}, shapes))


X, MORE = torch.rand(5, 8), {"a": [torch.rand(8)]}


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((X.double(), MORE), {}, "the dtype of x is torch.float64"),
        ((X.to("meta"), MORE), {}, "the device of x is meta"),
        ((X.to_sparse(), MORE), {}, "the layout of x"),
        ((X[0], MORE), {}, r"the shape of x is \(8,\), and the package was made for \(any, 8\)"),
        ((torch.rand(5, 9), MORE), {}, "the shape of x"),
        ((torch.rand(8, 5).t(), MORE), {}, "the strides of x"),
        ((torch.rand(2, 8), MORE), {}, "3 <= x.size"),
        ((torch.rand(10, 8), MORE), {}, "<= 9"),
        ((X.numpy(), MORE), {}, "x is a ndarray"),
        ((X, {"a": [torch.rand(9)]}), {}, r"the shape of more\['a'\]\[0\]"),
        ((X, {"a": (torch.rand(8),)}), {}, r"more\['a'\] is a tuple of length 1"),
        ((X, {"a": []}), {}, "list of length 0"),
        ((X, {"b": MORE["a"]}), {}, "dict with the keys"),
        ((X, None), {}, "more is a NoneType"),
        ((X, MORE), {"scale": 3.0}, "scale is 3.0, and the package was made for 2.0"),
        ((X, MORE), {"scale": 2}, "scale is 2,"),
        ((X, MORE), {"scale": torch.tensor(2.0)}, "scale is tensor"),
        ((X, MORE, 2.0), {}, "too many positional arguments"),
        ((X, MORE), {"other": 1}, "unexpected keyword argument 'other'"),
        ((X,), {}, "missing a required argument: 'more'"),
    ],
)
def test_arguments_that_do_not_fit(
    loaded: Package, args: tuple[Any, ...], kwargs: dict[str, Any], told: str
) -> None:
    calls = loaded.state_dict()["calls"]
    with pytest.raises(PackageInputError, match=told):
        loaded(*args, **({"scale": 2.0} | kwargs))
    assert torch.equal(loaded.state_dict()["calls"], calls), "it ran"


def test_defaults_are_part_of_the_call(loaded: Package) -> None:
    with pytest.raises(PackageInputError, match="scale is not given"):
        loaded(X, MORE)
    assert loaded(more=MORE, x=X, scale=2.0)["rows"] == [10, "text"]


def test_memory_shared_otherwise(tmp_path: Path) -> None:
    """The program writes to x: y must not be in its memory, unless it was."""

    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    apart = braze.load_package(
        braze.package(write, (torch.ones(4), torch.ones(4)), tmp_path / "apart.braze")
    )
    x = torch.ones(4)
    assert torch.equal(apart(x, torch.full((4,), 3.0)), torch.full((4,), 6.0))
    assert torch.equal(x, torch.full((4,), 2.0))
    for y in (x, x[:], x.view(2, 2).view(4)):
        with pytest.raises(PackageInputError):
            apart(x, y)
    assert torch.equal(x, torch.full((4,), 2.0)), "it ran"
    same = torch.ones(4)
    together = braze.load_package(braze.package(write, (same, same), tmp_path / "same.braze"))
    x = torch.ones(4)
    assert torch.equal(together(x, x), torch.full((4,), 4.0))
    with pytest.raises(PackageInputError, match="one tensor are two"):
        together(torch.ones(4), torch.ones(4))


def test_errors_of_the_program(tmp_path: Path) -> None:
    def pick(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index] * 2

    example = (torch.rand(5), torch.tensor([0, 1]))
    loaded = braze.load_package(braze.package(pick, example, tmp_path / "a.braze"))
    with pytest.raises(IndexError, match="out of range"):
        loaded(torch.rand(5), torch.tensor([0, 7]))
    assert torch.equal(loaded(*example), example[0][:2] * 2)


class Point:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


COUNT = [0]


def counts(x: torch.Tensor) -> torch.Tensor:
    COUNT.append(1)
    return x + 1


def branches(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def trains(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return x * torch.nn.Parameter(torch.ones(3))


class Remembers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.register_buffer("seen", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count

    def grow(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, x])
        return self.seen.sum(0)


@pytest.mark.parametrize(
    ("function", "args", "error", "told"),
    [
        (branches, (torch.ones(3),), GraphBreakError, "test_arguments.py"),
        (lambda x: Point(x), (torch.ones(3),), UserError, "Point"),
        (lambda p: p.x, (Point(torch.ones(3)),), UserError, "argument p holds a Point"),
        (lambda x: x + random.random(), (torch.ones(3),), UserError, "random numbers"),
        (lambda x: x, (object(),), UserError, "argument x holds a object"),
        (lambda x: x + 1, (torch.ones(3, device="meta"),), UserError, "computes on meta"),
        (counts, (torch.ones(3),), UserError, "COUNT"),
        (Remembers(), (torch.ones(3),), UserError, "count"),
        (Remembers().grow, (torch.ones(1, 3),), UserError, "seen.*another type"),
        (torch.sin, (torch.ones(3),), UserError, "Python function"),
        (lambda x: x, torch.ones(3), UserError, "args is a tuple"),
        (lambda x, y: x, (torch.ones(3),), UserError, "missing a required argument: 'y'"),
    ],
)
def test_programs_that_no_package_holds(
    function: Callable[..., Any], args: Any, error: type, told: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=told):
        braze.package(function, args, tmp_path / "a.braze")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        ({"z": {0: Dim("b")}}, "names 'z'"),
        ({"x": {2: Dim("b")}}, "no dimension 2"),
        ({"x": {0: "b"}}, "it is a Dim"),
        (({0: Dim("b")}, None), "2 items"),
        ({"x": [Dim("b")]}, "a dict of dimensions"),
        (7, "a dict or a tuple"),
    ],
)
def test_dynamic_shapes_that_do_not_fit(shapes: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told):
        braze.package(lambda x: x, (torch.ones(3, 4),), tmp_path / "a", dynamic_shapes=shapes)


def test_sizes_that_the_program_fixes(tmp_path: Path) -> None:
    with pytest.raises(braze.exc.ConstraintViolated):
        braze.package(
            lambda x: x + torch.ones(4),
            (torch.ones(3, 4),),
            tmp_path / "a",
            dynamic_shapes={"x": {1: Dim("b")}},
        )
    assert braze.package(
        lambda x: x + torch.ones(4),
        (torch.ones(3, 4),),
        tmp_path / "b",
        dynamic_shapes=((Dim.DYNAMIC, Dim.AUTO),),
    ).exists()


def test_marks_of_the_caller_stay(tmp_path: Path) -> None:
    x = torch.ones(3, 4)
    braze.mark_dynamic(x, 0)
    loaded = braze.load_package(braze.package(lambda x: x * 2, (x,), tmp_path / "a"))
    assert loaded(torch.ones(6, 4)).shape == (6, 4)
    y = torch.ones(3, 4)
    braze.package(lambda x: x * 2, (y,), tmp_path / "b", dynamic_shapes={"x": {0: Dim("n")}})
    assert not vars(y), "the caller's tensor is marked"
