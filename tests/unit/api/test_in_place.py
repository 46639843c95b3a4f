"""`compile_in_place`, and what is done to modules before and after they are compiled."""

from __future__ import annotations

import copy
import io
import pickle
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

import braze
from braze.runtime.dispatch.cache_entries import FrameCache
from braze.runtime.guards.codegen import SourceWriter
from braze.runtime.guards.native_extension import LOADER
from braze.runtime.guards.snapshot_cache import SnapshotMemory
from tests.recorded import recorded

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + x


WAYS: dict[str, Callable[[Any], Any]] = {
    "compile": braze.compile,
    "in place": braze.compile_in_place,
}


def _kernels(journal: Any) -> int:
    return sum(record.counters.get("kernels", 0) for record in journal.records())


def test_the_very_object() -> None:
    module = Block()
    calls = type(module).__call__, module.forward.__func__  # type: ignore[attr-defined]
    keys, wanted = list(module.state_dict()), module(X)
    with recorded() as journal:
        assert braze.compile_in_place(module, fullgraph=True) is module
        torch.testing.assert_close(module(X), wanted)
        module(X).sum().backward()
    assert [record.outcome for record in journal.records()] == ["graph", "backward"]
    assert (type(module).__call__, module.forward.__func__) == calls  # type: ignore[attr-defined]
    assert list(module.state_dict()) == keys and type(module) is Block
    assert braze.original_module(module) is module


def test_forward_is_not_compiled() -> None:
    with recorded() as journal:
        module = braze.compile_in_place(Block())
        module.forward(X)
    assert not journal.records()


def test_copies_and_pickles_are_not_compiled() -> None:
    with recorded() as journal:
        module = braze.compile_in_place(Block())
        file = io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        made = [
            copy.deepcopy(module),
            copy.copy(module),
            pickle.loads(pickle.dumps(module)),
            torch.load(file, weights_only=False),
        ]
        for one in made:
            torch.testing.assert_close(one(X), module.forward(X))
        assert not journal.records()
        module(X)
    assert len(journal.records()) == 1


def test_undone_by_disable() -> None:
    with recorded() as journal:
        module = braze.compile_in_place(Block())
        module(X)
        assert len(journal.records()) == 1
        assert braze.compile_in_place(module, disable=True) is module
        module(X[:2])
    assert len(journal.records()) == 1


def test_compiled_again_with_other_options() -> None:
    module = braze.compile_in_place(Block())
    module(X)
    with recorded() as journal:
        braze.compile_in_place(module, backend="eager")
        module(X)
    assert [record.counters.get("kernels", 0) for record in journal.records()] == [0]


def test_of_a_compiled_module() -> None:
    """Its original is compiled in place; both are one for what comes afterwards."""
    with recorded() as journal:
        compiled = braze.compile(Block())
        assert braze.compile_in_place(compiled) is compiled
        braze.original_module(compiled)(X)
        assert len(journal.records()) == 1
        compiled(X)
    assert len(journal.records()) == 2


def test_hooks_are_those_of_the_call() -> None:
    module = braze.compile_in_place(Block())
    wanted = module(X)
    with recorded() as journal:
        braze.compile_in_place(module)
        module(X)
        handle = module.register_forward_hook(lambda module, args, result: result * 2)
        torch.testing.assert_close(module(X), wanted * 2)
        handle.remove()
        torch.testing.assert_close(module(X), wanted)
    assert {record.outcome for record in journal.records()} == {"graph"}


@pytest.mark.parametrize("what", [3, torch.relu, Block])
def test_modules_only(what: Any) -> None:
    with pytest.raises(braze.exc.UserError, match="takes a module"):
        braze.compile_in_place(what)


def test_options_are_checked() -> None:
    with pytest.raises(braze.exc.InvalidOption):
        braze.compile_in_place(Block(), options={"numerics": "nonsense"})
    with pytest.raises(braze.exc.InvalidOption):
        braze.compile_in_place(Block(), mode="nonsense")


def test_run_compiles_nothing_new() -> None:
    with recorded() as journal:
        module = braze.compile_in_place(Block())
        module(X)
        ran = braze.run(module)
        torch.testing.assert_close(ran(X), module(X))
        torch.testing.assert_close(ran(X[:2]), module.forward(X[:2]))
    assert len(journal.records()) == 1


