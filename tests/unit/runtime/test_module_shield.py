"""Compiled modules stand in for their model everywhere."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
from abc import ABC, abstractmethod
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from braze.runtime.dispatch.module_wrapper import is_shielded, original_of, shield

CALLS: list[str] = []


def eager_call(model: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    CALLS.append(type(model).__name__)
    return model(*args, **kwargs)


def find(model: nn.Module) -> Any:
    return eager_call


def remake(model: nn.Module) -> nn.Module:
    return shield(model, find, remake=remake)


class Model(nn.Module):
    """A model."""

    registry: list[type] = []

    def __init_subclass__(cls, **keywords: Any) -> None:
        Model.registry.append(cls)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("steps", torch.zeros(()))
        self.scale = 2.0

    def forward(self, x: torch.Tensor, *, shift: float = 0.0) -> torch.Tensor:
        return self.linear(self.drop(x)) * self.scale + shift

    def double(self) -> Model:
        self.scale *= 2
        return self

    @property
    def size(self) -> int:
        return self.linear.weight.numel()


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture
def compiled(model: Model) -> Any:
    CALLS.clear()
    return shield(model, find, remake=remake)


X = torch.ones(4, 3)


class Positive(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs()

    def right_inverse(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_calls_go_through_the_compiled_function(model: Model, compiled: Any) -> None:
    assert torch.equal(compiled(X, shift=1.0), model(X, shift=1.0)) and CALLS == ["Model"]
    assert torch.equal(compiled.forward(X), model(X)) and len(CALLS) == 2


def test_class(model: Model, compiled: Any) -> None:
    assert isinstance(compiled, Model) and isinstance(compiled, nn.Module)
    assert compiled.__class__ is Model and type(compiled) is not Model
    assert type(compiled).__name__ == "Model" and compiled.__doc__ == "A model."
    assert not Model.registry
    assert is_shielded(compiled) and not is_shielded(model)
    assert original_of(compiled) is model and original_of(model) is model
    assert repr(compiled) == repr(model) and dir(compiled) == dir(model)
    assert inspect.signature(compiled.forward) == inspect.signature(model.forward)


def test_attributes_from_either_side(model: Model, compiled: Any) -> None:
    compiled.extra = nn.Linear(2, 2)
    model.other = nn.Parameter(torch.ones(1))
    compiled.scale = 5.0
    assert model.extra is compiled.extra and compiled.other is model.other
    assert model.scale == 5.0 and compiled.size == model.size == 6
    del compiled.extra
    assert not hasattr(model, "extra")
    with pytest.raises(AttributeError, match="nothing"):
        _ = compiled.nothing
    assert compiled.double() is compiled and model.scale == 10.0
    compiled.register_buffer("late", torch.ones(1))
    compiled.add_module("child", nn.ReLU())
    assert "late" in dict(model.named_buffers()) and "child" in dict(model.named_children())


def test_state(model: Model, compiled: Any) -> None:
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert [name for name, _ in compiled.named_parameters()] == ["linear.weight", "linear.bias"]
    state = {key: value + 1 for key, value in model.state_dict().items()}
    compiled.load_state_dict(state)
    assert torch.equal(model.linear.bias, state["linear.bias"])
    parent = nn.Sequential(compiled)
    assert "0.linear.weight" in parent.state_dict()


def test_train_eval_and_to(model: Model, compiled: Any) -> None:
    compiled.train()
    assert model.training and model.drop.training
    model.eval()
    assert not compiled.training
    assert compiled.to(torch.float64) is compiled
    assert model.linear.weight.dtype is torch.float64
    assert compiled(X.double()).dtype is torch.float64
    assert compiled.requires_grad_(False) is compiled and not model.linear.bias.requires_grad
    model.half()
    assert next(compiled.parameters()).dtype is torch.float16


def test_hooks_from_either_side(model: Model, compiled: Any) -> None:
    seen: list[str] = []
    compiled.register_forward_hook(lambda *_: seen.append("compiled"))
    handle = model.register_forward_pre_hook(lambda *_: seen.append("model"))
    compiled(X)
    handle.remove()
    model(X)
    assert seen == ["model", "compiled", "compiled"]


@pytest.mark.parametrize("side", ["model", "compiled"])
def test_parametrization(side: str, model: Any) -> None:
    plain = nn.Linear(3, 2)
    compiled = shield(plain, find)
    target = {"model": plain, "compiled": compiled}[side]
    parametrize.register_parametrization(target, "weight", Positive())
    assert compiled.__class__ is type(plain) is not nn.Linear
    assert isinstance(compiled, type(plain)) and isinstance(compiled, nn.Linear)
    assert (compiled.weight >= 0).all() and torch.equal(compiled.weight, plain.weight)
    assert torch.equal(compiled(X), plain(X))
    compiled.weight = torch.ones(2, 3)
    assert torch.equal(plain.weight, torch.ones(2, 3))
    parametrize.remove_parametrizations(target, "weight")
    assert compiled.__class__ is type(plain) is nn.Linear
    assert isinstance(compiled.weight, nn.Parameter)


def test_weight_norm(model: Any) -> None:
    compiled = parametrizations.weight_norm(shield(nn.Linear(3, 2), find))
    assert is_shielded(compiled)
    assert "parametrizations.weight.original0" in compiled.state_dict()
    compiled(X).sum().backward()
    assert compiled.parametrizations.weight.original0.grad is not None


def test_deepcopy(model: Model, compiled: Any) -> None:
    other = copy.deepcopy(compiled)
    assert is_shielded(other) and isinstance(other, Model)
    assert torch.equal(other(X), compiled(X))
    other.linear.weight.data.zero_()
    assert model.linear.weight.abs().sum() > 0
    both = copy.deepcopy([compiled, compiled, model])
    assert both[0] is both[1] and original_of(both[0]) is both[2]
    without = copy.deepcopy(shield(model, find))
    assert is_shielded(without) and original_of(without) is not model


def test_copy_shares_the_parameters(model: Model, compiled: Any) -> None:
    other = copy.copy(compiled)
    assert is_shielded(other) and other.linear is model.linear
    other.scale = 9.0
    assert model.scale == 2.0


def test_pickle(model: Model, compiled: Any) -> None:
    loaded = pickle.loads(pickle.dumps(compiled))
    assert is_shielded(loaded) and torch.equal(loaded(X), compiled(X))
    assert original_of(loaded) is not model
    plain = pickle.loads(pickle.dumps(shield(model, find)))
    assert type(plain) is Model
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    assert is_shielded(torch.load(file, weights_only=False))


def test_training_through_a_wrapper(model: Model, compiled: Any) -> None:
    """As DistributedDataParallel does: a module that holds the compiled one and calls it."""

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module
            for parameter in module.parameters():
                parameter.register_post_accumulate_grad_hook(self.reduce)
            self.reduced: list[torch.Tensor] = []

        def reduce(self, parameter: torch.Tensor) -> None:
            self.reduced.append(parameter)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

    wrapper = Wrapper(compiled)
    optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.1)
    before = model.linear.weight.clone()
    wrapper(X).sum().backward()
    optimizer.step()
    assert len(wrapper.reduced) == 2 and not torch.equal(before, model.linear.weight)
    assert next(iter(wrapper.state_dict())) == "module.steps"
    assert wrapper.module.__class__ is Model


def test_containers() -> None:
    sequence = shield(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), find)
    assert len(sequence) == 2 and isinstance(sequence[1], nn.ReLU)  # type: ignore[arg-type, index]
    assert isinstance(sequence[:1], nn.Sequential)  # type: ignore[index]
    assert [type(layer) for layer in sequence] == [nn.Linear, nn.ReLU]  # type: ignore[attr-defined]


def test_instance_forward_wins(model: Model, compiled: Any) -> None:
    compiled.forward = lambda x: x + 1
    assert torch.equal(compiled(X), X + 1) and torch.equal(model(X), X + 1)
    assert torch.equal(compiled.forward(X), X + 1)


def test_forward_may_have_a_call_of_its_own(model: Model) -> None:
    compiled = shield(model, find, forward=lambda model: lambda model, x: "forward")
    assert compiled.forward(X) == "forward" and isinstance(compiled(X), torch.Tensor)


def test_other_kinds_of_classes() -> None:
    finalised: list[int] = []

    class Base(nn.Module, ABC):
        @abstractmethod
        def run(self) -> int: ...

    class Slotted(Base):
        __slots__ = ("extra",)

        def __init__(self) -> None:
            super().__init__()
            self.extra = 3

        def run(self) -> int:
            return self.extra

        def forward(self) -> int:
            return self.run()

        def __del__(self) -> None:
            finalised.append(1)

        def __getattr__(self, name: str) -> Any:
            return 42 if name == "magic" else super().__getattr__(name)

    model = Slotted()
    compiled = shield(model, find)
    assert compiled() == 3 and compiled.run() == 3 and compiled.magic == 42
    compiled.extra = 4
    assert model.extra == 4
    del compiled
    gc.collect()
    assert not finalised
    del model
    gc.collect()
    assert finalised == [1]


def test_graph_module() -> None:
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    compiled = shield(traced, find)
    assert torch.equal(compiled(X), traced(X)) and isinstance(compiled, torch.fx.GraphModule)
    traced.graph.lint()
