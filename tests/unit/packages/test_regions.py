"""Branches, loops, scans and attention of functions in packages, run in a process that has neither
their source nor a compiler."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_rows
from torch.export import Dim
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import braze
from braze.packages.archive import read_archive, write_archive
from tests.unit.packages.test_packages import Calls, leaves, run_elsewhere

LENGTH = 128
WEIGHT = torch.linspace(-1, 1, 64).view(8, 8)


class Heads(nn.Module):
    """Modules and buffers inside of branches and loops."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def route(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum(0)
        made: torch.Tensor = torch.cond(self.seen.sum() > 0, self.one, self.other, (x,))
        return made

    def refine(self, x: torch.Tensor) -> Any:
        return while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, self.one(x).tanh()), (torch.tensor(0), x)
        )


def big_branches(x: torch.Tensor) -> Any:
    return torch.cond(
        x.sum() > 0, lambda x: (x @ WEIGHT).softmax(-1), lambda x: x.cos() @ WEIGHT, (x,)
    )


def nested(x: torch.Tensor) -> Any:
    def body(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return i + 1, torch.cond(
            i > 1, lambda x: x.softmax(-1).cumsum(0), lambda x: x.cumsum(1).tanh(), (x,)
        )

    return while_loop(lambda i, x: i < 4, body, (torch.tensor(0), x))


def counted_by_data(x: torch.Tensor) -> Any:
    return while_loop(
        lambda i, x: x.abs().max() < 100, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)
    )


def recurrence(x: torch.Tensor) -> Any:
    return scan(lambda c, row: ((c + row).tanh(), c * row), torch.zeros(8), x)


def rows(x: torch.Tensor) -> Any:
    return map_rows(lambda row: (row * 2).softmax(-1) @ row, x)


def sums(x: torch.Tensor) -> Any:
    return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


SLOPES = torch.tensor([0.5, 0.25])


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    def alibi(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score + SLOPES[h] * (j - i)

    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu")
    return flex_attention(q, k, v, score_mod=alibi, block_mask=mask)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Any]] = {
    "big_branches": (big_branches, None),
    "big_branches_at_sizes": (big_branches, {"x": {0: Dim("n", min=2)}}),
    "nested": (nested, None),
    "counted_by_data": (counted_by_data, None),
    "recurrence": (recurrence, None),
    "recurrence_at_lengths": (recurrence, {"x": {0: Dim("n", min=2)}}),
    "rows": (rows, None),
    "sums": (sums, None),
    "attention": (attention, None),
}


def given(name: str) -> list[tuple[torch.Tensor, ...]]:
    """The arguments of calls: both branches, and other sizes where they may change."""
    if name == "attention":
        return [tuple(torch.randn(3, 1, 2, LENGTH, 16))]
    sizes = (6, 6, 9, 2) if name.endswith(("_at_sizes", "_at_lengths")) else (6, 6)
    made = [torch.randn(n, 8) for n in sizes]
    return [((x - x.mean() + sign),) for x, sign in zip(made, (1.0, -1.0, 1.0, -1.0))]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each package returns in another process, and what eager does."""
    folder = tmp_path_factory.mktemp("regions")
    torch.manual_seed(0)
    packages: dict[str, Path] = {}
    calls: dict[str, Calls] = {}
    wanted: dict[str, list[Any]] = {}
    for name, (function, shapes) in FUNCTIONS.items():
        arguments = given(name)
        packages[name] = braze.package(function, arguments[0], folder / name, dynamic_shapes=shapes)
        calls[name] = [("forward", each, {}) for each in arguments]
        wanted[name] = [function(*each) for each in arguments]
    model, x = Heads(), torch.randn(4, 8)
    methods = {"route": (model.route, (x,)), "refine": (model.refine, (x,))}
    packages["heads"] = braze.package(methods, folder / "heads")
    calls["heads"] = [
        ("route", (x.abs(),), {}),
        ("route", (-9 * x.abs(),), {}),
        ("refine", (x,), {}),
    ]
    with torch.no_grad():
        wanted["heads"] = [getattr(model, method)(*args) for method, args, _ in calls["heads"]]
    made, facts = run_elsewhere(folder, packages, calls)
    return packages, made, wanted, facts


@pytest.mark.parametrize("name", [*FUNCTIONS, "heads"])
def test_regions_run_as_in_eager(name: str, elsewhere: Any) -> None:
    _, made, wanted, facts = elsewhere
    for found, expected in zip(made[name], wanted[name], strict=True):
        for one, other in zip(leaves(found), leaves(expected), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            assert one.stride() == other.stride()
            assert not one.requires_grad
    assert facts["compiles"] == 0


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("big_branches", ["cond"]),
        ("nested", ["while_loop", "cond"]),
        ("recurrence_at_lengths", ["scan"]),
        ("heads", ["cond", "while_loop"]),
        ("attention", []),
    ],
)
def test_regions_are_in_the_file(name: str, kinds: list[str], elsewhere: Any) -> None:
    found: list[str] = []

    def walk(names: dict[str, Any]) -> None:
        for kind, content in names.values():
            if kind == "region":
                found.append(content["kind"])
                for graph in content["graphs"]:
                    walk(graph["program"]["names"])

    for method in read_archive(elsewhere[0][name]).head["methods"].values():
        walk(method["program"]["names"])
    assert found == kinds


def test_a_damaged_region_is_named(tmp_path: Path) -> None:
    path = braze.package(big_branches, (torch.randn(6, 8),), tmp_path / "p")
    archive = read_archive(path)
    head = json.loads(json.dumps(archive.head).replace('"kind": "cond"', '"kind": "scan_gradient"'))
    write_archive(path, head, archive.members)
    with pytest.raises(braze.exc.InvalidPackage, match="scan_gradient"):
        braze.load_package(path)