# --- what is done to a module afterwards ----------------------------------------------------------


def by_function(module: Any, seen: list[int]) -> None:
    old = module.forward

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return old(*args, **kwargs) * 2

    module.forward = wrapper


def by_method(module: Any, seen: list[int]) -> None:
    """As accelerate's mixed precision does."""
    old = module.forward

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return old.__func__(self, *args, **kwargs) * 2

    module.forward = types.MethodType(wrapper, module)


def by_autocast(module: Any, seen: list[int]) -> None:
    module._original_forward = module.forward
    seen.append(1)
    cast = torch.autocast("cpu", dtype=torch.bfloat16)
    module.forward = types.MethodType(cast(module.forward.__func__), module)


def twice(module: Any, seen: list[int]) -> None:
    by_method(module, seen)
    by_function(module, seen)


WRAPPERS = [by_function, by_method, by_autocast, twice]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", ["after", "before", "when called already"])
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_wrapped_forward(wrap: Callable[[Any, list[int]], None], order: str, way: str) -> None:
    torch.manual_seed(0)
    plain, module = Block(), Block()
    module.load_state_dict(plain.state_dict())
    wanted: list[int] = []
    wrap(plain, wanted)
    expected = [plain(X), plain(X), plain.forward(X)]
    seen: list[int] = []
    with recorded() as journal:
        if order == "before":
            wrap(module, seen)
        compiled = WAYS[way](module)
        if order == "when called already":
            compiled(X)
        if order != "before":
            wrap(compiled, seen)
        results = [compiled(X), compiled(X), compiled.forward(X)]
    torch.testing.assert_close(results, expected, atol=2e-2, rtol=2e-2)
    assert seen == wanted and results[0].dtype == expected[0].dtype
    assert {record.outcome for record in journal.records()} == {"graph"} and _kernels(journal)


def test_equal_to_its_original() -> None:
    module = Block()
    compiled = braze.compile(module)
    assert compiled == module and module == compiled and hash(compiled) == hash(module)
    assert compiled != Block() and module != braze.compile(Block())
    assert compiled == braze.compile(compiled)
    assert {module: 1}[compiled] == 1 and module in {compiled}
    assert braze.original_module(compiled) is module is compiled._orig_mod
    assert len(list(nn.ModuleList([module, compiled]).modules())) == 3


@pytest.fixture
def mesh() -> Iterator[Any]:
    with tempfile.NamedTemporaryFile() as file:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{file.name}", rank=0, world_size=1
        )
        yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        torch.distributed.destroy_process_group()


def _sharded(compile: Callable[[Any], Any], order: str, mesh: Any) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    if order == "compiled first":
        model[0] = compile(model[0])
    fully_shard(model[0], mesh=mesh)
    if order == "sharded first":
        model[0] = compile(model[0])
    fully_shard(model, mesh=mesh)
    return model


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", ["compiled first", "sharded first"])
def test_sharded_by_fsdp2(order: str, way: str, mesh: Any) -> None:
    """Every method of FSDP2's modules works on the model and on a compiled block of it."""
    outcomes = []
    for compile in (lambda module: module, WAYS[way]):
        model = _sharded(compile, order, mesh)
        result = model(X)
        result.sum().backward()
        gradients = [p.grad.full_tensor() for p in model.parameters()]  # type: ignore[union-attr]
        for target in (model, model[0]):
            assert isinstance(target, FSDPModule)
            target.set_requires_gradient_sync(False)
            target.set_is_last_backward(True)
            target.set_reshard_after_backward(False)
            target.reshard()
            target.unshard()
        outcomes.append((result, gradients, list(model.state_dict())))
    torch.testing.assert_close(outcomes[1][:2], outcomes[0][:2])
    assert outcomes[1][2] == outcomes[0][2]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", ["compiled first", "sharded first"])
