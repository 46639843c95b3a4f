"""`aot_compile` and `load_compiled_function`, as PyTorch's documentation shows them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.packaging import AotCompiledFunction
from braze.trace import JOURNAL
from tests.unit.packages.test_packages import python_elsewhere

SCALE = 2


def example(x: torch.Tensor, y: torch.Tensor, flag: bool = True) -> torch.Tensor:
    return torch.sin(x) + y if flag else x - y


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> dict[str, torch.Tensor]:
        self.calls += 1
        made = self.norm(self.linear(x)).relu() * scale
        return {"made": made, "calls": self.calls * 1}


def compile_ahead(function: Any, *args: Any, dynamic: bool | None = None, **kwargs: Any) -> Any:
    compiled = braze.compile(function, fullgraph=True, dynamic=dynamic)
    whole = compiled.forward if isinstance(compiled, nn.Module) else compiled
    return whole.aot_compile((args, kwargs))


def in_another_process(folder: Path, script: str) -> str:
    """What a script prints, without a compiler, a cache, or this file."""
    script = "import torch, braze\nfrom braze.trace import JOURNAL\n" + script
    return python_elsewhere(["-c", script], folder, folder)


# --- in the process that compiles -----------------------------------------------------------------


def test_compiles_before_the_first_call() -> None:
    before = len(JOURNAL.records())
    compiled = compile_ahead(example, torch.randn(3), torch.randn(3))
    assert len(JOURNAL.records()) == before + 1
    x, y = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(compiled(x, y=y, flag=True), example(x, y))
    assert len(JOURNAL.records()) == before + 1
    assert braze.explain(example)(x, y).graph_count == 1


@pytest.mark.parametrize(
    "given",
    [
        lambda: (torch.ones(4), torch.ones(4)),
        lambda: (torch.ones(3, dtype=torch.float64), torch.ones(3)),
        lambda: (torch.ones(3), torch.ones(3), False),
        lambda: (torch.ones(3, requires_grad=True), torch.ones(3)),
        lambda: (torch.ones(6)[::2], torch.ones(3)),
        lambda: ([1.0], torch.ones(3)),
    ],
)
def test_calls_of_another_kind_raise(given: Callable[[], tuple[Any, ...]], tmp_path: Path) -> None:
    compiled = compile_ahead(example, torch.randn(3), torch.randn(3))
    loaded = braze.load_compiled_function(compiled.save_compiled_function(tmp_path / "f"))
    before = len(JOURNAL.records())
    for function in (compiled, loaded):
        with pytest.raises(RuntimeError) as caught:
            function(*given())
        assert isinstance(caught.value, braze.exc.PackageInputError)
        assert not function.guard_check(*given())
        assert function.guard_check(torch.ones(3), torch.ones(3))
    assert len(JOURNAL.records()) == before


def test_another_grad_mode_or_autocast_raises(tmp_path: Path) -> None:
    compiled = compile_ahead(example, torch.randn(3), torch.randn(3))
    loaded = braze.load_compiled_function(compiled.save_compiled_function(tmp_path / "f"))
    for function in (compiled, loaded):
        for block in (torch.no_grad(), torch.autocast("cpu"), torch.inference_mode()):
            with block, pytest.raises(braze.exc.PackageInputError):
                function(torch.ones(3), torch.ones(3))


def test_missing_arguments_raise_as_the_call(tmp_path: Path) -> None:
    compiled = compile_ahead(example, torch.randn(3), torch.randn(3))
    with pytest.raises(TypeError, match="'y'"):
        compiled(torch.ones(3))


def test_gradients_flow_where_it_was_compiled() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.randn(2, 4, requires_grad=True)
    compiled = braze.compile(model, fullgraph=True)
    ahead = braze.compile(model.forward, fullgraph=True).aot_compile(((x,), {}))
    ahead(x).sum().backward()
    gradients = [each.grad.clone() for each in (x, *model.parameters())]
    model.zero_grad()
    x.grad = None
    model(x).sum().backward()
    for found, wanted in zip(gradients, (x, *model.parameters()), strict=True):
        torch.testing.assert_close(found, wanted.grad)
    assert compiled.forward.aot_compile(((x,), {}))(x).requires_grad


def test_reset_leaves_what_was_compiled_ahead() -> None:
    compiled = compile_ahead(example, torch.randn(3), torch.randn(3))
    braze.reset()
    assert torch.equal(
        compiled(torch.ones(3), torch.ones(3)), example(torch.ones(3), torch.ones(3))
    )


def test_changed_globals_raise_and_refuse_to_be_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE

    compiled = compile_ahead(scaled, torch.ones(3))
    path = compiled.save_compiled_function(tmp_path / "f")
    monkeypatch.setitem(globals(), "SCALE", 5)
    with pytest.raises(braze.exc.PackageInputError, match="SCALE"):
        compiled(torch.ones(3))
    with pytest.raises(braze.exc.UserError, match=r"changed since.*SCALE"):
        compiled.save_compiled_function(tmp_path / "g")
    assert torch.equal(braze.load_compiled_function(path)(torch.ones(3)), torch.full((3,), 2.0))


def test_needs_one_graph() -> None:
    with pytest.raises(RuntimeError, match="fullgraph=True"):
        braze.compile(example).aot_compile(((torch.ones(3), torch.ones(3)), {}))

    def speak(x: torch.Tensor) -> torch.Tensor:
        print("hello")
        return x + 1

    with pytest.raises(braze.exc.GraphBreakError, match="input-output"):
        compile_ahead(speak, torch.ones(3))
    with pytest.raises(braze.exc.UserError, match=r"\(args, kwargs\)"):
        braze.compile(example, fullgraph=True).aot_compile((torch.ones(3), torch.ones(3)))


# --- in another process ---------------------------------------------------------------------------


def test_loads_in_another_process(tmp_path: Path) -> None:
    x, y = torch.randn(5), torch.randn(5)
    compile_ahead(example, x, y).save_compiled_function(tmp_path / "f.braze")
    torch.save((x, y, example(x, y)), tmp_path / "call.pt")
    said = in_another_process(
        tmp_path,
        "x, y, expected = torch.load('call.pt')\n"
        "for load in (braze.load_compiled_function, torch.compiler.load_compiled_function):\n"
        "    with open('f.braze', 'rb') as file: f = load(file)\n"
        "    print(torch.allclose(f(x, y), expected), len(JOURNAL.records()))\n"
        "    try: f(x[:3], y[:3])\n"
        "    except RuntimeError as error: print(error)\n",
    )
    line = "the shape of x is (3,), and the package was made for (5,)."
    assert said.splitlines() == ["True 0", line] * 2


def test_modules_are_in_the_file_with_their_state(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Block().eval()
    x = torch.randn(2, 4)
    with torch.no_grad():
        compile_ahead(model, x, scale=3.0).save_compiled_function(tmp_path / "m.braze")
        assert not model.calls.any(), "compiling ran the model"
        wanted = [model(x, scale=3.0) for _ in range(2)]
    torch.save((x, wanted), tmp_path / "call.pt")
    said = in_another_process(
        tmp_path,
        "x, wanted = torch.load('call.pt')\n"
        "f = braze.load_compiled_function('m.braze')\n"
        "with torch.no_grad():\n"
        "    for each in wanted:\n"
        "        made = f(x, scale=3.0)\n"
        "        print({key: torch.allclose(made[key], each[key]) for key in each})\n"
        "try: f(x, scale=3.0)\n"
        "except RuntimeError as error: print(error)\n",
    )
    first, second, error = said.splitlines()
    assert first == second == "{'made': True, 'calls': True}"
    assert "grad. expected False, actual True" in error


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_change_where_they_are_dynamic(dynamic: bool | None, tmp_path: Path) -> None:
    x = torch.randn(5, 3)
    if dynamic is None:
        braze.mark_dynamic(x, 0)
    compiled = compile_ahead(lambda x: (x @ x.mT).relu(), x, dynamic=dynamic)
    loaded = braze.load_compiled_function(compiled.save_compiled_function(tmp_path / "f"))
    before = len(JOURNAL.records())
    for rows in (5, 2, 9):
        given = torch.randn(rows, 3)
        for function in (compiled, loaded):
            torch.testing.assert_close(function(given), (given @ given.mT).relu())
    assert len(JOURNAL.records()) == before
    if dynamic is None:
        with pytest.raises(braze.exc.PackageInputError):
            loaded(torch.randn(5, 4))


def test_closures_are_part_of_the_file(tmp_path: Path) -> None:
    weight, scale, linear = torch.randn(3), 3.0, nn.Linear(3, 3).requires_grad_(False)

    def closed(x: torch.Tensor) -> torch.Tensor:
        return linear(x * scale + weight)

    x = torch.randn(2, 3)
    path = compile_ahead(closed, x).save_compiled_function(tmp_path / "f")
    wanted = closed(x)
    weight.zero_()
    torch.testing.assert_close(braze.load_compiled_function(path)(x), wanted)


def test_external_data_are_given_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    linear, bias = nn.Linear(3, 2), torch.randn(2)

    def closed(x: torch.Tensor) -> torch.Tensor:
        return linear(x) + bias

    x, other = torch.randn(4, 3), nn.Linear(3, 2)
    with torch.no_grad():
        compiled = compile_ahead(closed, x)
        path = compiled.save_compiled_function(
            tmp_path / "f", external_data={"linear": linear, "bias": bias}
        )
        assert b"storages/0" not in path.read_bytes()
        given = {"linear": other, "bias": torch.ones(2)}
        loaded = braze.load_compiled_function(path, external_data=given)
        torch.testing.assert_close(loaded(x), other(x) + 1)
        other.bias.zero_()  # which is not a copy
        torch.testing.assert_close(loaded(x), other(x) + 1)
        for wrong, words in [
            ({"bias": bias}, "lacks 'linear'"),
            ({"bias": bias, "linear": nn.Linear(3, 5)}, "the shape"),
            ({"bias": bias.double(), "linear": other}, "bias has the dtype"),
            ({"bias": bias, "linear": nn.ReLU()}, "no 'weight'"),
        ]:
            with pytest.raises(braze.exc.PackageError, match=words):
                braze.load_compiled_function(path, external_data=wrong)
        with pytest.raises(braze.exc.UserError, match="a int"):
            compiled.save_compiled_function(tmp_path / "g", external_data={"n": 3})


# --- what a file cannot hold ----------------------------------------------------------------------


def test_programs_with_gradients_are_not_saved(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 2), torch.randn(2, 3)
    for function, given in [(model, x), (lambda x: x * 2, x.clone().requires_grad_())]:
        compiled = compile_ahead(function, given)
        with pytest.raises(braze.exc.UserError, match="no_grad"):
            compiled.save_compiled_function(tmp_path / "f")
        assert not (tmp_path / "f").exists()


def test_grad_mode_of_the_program_is_that_of_the_compile(tmp_path: Path) -> None:
    def asks(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.is_grad_enabled() else x * 3

    path = compile_ahead(asks, torch.ones(2)).save_compiled_function(tmp_path / "f")
    assert torch.equal(braze.load_compiled_function(path)(torch.ones(2)), torch.full((2,), 2.0))
    assert not torch.compiler.is_exporting()

    def exporting(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.compiler.is_exporting() else x * 3

    path = compile_ahead(exporting, torch.ones(2)).save_compiled_function(tmp_path / "g")
    assert torch.equal(braze.load_compiled_function(path)(torch.ones(2)), torch.full((2,), 3.0))


def test_other_backends_are_not_saved(tmp_path: Path) -> None:
    compiled = braze.compile(example, fullgraph=True, backend="eager")
    ahead = compiled.aot_compile(((torch.ones(3), torch.ones(3)), {}))
    assert torch.equal(ahead(torch.ones(3), torch.ones(3)), example(torch.ones(3), torch.ones(3)))
    with pytest.raises(braze.exc.UserError, match="'eager'"):
        ahead.save_compiled_function(tmp_path / "f")


def test_damaged_and_foreign_files_raise(tmp_path: Path) -> None:
    path = compile_ahead(example, torch.ones(3), torch.ones(3)).save_compiled_function(
        tmp_path / "f"
    )
    content = path.read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for damaged in (content[:100], content[:-1], changed):
        for load in (braze.load_compiled_function, torch.compiler.load_compiled_function):
            with pytest.raises(braze.exc.InvalidPackage):
                load(io.BytesIO(damaged))
    with pytest.raises(braze.exc.InvalidPackage, match=r"braze\.load_compiled_function"):
        braze.load_package(path)
    package = braze.package(example, (torch.ones(3), torch.ones(3)), tmp_path / "p")
    with pytest.raises(braze.exc.InvalidPackage, match=r"braze\.load_package"):
        braze.load_compiled_function(package)
    with pytest.raises(braze.exc.UserError, match="f_globals"):
        braze.load_compiled_function(path, f_globals={"SCALE": 3})
    with pytest.raises(OSError):
        braze.load_compiled_function(tmp_path / "nothing")


# --- under PyTorch's names ------------------------------------------------------------------------

_WITH_IT = pytest.mark.skipif(
    not hasattr(torch.compiler, "load_compiled_function"), reason="a PyTorch without it"
)


@_WITH_IT
def test_names_of_torch_mean_braze_when_installed(tmp_path: Path) -> None:
    x, y = torch.randn(3), torch.randn(3)
    with braze.install():
        compiled = torch.compile(example, fullgraph=True).aot_compile(((x, y), {}))
    assert isinstance(compiled, AotCompiledFunction)
    compiled.save_compiled_function(tmp_path / "f")
    with open(tmp_path / "f", "rb") as file:
        loaded = torch.compiler.load_compiled_function(file)
    torch.testing.assert_close(loaded(x, y), example(x, y))


@_WITH_IT
def test_files_of_torch_are_loaded_by_torch(tmp_path: Path) -> None:
    x, y = torch.randn(3), torch.randn(3)
    theirs = torch.compile(example, fullgraph=True, backend="eager").aot_compile(((x, y), {}))
    theirs.save_compiled_function(os.fspath(tmp_path / "f"))
    with open(tmp_path / "f", "rb") as file:
        loaded = torch.compiler.load_compiled_function(file)
    assert type(loaded).__module__.startswith("torch.")
    torch.testing.assert_close(loaded(x, y), example(x, y))
