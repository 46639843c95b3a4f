"""Named tuples and registered classes as arguments and results."""

from __future__ import annotations

import collections
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.export import Dim
from torch.utils import _pytree

import braze
from braze.exc import InvalidPackage, PackageInputError, UserError
from tests.unit.packages.test_packages import Calls, run_elsewhere

SOURCE = """
import collections
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

Pair = collections.namedtuple("Pair", "left right")


@dataclass
class Boxes:
    corners: torch.Tensor
    scores: Any
    labels: list
    image: torch.Tensor | None = None


class Scaled:
    \"\"\"A tensor and a number, which is its context; neither a dataclass nor a dict.\"\"\"

    __slots__ = ("factor", "tensor")

    def __init__(self, tensor, factor):
        self.tensor, self.factor = tensor, factor


class Named(collections.OrderedDict):
    \"\"\"As the outputs of transformers are: entries that are attributes, too.\"\"\"

    def __init__(self, **entries):
        super().__init__(**entries)
        for name, value in entries.items():
            self.__dict__[name] = value


torch.export.register_dataclass(Boxes, serialized_type_name="boxes.v1")
_pytree.register_pytree_node(
    Scaled,
    lambda s: ([s.tensor], s.factor),
    lambda items, factor: Scaled(*items, factor),
    flatten_with_keys_fn=lambda s: ([(_pytree.GetAttrKey("tensor"), s.tensor)], s.factor),
)
_pytree.register_pytree_node(
    Named,
    lambda n: (list(n.values()), list(n.keys())),
    lambda items, names: Named(**dict(zip(names, items))),
    flatten_with_keys_fn=lambda n: ([(_pytree.MappingKey(k), v) for k, v in n.items()], list(n)),
)


class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, pair, boxes, *, scaled):
        corners = self.linear(boxes.corners) * scaled.factor + pair.left
        if boxes.image is None:
            corners = corners + scaled.tensor
        made = Boxes(corners, boxes.scores.softmax(0), [corners.t(), boxes.labels[0]])
        total = Scaled((corners * pair.right[0]).sum(1), scaled.factor + 1)
        pairs = [Pair(total, Pair(corners[0], "end"))]
        return Named(boxes=made, pairs=pairs, rows=corners.shape[0])
"""


