"""`options={"freeze": True}`: weights are constants, nothing asks for them, errors stay eager's."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import braze
from braze.errors import CannotFreeze
from braze.runtime.launch.frozen_weights import FrozenConvolution, FrozenKernel, FrozenMatrices
from braze.runtime.launch.storage_watch import StorageWatch
from tests.differential.packed_products import all_packed
from tests.models.zoo import import_library

FREEZE = {"freeze": True, "suppress_errors": False}
_MOST = 1.5  # times eager's error


class Encoder(nn.Module):
    """Post-norm layers with written-out attention, as BERT has them."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(100, width), nn.Embedding(32, width)
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.register_buffer("positions", torch.arange(32)[None])
        self.layers = nn.ModuleList([_layer(width) for _ in range(layers)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        count, length = tokens.shape
        x = self.norm(self.words(tokens) + self.places(self.positions[:, :length]))
        for layer in self.layers:
            split = [layer[part](x).view(count, length, self.heads, -1) for part in "qkv"]
            q, k, v = (each.transpose(1, 2) for each in split)
            seen = functional.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
            x = layer["n"](x + layer["o"](seen.transpose(1, 2).reshape(count, length, -1)))
            x = layer["m"](x + layer["b"](functional.gelu(layer["a"](x))))
        return x


class Decoder(nn.Module):
    """Pre-norm layers with PyTorch's attention, and a head tied to the embedding."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(100, width), nn.Embedding(32, width)
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.head = nn.Linear(width, 100, bias=False)
        self.head.weight = self.words.weight
        self.layers = nn.ModuleList([_layer(width) for _ in range(layers)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        count, length = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(length))
        for layer in self.layers:
            y = layer["n"](x)
            split = [layer[part](y).view(count, length, self.heads, -1) for part in "qkv"]
            q, k, v = (each.transpose(1, 2) for each in split)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["o"](seen.transpose(1, 2).reshape(count, length, -1))
            x = x + layer["b"](functional.gelu(layer["a"](layer["m"](x))))
        return self.head(self.norm(x))


class Residual(nn.Module):
    """A stem, a block as ResNets have them, and a pre-activated one, as DenseNets have."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width) for _ in range(4)])
        self.one = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.two = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.grown = nn.Conv2d(width, width, 1)
        self.head = nn.Linear(2 * width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norms[0](self.stem(x)))
        y = functional.relu(self.norms[1](self.one(x)))
        x = functional.relu(self.norms[2](self.two(y)) + x)
        x = torch.cat([x, self.grown(functional.relu(self.norms[3](x)))], 1)
        return self.head(x.mean((2, 3)))


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.randn(4, 4))
        self.register_buffer("scale", torch.randn(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ self.rows, self.rows, self.rows.t(), self.scale * 2


def _layer(width: int) -> nn.ModuleDict:
    parts: dict[str, nn.Module] = {name: nn.Linear(width, width) for name in "qkvo"}
    parts |= {"a": nn.Linear(width, 4 * width), "b": nn.Linear(4 * width, width)}
    return nn.ModuleDict({**parts, "n": nn.LayerNorm(width), "m": nn.LayerNorm(width)})


def _with_statistics(model: nn.Module) -> nn.Module:
    """With batch norms as trained ones are."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    return model.eval()


def _vision(name: str) -> Callable[[], nn.Module]:
    return lambda: import_library("torchvision").get_model(name, weights=None)


def _tokens() -> torch.Tensor:
    return torch.randint(100, (2, 16))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "residual": (Residual, lambda: torch.randn(2, 3, 16, 16)),
    "resnet18": (_vision("resnet18"), lambda: torch.randn(2, 3, 64, 64)),
    "densenet121": (_vision("densenet121"), lambda: torch.randn(2, 3, 64, 64)),
    "mobilenet_v2": (_vision("mobilenet_v2"), lambda: torch.randn(2, 3, 64, 64)),
    "encoder": (Encoder, _tokens),
    "decoder": (Decoder, _tokens),
}
_LARGE = ("resnet18", "densenet121", "mobilenet_v2")
_CASES = [pytest.param(n, marks=[pytest.mark.nightly] * (n in _LARGE)) for n in MODELS]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _errors(model: nn.Module, compiled: Any, given: torch.Tensor) -> tuple[float, float]:
    """The mean errors of eager and of the compiled model against float64."""
    wide = given.double() if given.is_floating_point() else given
    right = copy.deepcopy(model).double()(wide)
    results = (model(given), compiled(given))
    one, other = [float((result.double() - right).abs().mean()) for result in results]
    return one, other


def _asked(report: Any) -> list[str]:
    """Guards on tensors."""
    return [text for text in report.guards if "TENSOR_MATCH" in text]


@pytest.mark.parametrize("name", _CASES)
@torch.no_grad()
def test_models_keep_eagers_error(name: str) -> None:
    make, inputs = MODELS[name]
    model, given = _with_statistics(make()), inputs()
    plain = braze.explain(model)(given)
    report = braze.explain(model, options=FREEZE)(given)
    held = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    assert 0 < report.counters["frozen parameters"] <= len(held)
    assert not report.fallbacks and report.graph_count == plain.graph_count
    assert len(report.guards) < len(plain.guards)
    assert len(_asked(report)) == 1, "the input alone is asked for"
    if "batch_norm" in str(plain.ops_per_graph):
        assert "batch_norm" not in str(report.extern_ops)
        own = plain.counters.get(
            "convolutions of own kernel", 0
        )  # norms are in these, frozen or not
        assert report.counters["kernels"] < plain.counters["kernels"] + (own > 0)
    compiled = braze.compile(model, options=FREEZE)
    eager, error = _errors(model, compiled, given)
    assert error <= _MOST * eager, (error, eager)


@torch.no_grad()
def test_changes_are_not_seen_until_reset() -> None:
    model, x = _with_statistics(_convolutions()), torch.randn(2, 3, 16, 16)
    compiled = braze.compile(model, options=FREEZE)
    before = compiled(x)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.mul_(1.5).add_(0.01)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), before, rtol=0, atol=0)
    assert not torch.allclose(model(x), before)
    braze.reset()
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def _replace_in_list(model: nn.Module) -> None:
    model.parts[0] = nn.Linear(8, 8)


def _swap(model: nn.Module) -> None:
    model.first, model.second = model.second, model.first


def _replace_twice(model: nn.Module) -> None:
    for _ in range(2):
        model.first = nn.Linear(8, 8)


REPLACEMENTS: dict[str, Callable[[nn.Module], None]] = {
    "an attribute": lambda model: setattr(model, "first", nn.Linear(8, 8)),
    "an item of a list": _replace_in_list,
    "an item of a dict": lambda model: model.named.update({"a": nn.Linear(8, 8)}),
    "swapped": _swap,
    "replaced twice": _replace_twice,
    "of another size": lambda model: setattr(model, "second", nn.Linear(8, 5)),
}


class _Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.parts = nn.ModuleList([nn.Linear(8, 8)])
        self.named = nn.ModuleDict({"a": nn.Linear(8, 8)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.named["a"](self.parts[0](self.first(x))))


@torch.no_grad()
@pytest.mark.parametrize("name", REPLACEMENTS)
def test_parts_that_are_replaced_are_seen(name: str) -> None:
    model, x = _Parts(), torch.randn(4, 8)
    compiled = braze.compile(model, options=FREEZE)
    compiled(x)
    REPLACEMENTS[name](model)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("inside", [False, True])
def test_autocast_casts_weights_once(inside: bool) -> None:
    model, x = nn.Linear(16, 16), torch.randn(4, 16)

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(
            "cpu", torch.bfloat16, enabled=inside or torch.is_autocast_enabled("cpu")
        ):
            return model(x)

    compiled = braze.compile(call, options=FREEZE)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        for _ in range(2):
            found, expected = compiled(x), call(x)
            assert found.dtype is torch.bfloat16
            torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_each_module_has_its_own_constants() -> None:
    def call(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x)

    compiled, x = braze.compile(call, options=FREEZE), torch.randn(4, 8)
    models = [nn.Linear(8, 8), nn.Linear(8, 8)]
    for _ in range(2):
        for model in models:
            torch.testing.assert_close(compiled(model, x), model(x))


@torch.no_grad()
def test_arguments_are_no_constants() -> None:
    layer = nn.Linear(8, 8)

    def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.linear(layer(x), weight)

    compiled, x = braze.compile(call, options=FREEZE), torch.randn(4, 8)
    for _ in range(3):
        weight = nn.Parameter(torch.randn(8, 8))
        torch.testing.assert_close(compiled(x, weight), call(x, weight))


def test_a_call_that_records_gradients_is_refused() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    compiled = braze.compile(model, options={"freeze": True})
    with torch.no_grad():
        compiled(x)
    with pytest.raises(CannotFreeze, match="records gradients"):
        compiled(x)
    model.requires_grad_(False)
    torch.testing.assert_close(compiled(x), model(x))  # none are recorded
    with pytest.raises(CannotFreeze, match="records gradients"):
        compiled(x.requires_grad_())


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x) + self.calls


@torch.no_grad()
def test_what_is_written_to_is_no_constant() -> None:
    model, x = Counted(), torch.randn(2, 3)
    compiled = braze.compile(model, options=FREEZE)
    for call in range(1, 4):
        made = compiled(x)
        assert model.calls.tolist() == [call] * 3
        torch.testing.assert_close(made, model.linear(x) + call)


class WrittenLater(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.state
        braze.graph_break()
        self.state.add_(1)
        return y


@torch.no_grad()
def test_a_constant_of_another_graph_is_not_written_to() -> None:
    compiled = braze.compile(WrittenLater(), options={"freeze": True})
    with pytest.raises(CannotFreeze, match="constant of another graph"):
        compiled(torch.randn(3))


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=4)
    )


class Layered(nn.Module):
    """What is made of weights in each call of eager."""

    def __init__(self) -> None:
        super().__init__()
        self.normed = parametrizations.weight_norm(nn.Linear(16, 16))
        self.spectral = parametrizations.spectral_norm(nn.Linear(16, 16)).eval()
        self.places = nn.Embedding(8, 16)
        self.narrow = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.spectral(self.normed(x))) + self.places(torch.arange(8))
        return x.bfloat16() @ self.narrow.weight.bfloat16().t()


@torch.no_grad()
def test_what_constants_decide_is_evaluated_once() -> None:
    model, x = _with_statistics(Layered()), torch.randn(8, 16)
    plain, report = (braze.explain(model, options=o)(x) for o in ({}, FREEZE))
    assert report.counters["kernels"] < plain.counters["kernels"]
    assert len(report.extern_ops) < len(plain.extern_ops)
    compiled = braze.compile(model, options=FREEZE)
    torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)


def _refuse(*_: object) -> Any:
    raise AssertionError("a weight is asked whether it changed")


@pytest.mark.parametrize("rows", [1, 3, 16])
@torch.no_grad()
def test_products_read_panels_without_a_check(rows: int) -> None:
    model, x = (
        nn.Sequential(nn.Linear(96, 130), nn.GELU(), nn.Linear(130, 96)),
        torch.randn(rows, 96),
    )
    braze.reset()
    gc.collect()
    before = braze.status().frozen_bytes
    with all_packed(), mock.patch.object(StorageWatch, "states", _refuse):
        report = braze.explain(model, options=FREEZE)(x)
        assert report.counters["packed weights"] == report.counters["products"] == 2
        compiled = braze.compile(model, options=FREEZE)
        with mock.patch.object(FrozenMatrices, "__call__", autospec=True) as call:
            call.side_effect = lambda keeper, *_: keeper._panels
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
            assert call.called
    panels = 4 * (96 * 160 + 130 * 96)  # columns are padded to panels
    held = braze.status().frozen_bytes - before
    assert held == panels + 4 * (130 + 96), "of weights that are packed there is no other copy"
    assert "Frozen weights" in str(braze.status())
    assert "Frozen: 4 parameters and buffers" in str(report)


@pytest.mark.parametrize("vectors", ["AVX2", "AVX512"])
@torch.no_grad()
def test_convolutions_are_packed_without_a_check(vectors: str) -> None:
    kind = FrozenKernel if vectors == "AVX2" else FrozenConvolution
    model, x = _with_statistics(_convolutions()), torch.randn(2, 3, 16, 16)
    capability = mock.patch.object(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    with mock.patch.object(StorageWatch, "states", _refuse), capability:
        compiled = braze.compile(model, options=FREEZE)
        name = f"braze.runtime.launch.frozen_weights.{kind.__name__}"
        with mock.patch(name, wraps=kind) as made:
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        assert made.call_count == 2


@torch.no_grad()
def test_equal_blocks_are_still_scheduled_once() -> None:
    model, tokens = Decoder(layers=12), _tokens()
    report = braze.explain(model, options=FREEZE)(tokens)
    assert report.counters["repeated_blocks"] >= 6
    compiled = braze.compile(model, options=FREEZE)
    eager, error = _errors(model, compiled, tokens)
    assert error <= _MOST * eager


@pytest.mark.parametrize("numerics", ["eager", "fast"])
@torch.no_grad()
def test_numerics(numerics: str) -> None:
    model, x = _with_statistics(_convolutions()), torch.randn(2, 3, 16, 16)
    compiled = braze.compile(model, options={**FREEZE, "numerics": numerics})
    if numerics == "eager":
        assert torch.equal(compiled(x), model(x))
    eager, error = _errors(model, compiled, x)
    assert error <= _MOST * eager


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@torch.no_grad()
def test_other_dtypes(dtype: torch.dtype) -> None:
    model, x = _with_statistics(_convolutions()).to(dtype), torch.randn(2, 3, 16, 16, dtype=dtype)
    tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-12
    compiled = braze.compile(model, options=FREEZE)
    torch.testing.assert_close(compiled(x), model(x), rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_a_norm_of_rows_is_folded_into_a_product() -> None:
    model = _with_statistics(nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU()))
    x = torch.randn(8, 16)
    report = braze.explain(model, options=FREEZE)(x)
    assert report.counters["frozen constants"] == 2, "a weight and a bias"
    eager, error = _errors(model, braze.compile(model, options=FREEZE), x)
    assert error <= _MOST * eager


@torch.no_grad()
def test_results_are_the_callers_own() -> None:
    table = Table()
    compiled, x = braze.compile(table, options=FREEZE, fullgraph=True), torch.randn(2, 4)
    for _ in range(2):
        made = compiled(x)
        assert made[1] is table.rows and made[2].data_ptr() == table.rows.data_ptr()
        torch.testing.assert_close(made, table(x))
        made[3].zero_()
    table.rows.mul_(2)  # what is given back is an input, and so no constant
    torch.testing.assert_close(compiled(x), table(x))


@torch.no_grad()
def test_sizes_may_change() -> None:
    model = _with_statistics(_convolutions())
    compiled = braze.compile(model, options=FREEZE, dynamic=True)
    for side in (16, 18, 24):
        x = torch.randn(side // 8, 3, side, side)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("option", ["freeze", "freezing"])
def test_behind_torch_compile(option: str) -> None:
    model, x = (
        _with_statistics(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))),
        torch.randn(4, 8),
    )
    compiled = torch.compile(model, backend="braze", options={option: True})
    with torch.no_grad():
        before = compiled(x)
        torch.testing.assert_close(before, model(x))
        model[0].weight.mul_(2)
        assert torch.equal(compiled(x), before)
        assert not torch.allclose(model(x), before)
