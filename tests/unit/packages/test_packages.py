"""Packages in a process without the model's source, a compiler, or a cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch.export import Dim

import braze
from tests.unit.packages.models import Decoder, Pairs, Residual, Tied

Calls = list[tuple[str, tuple[Any, ...], dict[str, Any]]]
SCRIPT = Path(__file__).parent / "run_package.py"
SOURCE = Path(braze.__file__).parents[1]


def python_elsewhere(arguments: Sequence[str], folder: Path, cwd: Path) -> str:
    """What another Python prints, without a compiler or a cache, and that it built nothing."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={
            "PATH": str(folder / "nothing"),
            "PYTHONPATH": str(SOURCE),
            "BRAZE_CACHE_DIR": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "HOME": str(folder),
        },
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = folder / "cache" / "kernels"
    assert not kernels.exists() or not [*kernels.iterdir()], "something was built"
    return done.stdout


def run_elsewhere(
    folder: Path, packages: dict[str, Path], calls: dict[str, Calls], modules: Sequence[Path] = ()
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """What the calls of each package return in another process, and what that had to do with.
    modules: files that it can import."""
    torch.save((packages, calls), folder / "calls.pt")
    (folder / "elsewhere").mkdir()
    script = folder / "elsewhere" / "run.py"  # not beside the models
    script.write_text(SCRIPT.read_text())
    for module in modules:
        (script.parent / module.name).write_text(module.read_text())
    arguments = [str(script), str(folder / "calls.pt"), str(folder / "results.pt")]
    printed = python_elsewhere(arguments, folder, script.parent)
    return torch.load(folder / "results.pt", weights_only=False), json.loads(printed)


def leaves(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)


def assert_equal(found: Any, wanted: Any) -> None:
    """Equal bits, strides and structure."""
    spec = torch.utils._pytree.tree_structure
    assert spec(found) == spec(wanted)
    for one, other in zip(leaves(found), leaves(wanted), strict=True):
        assert type(one) is type(other)
        if not isinstance(one, torch.Tensor):
            assert one == other
            continue
        assert (one.dtype, one.stride(), one.requires_grad) == (other.dtype, other.stride(), False)
        assert torch.equal(one, other.detach())


def by_compile(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What braze.compile returns, each call by a graph of its own where sizes are not marked."""
    compiled = braze.compile(function, fullgraph=True)
    with torch.no_grad():
        return [compiled(*args) for args in calls]


def marked(tensor: torch.Tensor, *dims: int) -> torch.Tensor:
    braze.mark_dynamic(tensor, dims)
    return tensor


@final
@dataclass
class Elsewhere:
    """Packages that one other process runs. made: what each call returned, by package."""

    packages: dict[str, Path]
    calls: dict[str, Calls]
    made: dict[str, list[Any]]
    facts: dict[str, Any]
    models: dict[str, Any]


def package_decoder(path: Path) -> tuple[Any, Path, Calls]:
    torch.manual_seed(0)
    model = Decoder().eval()
    prompt = torch.randint(50, (1, 7))
    shapes = {"tokens": {1: Dim("length", max=20)}}
    decode = (model.decode, (torch.tensor([3]), torch.tensor([7])))
    made = braze.package(
        {"prefill": (model.prefill, (prompt,), None, shapes), "decode": decode}, path
    )
    assert not model.attentions[0].keys.any(), "packaging ran the model"
    calls: Calls = [("prefill", (torch.randint(50, (1, n)),), {}) for n in (7, 11)]
    places = torch.arange(11, 15)[:, None]
    calls += [("decode", (torch.randint(50, (1,)), place), {}) for place in places]
    return model, made, calls


def package_residual(path: Path) -> tuple[Any, Path, Calls]:
    torch.manual_seed(0)
    model = Residual().eval()
    made = braze.package(model, (torch.rand(2, 3, 12, 12),), path)
    return model, made, [("forward", (torch.rand(2, 3, 12, 12),), {}) for _ in range(3)]


def package_encoder(path: Path) -> tuple[Any, Path, Calls]:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    shapes = {"src": {0: Dim("batch"), 1: Dim("length", max=64)}}
    made = braze.package(model, (torch.rand(3, 5, 16),), path, dynamic_shapes=shapes)
    sizes = ((3, 5), (2, 9), (7, 2), (5, 64))
    return model, made, [("forward", (marked(torch.rand(*s, 16), 0, 1),), {}) for s in sizes]


def package_pairs(path: Path) -> tuple[Any, Path, Calls]:
    torch.manual_seed(0)
    model = Pairs()
    example = (torch.rand(5, 8), {"a": [torch.rand(8)]})
    made = braze.package(model, example, path, {"scale": 2.0}, {"x": {0: Dim("rows")}})
    tensors = [(marked(torch.rand(n, 8), 0), {"a": [torch.rand(8)]}) for n in (5, 2, 9)]
    return model, made, [("forward", args, {"scale": 2.0}) for args in tensors]


def wanted(run: Elsewhere, name: str) -> list[Any]:
    """What braze.compile returns for the calls of a package."""
    compiled = braze.compile(run.models[name], fullgraph=True)
    with torch.no_grad():
        return [compiled(*args, **kwargs) for _, args, kwargs in run.calls[name]]


def assert_close(found: list[Any], wanted: list[Any]) -> None:
    """Of the same strides; weights may have been packed otherwise."""
    for one, other in zip(found, wanted, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)


def test_models_in_another_process(tmp_path: Path) -> None:
    """One process for all four: most of the time goes into its imports."""
    run = Elsewhere({}, {}, {}, {}, {})
    for make in (package_decoder, package_residual, package_encoder, package_pairs):
        name = make.__name__.removeprefix("package_")
        path = tmp_path / f"{name}.braze"
        run.models[name], run.packages[name], run.calls[name] = make(path)
    run.made, run.facts = run_elsewhere(tmp_path, run.packages, run.calls)
    assert run.facts["compiles"] == 0 and run.facts["modules"] == []
    assert run.facts["methods"]["decoder"] == ["prefill", "decode"]
    assert {*run.facts["seconds"]} == {*run.packages}
    assert max(run.facts["seconds"].values()) < 0.3
    check_decoder(run)
    check_pairs(run)
    for name in ("residual", "encoder"):
        assert_close(run.made[name], wanted(run, name))
    with pytest.raises(braze.exc.PackageInputError, match=r"src\.size\(\)\[1\] <= 64"):
        braze.load_package(run.packages["encoder"])(torch.rand(3, 65, 16))


def check_decoder(run: Elsewhere) -> None:
    """Two methods share the buffers: each token depends on what earlier calls wrote."""
    model, calls = run.models["decoder"], run.calls["decoder"]
    with torch.no_grad():
        made = [getattr(model, method)(*args) for method, args, _ in calls]
        assert_close(run.made["decoder"], made)
        for attention in model.attentions:
            attention.keys.zero_()
        forgetful = model.decode(*calls[-1][1])
    assert not torch.allclose(forgetful, made[-1]), "the cache does not matter"


def check_pairs(run: Elsewhere) -> None:
    """Containers, sizes, constants, and what is one object or shares memory."""
    assert_equal(run.made["pairs"], wanted(run, "pairs"))
    _, args, kwargs = run.calls["pairs"][0]
    made = braze.load_package(run.packages["pairs"])(*args, **kwargs)
    assert made["x"] is args[0]
    assert made["first"][0].untyped_storage().data_ptr() == made["y"].untyped_storage().data_ptr()


def test_batch_norm_counts_in_training(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4)).train()
    images = [torch.rand(4, 3, 8, 8) for _ in range(2)]
    loaded = braze.load_package(braze.package(model, (images[0],), tmp_path / "model.braze"))
    wanted = by_compile(model, [(image,) for image in images])
    assert_equal([loaded(image) for image in images], wanted)
    state = loaded.state_dict()
    assert state["1.num_batches_tracked"] == 2
    for name, value in model.state_dict().items():
        assert torch.equal(state[name], value), name


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("last", torch.zeros(3))

    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        self.last = x * 2
        return self.total.sum()

    def look(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.last, self.total


def test_methods_share_buffers_that_are_replaced(tmp_path: Path) -> None:
    counter, eager, x = Counter(), Counter(), torch.arange(3.0)
    methods = {"add": (counter.add, (x,)), "look": (counter.look, ())}
    loaded = braze.load_package(braze.package(methods, tmp_path / "a.braze"))
    for scale in (1, 5):
        assert_equal(loaded.add(x * scale), eager.add(x * scale))
        assert_equal(loaded.look(), eager.look())
    assert {*loaded.state_dict()} == {"total", "last"} and not counter.total.any()
    with pytest.raises(braze.exc.PackageError, match="add, look"):
        loaded(x)
    with pytest.raises(KeyError, match="add, look"):
        loaded["other"]
    with pytest.raises(AttributeError):
        loaded.other()


def test_random_numbers_follow_the_seed(tmp_path: Path) -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) + torch.rand(3) * torch.randn(3)

    loaded = braze.load_package(braze.package(draw, (torch.ones(4, 3),), tmp_path / "a.braze"))
    torch.manual_seed(3)
    wanted = by_compile(draw, [(torch.ones(4, 3),)] * 2)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    assert_equal([loaded(torch.ones(4, 3)) for _ in range(2)], wanted)
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_bound_later(tmp_path: Path) -> None:
    model, other, tokens = Tied(), Tied(), torch.randint(50, (1, 4))
    small = braze.package(model, (tokens,), tmp_path / "small.braze", weights=False)
    whole = braze.package(model, (tokens,), tmp_path / "whole.braze")
    weights = 4 * sum(p.numel() for p in model.parameters())
    assert small.stat().st_size < whole.stat().st_size - weights
    loaded = braze.load_package(small)
    with pytest.raises(braze.exc.PackageError, match=r"words\.weight.*load_state_dict"):
        loaded(tokens)
    for source in (model, other):
        loaded.load_state_dict(source.state_dict())
        assert_equal([loaded(tokens)], by_compile(source, [(tokens,)]))
    assert torch.equal(loaded.state_dict()["head.weight"], other.words.weight)
    again = braze.load_package(whole)
    assert_equal([again(tokens)], by_compile(model, [(tokens,)]))
    again.load_state_dict(other.state_dict())
    assert_equal([again(tokens)], [loaded(tokens)])


def test_state_that_does_not_fit(tmp_path: Path) -> None:
    model = Tied()
    example = (torch.ones(1, 4, dtype=torch.int64),)
    loaded = braze.load_package(braze.package(model, example, tmp_path / "a.braze"))
    before = loaded.state_dict()
    state: dict[str, Any] = model.state_dict()
    state.pop("head.bias")
    state["more"] = torch.ones(3)
    state["words.weight"] = torch.ones(3)
    with pytest.raises(braze.exc.PackageError) as told:
        loaded.load_state_dict(state)
    for part in ("head.bias is missing", "more is not in", "words.weight has the shape (3,)"):
        assert part in str(told.value)
    loaded.load_state_dict({"more": 1, "head.bias": torch.ones(50)}, strict=False)
    assert torch.equal(loaded.state_dict()["head.bias"], torch.ones(50))
    assert torch.equal(before["words.weight"], loaded.state_dict()["words.weight"])


def test_exported_program(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
    program = torch.export.export(
        model, (torch.rand(5, 3),), dynamic_shapes={"input": {0: Dim("batch")}}
    )
    loaded = braze.load_package(braze.package(program, path=tmp_path / "a.braze"))
    for rows in (2, 5, 9):
        x = torch.rand(rows, 3)
        torch.testing.assert_close(loaded(x), model(x).detach())
    assert {*loaded.state_dict()} == {*model.state_dict()}


def test_package_is_the_same_file_again(tmp_path: Path) -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    one = braze.package(double, (torch.ones(3),), tmp_path / "one.braze")
    other = braze.package(double, (torch.ones(3),), tmp_path / "other.braze")
    assert one.read_bytes() == other.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["one.braze", "other.braze"]


class Scaled(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, *, scale: torch.Tensor, shift: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        return (x * scale + shift["by"]).t()


def test_exported_program_with_keyword_arguments(tmp_path: Path) -> None:
    """Given by keyword only, in any order, and one tensor where the example gave two."""
    ones, rows = torch.ones(3, 4), {0: Dim("rows")}
    kwargs = {"scale": torch.rand(3, 4), "shift": {"by": torch.rand(4)}}
    program = torch.export.export(
        Scaled(), (ones,), kwargs, dynamic_shapes=(rows, rows, {"by": {}})
    )
    swapped = {"shift": {"by": ones[0]}, "scale": ones}
    paths = {
        "own": braze.package(program, path=tmp_path / "own.braze"),
        "given": braze.package(program, (ones,), tmp_path / "given.braze", swapped),
    }
    xs = [torch.rand(n, 4) for n in (3, 6)]
    one = ("forward", (xs[0],), {"scale": xs[0], "shift": {"by": torch.rand(4)}})
    other = ("forward", (xs[1],), {"shift": {"by": torch.rand(4)}, "scale": torch.rand(6, 4)})
    made, facts = run_elsewhere(tmp_path, paths, {"own": [one, other], "given": [one, other]})
    assert facts["compiles"] == 0 and facts["modules"] == []
    for found in made.values():
        assert_equal(found, [Scaled()(*args, **kwargs) for _, args, kwargs in (one, other)])
    with pytest.raises(braze.exc.PackageInputError, match="too many positional"):
        braze.load_package(paths["own"])(xs[0], xs[0], xs[0][0])