def test_a_steady_step_of_fsdp2_only_checks(
    order: str, way: str, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FSDP2 puts other parameters into a module around each call, and calls its hooks by functions
    that `disable()` makes each time."""
    if LOADER.wait() is None:
        pytest.skip("the extension cannot be built")
    braze.reset()
    model = _sharded(WAYS[way], order, mesh)
    for _ in range(10):
        model(X).sum().backward()
    steps: list[str] = []
    for place, name in [
        (SourceWriter, "function"),
        (SnapshotMemory, "remember"),
        (FrameCache, "_compile"),
    ]:
        before = getattr(place, name)

        def noted(*args: Any, name: str = name, before: Any = before, **kwargs: Any) -> Any:
            steps.append(name)
            return before(*args, **kwargs)

        monkeypatch.setattr(place, name, noted)
    with recorded() as journal:
        for _ in range(20):
            model(X).sum().backward()
    assert (steps, journal.records()) == ([], ())
    status = braze.status()
    assert (len(status), status[0].graphs, status.calls, status.calls_left) == (1, 1, 30, 0)
    assert (status[0].entries, status[0].breaks, status[0].times_broken) == (1, (), 0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", ["compiled first", "sharded first"])
def test_fsdp2_runs_its_hooks_outside_of_whole_graphs(order: str, way: str, mesh: Any) -> None:
    """Hooks that gather and free parameters leave each block one graph, forward and backward."""
    braze.reset()

    def whole(module: nn.Module) -> Any:
        return WAYS[way](module, fullgraph=True)

    with recorded() as journal:
        model = _sharded(whole, order, mesh)
        for _ in range(5):
            model(X).sum().backward()
    outcomes = [
        (record.outcome, record.counters.get("kernels", 0) > 0) for record in journal.records()
    ]
    assert outcomes == [("graph", True), ("backward", True)]
    (row,) = braze.status()
    assert (row.entries, row.graphs, row.recompiles, row.breaks) == (1, 1, 0, ())


# --- Braze inside of Braze ------------------------------------------------------------------------


def inner(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + 1


def _nested() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    compiled, module = braze.compile(inner), Block()
    in_place, again = braze.compile_in_place(Block()), braze.compile(Block())
    hooked = braze.compile_in_place(Block())
    hooked.register_forward_hook(lambda module, args, result: result * 2)
    compiled_method = braze.compile(module.forward)
    return {
        "function": lambda x: compiled(x) * 2,
        "forward of a module": lambda x: again.forward(x) * 2,
        "module": lambda x: again(x) * 2,
        "attributes of a module": lambda x: again.linear(x) * again.linear.weight.sum(),
        "module in place": lambda x: in_place(x) * 2,
        "hooks of a module in place": lambda x: hooked(x) * 2,
        "method": lambda x: compiled_method(x) * 2,
        "compiled function of a compiled one": lambda x: braze.compile(braze.compile(inner))(x),
    }


@pytest.mark.parametrize("name", [name for name in _nested() if "compiled one" not in name])
def test_compiled_inside_is_inlined(name: str) -> None:
    program = _nested()[name]
    wanted = program(X)
    with recorded() as journal:
        compiled = braze.compile(program, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(X), wanted)
    assert [record.outcome for record in journal.records()] == ["graph"]


def _with_settings(x: torch.Tensor) -> torch.Tensor:
    with braze.config.patch(numerics="eager"):
        y = x.sin() + 1
    return y * 2


def _with_reset(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    braze.reset()
    return y * 2


def _explains(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * braze.explain(inner)(x).graph_count


def _asks(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * len(braze.list_backends())


@pytest.mark.parametrize("program", [_with_settings, _with_reset, _explains, _asks])
def test_braze_is_not_interpreted(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Calls of Braze's own functions break the graph by name, and do what they do."""
    before, wanted = braze.config.snapshot(), program(X)
    with recorded() as journal:
        compiled = braze.compile(program)
        for _ in range(2):
            torch.testing.assert_close(compiled(X), wanted)
    breaks = [r.graph_break for r in journal.records() if r.graph_break is not None]
    # A reset forgets the records as well.
    assert program is _with_reset or any("Braze" in note.reason for note in breaks)
    assert all("src/braze" not in note.origin for note in breaks)
    assert braze.config.snapshot() == before


def test_questions_to_braze_are_answered() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if braze.is_compiling() else x - 1

    with recorded() as journal:
        torch.testing.assert_close(braze.compile(program, fullgraph=True)(X), X + 1)
    assert len(journal.records()) == 1