def forget(cls: type) -> None:
    _pytree.SUPPORTED_NODES.pop(cls)
    node = _pytree.SUPPORTED_SERIALIZED_TYPES.pop(cls)
    _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.pop(node.serialized_type_name, None)


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the program, which is imported from a file."""
    (tmp_path / "points.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    found = importlib.import_module("points")
    yield found
    sys.modules.pop("points", None)
    for cls in (found.Boxes, found.Scaled, found.Named):
        forget(cls)


def arguments(
    points: Any, rows: int, image: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    pair = points.Pair(torch.rand(4), [torch.rand(())])
    picture = torch.rand(2) if image else None
    boxes = points.Boxes(torch.rand(rows, 4), torch.rand(rows), [torch.arange(3)], picture)
    return (pair, boxes), {"scaled": points.Scaled(torch.rand(rows, 1), 2.0)}


def assert_same(found: Any, wanted: Any) -> None:
    """Of the same classes, and of equal tensors and strides."""
    leaves, spec = _pytree.tree_flatten(found)
    others, other_spec = _pytree.tree_flatten(wanted)
    assert spec == other_spec
    for one, other in zip(leaves, others, strict=True):
        assert type(one) is type(other)
        if isinstance(one, torch.Tensor):
            assert one.stride() == other.stride()
            torch.testing.assert_close(one, other.detach())
        else:
            assert one == other


def test_classes_in_another_process(tmp_path: Path, points: Any) -> None:
    """Of a module, and of an exported program."""
    model = points.Detector()
    args, kwargs = arguments(points, 3)
    rows = {0: Dim("rows")}
    shapes = {"pair": None, "boxes": [rows, rows, None], "scaled": [rows]}
    exported = torch.export.export(
        model,
        args,
        kwargs,
        dynamic_shapes={**shapes, "pair": points.Pair(None, [None]), "boxes": [rows, rows, [None]]},
    )
    packages = {
        "own": braze.package(model, args, tmp_path / "own.braze", kwargs, shapes),
        "exported": braze.package(exported, path=tmp_path / "exported.braze"),
    }
    given: Calls = [("forward", *arguments(points, n)) for n in (3, 1, 5)]
    calls = dict.fromkeys(packages, given)
    made, facts = run_elsewhere(tmp_path, packages, calls, [tmp_path / "points.py"])
    assert facts["compiles"] == 0 and facts["modules"] == []
    wanted = [model(*args, **kwargs) for _, args, kwargs in given]
    for name in packages:
        assert_same(made[name], wanted)
        assert type(made[name][0]) is points.Named and made[name][0].boxes.image is None


def test_other_structures_are_refused(tmp_path: Path, points: Any) -> None:
    model, (args, kwargs) = points.Detector(), arguments(points, 3)
    loaded = braze.load_package(braze.package(model, args, tmp_path / "a.braze", kwargs))
    pair, boxes = args
    Other = collections.namedtuple("Other", "left right")
    cases = [
        ((tuple(pair), boxes), "pair is a tuple of length 2, and the package was made for a Pair"),
        ((Other(*pair), boxes), "pair is a Other"),
        ((pair, arguments(points, 3, image=True)[0][1]), "boxes has the registered context"),
        ((pair, points.Scaled(pair.left, 1)), "boxes is a Scaled"),
        ((pair._replace(left=torch.rand(5)), boxes), r"the shape of pair.left is \(5,\)"),
    ]
    for wrong, told in cases:
        with pytest.raises(PackageInputError, match=told):
            loaded(*wrong, **kwargs)
    kwargs["scaled"].factor = 3.0
    with pytest.raises(PackageInputError, match=r"context 3.0, and the package was made for 2.0"):
        loaded(*args, **kwargs)


class Local(NamedTuple):
    x: torch.Tensor
    n: int


def test_classes_that_are_not_imported(tmp_path: Path, points: Any) -> None:
    """A named tuple is made anew, of the same name and fields; others must be registered."""
    pairs = braze.package(
        lambda x: points.Pair(x + 1, Local(x, 3)), (torch.ones(3),), tmp_path / "pairs"
    )
    scaled = braze.package(
        lambda x: points.Scaled(x + 1, 2.0), (torch.ones(3),), tmp_path / "scaled"
    )
    del sys.modules["points"]
    made = braze.load_package(pairs)(torch.ones(3))
    assert type(made).__qualname__ == "Pair" and type(made) is not points.Pair
    assert made._fields == ("left", "right") and type(made.right) is Local and made.right.n == 3
    with pytest.raises(
        InvalidPackage, match=r"points\.Scaled, which this process has not registered"
    ):
        braze.load_package(scaled)


@dataclass
class Counted:
    x: torch.Tensor

    def __post_init__(self) -> None:
        self.most = float(self.x.max())


@dataclass
class Unregistered:
    x: torch.Tensor


def test_what_a_class_computes_of_its_children(tmp_path: Path) -> None:
    """Another call would have another value, which nothing compares."""
    torch.export.register_dataclass(Counted)
    try:
        with pytest.raises(UserError, match=r"most.*does not tell"):
            braze.package(lambda c: c.x * c.most, (Counted(torch.ones(3)),), tmp_path / "a")
        path = braze.package(lambda c: c.x * 2, (Counted(torch.ones(3)),), tmp_path / "b")
        assert torch.equal(braze.load_package(path)(Counted(torch.ones(3))), torch.full((3,), 2.0))
    finally:
        forget(Counted)
    for function, given in (
        (lambda c: c.x * 2, Unregistered(torch.ones(3))),
        (lambda x: Unregistered(x), torch.ones(3)),
    ):
        with pytest.raises(UserError, match="Unregistered"):
            braze.package(function, (given,), tmp_path / "c")
