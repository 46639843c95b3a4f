"""Convolutions of inference on weights packed once: every way to change a weight is noticed."""

from __future__ import annotations

import copy
import ctypes
import gc
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import braze
from braze.compat.torch.registered_ops import convolution
from braze.options import Options
from braze.runtime.launch.packed_weights import PACKED, PackedConvolution

Weight = torch.Tensor
FAST = {"numerics": "fast"}  # norms are folded into weights


class Block(nn.Module):
    """A residual block; activation: behind the first norm and behind the sum."""

    def __init__(self, channels: int = 16, groups: int = 1, activation: Any = None) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False, groups=groups)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 1)
        self.second_norm = nn.BatchNorm2d(channels)
        self.activation = activation or nn.ReLU()
        for norm in (self.first_norm, self.second_norm):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.activation(self.first_norm(self.first(x)))
        return self.activation(self.second_norm(self.second(made)) + x)  # type: ignore[no-any-return]


@pytest.fixture
def block() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(groups=16, activation=nn.ReLU6())).eval()


@pytest.fixture
def image() -> torch.Tensor:
    return torch.randn(2, 16, 12, 12)


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def held() -> int:
    gc.collect()
    return PACKED.bytes()


# --- that it happens -----------------------------------------------------------------------------


def test_block_is_convolutions_alone(block: nn.Module, image: torch.Tensor) -> None:
    report = braze.explain(block, options=FAST)(image)
    assert report.extern_ops == ("braze.convolution.default",)
    assert report.counters["fused convolutions"] == 4
    assert report.counters["kernels"] == 2  # into the layout and back


def test_errors_and_strides_are_as_eagers(block: nn.Module, image: torch.Tensor) -> None:
    exact = copy.deepcopy(block).double()(image.double())
    eager, compiled = block(image), braze.compile(block, fullgraph=True)
    for layout in (torch.contiguous_format, torch.channels_last):
        for _ in range(4):
            made = compiled(image.contiguous(memory_format=layout))
            want = block(image.contiguous(memory_format=layout))
            assert made.stride() == want.stride()
            assert _error(made, exact) <= 1.5 * _error(eager, exact)


def test_weights_are_packed_at_the_second_call(block: nn.Module, image: torch.Tensor) -> None:
    before, compiled = held(), braze.compile(block, options=FAST)
    compiled(image)
    assert held() == before
    compiled(image)
    packed = held() - before
    assert packed == sum(m.weight.nbytes for m in block.modules() if isinstance(m, nn.Conv2d))
    assert braze.status().packed_bytes == held()
    del compiled
    braze.reset()
    assert held() <= before


@pytest.mark.parametrize("options", [{"numerics": "eager"}, {"packed_weights": 0}])
def test_options_leave_convolutions_alone(
    block: nn.Module, image: torch.Tensor, options: dict[str, Any]
) -> None:
    report = braze.explain(block, options=options)(image)
    assert "aten.convolution.default" in report.extern_ops
    assert "fused convolutions" not in report.counters


def test_calls_with_gradients_pack_nothing(block: nn.Module, image: torch.Tensor) -> None:
    with torch.enable_grad():
        report = braze.explain(block)(image)
    assert "fused convolutions" not in report.counters


def test_weights_computed_in_the_graph_stay(image: torch.Tensor) -> None:
    weight = torch.randn(16, 16, 3, 3)
    report = braze.explain(lambda x, w: nn.functional.conv2d(x, w * 2))(image, weight)
    assert "fused convolutions" not in report.counters


def test_intermediate_results_that_are_seen_stay(image: torch.Tensor) -> None:
    layer = nn.Conv2d(16, 16, 3)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = layer(x)
        return made, made.relu()

    compiled = braze.compile(both)
    for _ in range(3):
        for made, want in zip(compiled(image), both(image), strict=True):
            torch.testing.assert_close(made, want)
            assert made.stride() == want.stride()


# --- changes -------------------------------------------------------------------------------------


def _through_numpy(p: Weight) -> None:
    array: Any = p.detach().numpy()
    array *= 2


def _through_storage(p: Weight) -> None:
    torch.tensor([], dtype=p.dtype).set_(p.untyped_storage()).mul_(2)


def _through_set(p: Weight) -> None:
    torch.empty(0).set_(p.detach()).mul_(2)


def _through_dlpack(p: Weight) -> None:
    torch.from_dlpack(p.detach()).mul_(2)


def _through_address(p: Weight) -> None:
    (ctypes.c_float * p.numel()).from_address(p.data_ptr())[:] = [0.5] * p.numel()


def _under_another_version(p: Weight) -> None:
    with torch.autograd._unsafe_preserve_version_counter(p):
        p.mul_(2)


def _collective(p: Weight) -> None:
    folder = tempfile.TemporaryDirectory()
    torch.distributed.init_process_group("gloo", f"file://{folder.name}/a", rank=0, world_size=1)
    try:
        torch.distributed.all_gather_into_tensor(p.view(-1), torch.rand(p.numel()))
        torch.distributed.reduce_scatter_tensor(p.view(-1), torch.rand(p.numel()))
    finally:
        torch.distributed.destroy_process_group()
        folder.cleanup()


def _in_inference_mode(p: Weight) -> None:
    with torch.inference_mode():
        p.mul_(2)


def _recycled(p: Weight) -> None:
    for _ in range(50):  # some of these get the memory of the first
        p.data = torch.randn_like(p)


def _swapped(p: Weight) -> None:
    for _ in range(20):
        torch.utils.swap_tensors(p, nn.Parameter(torch.randn_like(p)))


def _shared(p: Weight) -> None:
    p.share_memory_()
    p.untyped_storage()[0] = 77


def _stepped(p: Weight) -> None:
    p.grad = torch.ones_like(p)
    torch.optim.SGD([p], lr=0.5).step()


def _stepped_fused(p: Weight) -> None:
    p.grad = torch.ones_like(p)
    torch.optim.Adam([p], lr=0.5, fused=True).step()


def _stepped_compiled(p: Weight) -> None:
    p.grad = torch.ones_like(p)
    braze.compile(torch.optim.SGD([p], lr=0.5).step)()


def _data_in_compiled(p: Weight) -> None:
    def change() -> None:
        p.data.mul_(2)

    braze.compile(change)()


CHANGES: dict[str, Callable[[Weight], object]] = {
    "mul_": lambda p: p.mul_(2),
    "copy_": lambda p: p.copy_(torch.randn_like(p)),
    "item": lambda p: p.view(-1).__setitem__(0, 9.0),
    "view": lambda p: p.view(-1)[1:].mul_(2),
    "foreach": lambda p: torch._foreach_mul_([p], 2.0),
    "out": lambda p: torch.mul(p, 2.0, out=p),
    "init": lambda p: nn.init.normal_(p),
    "detach": lambda p: p.detach().mul_(2),
    "data": lambda p: p.data.mul_(2),
    "data of a view": lambda p: p[0].data.mul_(2),
    "data of a detached tensor": lambda p: p.detach().data.mul_(2),
    "data assigned": lambda p: setattr(p, "data", torch.randn_like(p)),
    "data exchanged": _recycled,
    "swapped": _swapped,
    "set_": lambda p: p.set_(torch.randn_like(p)),
    "vector": lambda p: nn.utils.vector_to_parameters(torch.randn(p.numel()), [p]),
    "numpy": _through_numpy,
    "storage": _through_storage,
    "storage filled": lambda p: p.untyped_storage().fill_(1),
    "typed storage": lambda p: p.storage().fill_(0.5),
    "set_ of another": _through_set,
    "dlpack": _through_dlpack,
    "address": _through_address,
    "collective": _collective,
    "version put back": _under_another_version,
    "inference mode": _in_inference_mode,
    "shared memory": _shared,
    "SGD": _stepped,
    "fused Adam": _stepped_fused,
    "compiled SGD": _stepped_compiled,
    "data in compiled code": _data_in_compiled,
}
PLACES = ("0.first.weight", "0.first_norm.weight", "0.first_norm.running_mean", "0.second.bias")


def _agrees(compiled: Any, block: Callable[..., torch.Tensor], image: torch.Tensor) -> None:
    torch.testing.assert_close(compiled(image), block(image), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("change", CHANGES)
def test_change_is_noticed(block: nn.Module, image: torch.Tensor, change: str, place: str) -> None:
    compiled = braze.compile(block, options=FAST)
    before = held()
    for _ in range(3):
        first = compiled(image)
    assert held() > before, "nothing was packed"
    owner, _, name = place.rpartition(".")
    CHANGES[change](getattr(block.get_submodule(owner), name))
    assert not torch.allclose(block(image), first), "the change changes nothing"
    for _ in range(4):
        _agrees(compiled, block, image)


_HOLDS: dict[str, Callable[[Weight], Any]] = {
    "data": lambda p: p.data,
    "detach": lambda p: p.detach(),
    "numpy": lambda p: torch.from_numpy(p.detach().numpy()),
    "array": lambda p: np.asarray(p.detach()),
    "storage": lambda p: torch.empty(0).set_(p.untyped_storage()),
    "dlpack": lambda p: torch.from_dlpack(p.detach()),
    "view of data": lambda p: p.data.view(-1)[1:],
}


@pytest.mark.parametrize("early", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("hold", _HOLDS)
def test_writes_through_what_is_held(
    block: nn.Module, image: torch.Tensor, hold: str, early: bool
) -> None:
    weight, compiled = block[0].first.weight, braze.compile(block, options=FAST)
    alias = _HOLDS[hold](weight) if early else None
    for _ in range(3):
        compiled(image)
    alias = _HOLDS[hold](weight) if alias is None else alias
    for calls in (1, 2, 3, 1):
        alias *= 1.5
        for _ in range(calls):
            _agrees(compiled, block, image)


def test_weights_of_an_array_are_compared() -> None:
    array = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32)
    array /= 12  # images stay of one size through all layers
    weight = nn.Parameter(torch.from_numpy(array))

    image = torch.randn(2, 16, 24, 24)

    def layer(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = nn.functional.conv2d(x, weight)
        return x

    before, compiled = held(), braze.compile(layer)
    for factor in (1, 0.5, 2.5):
        array *= factor
        for _ in range(3):
            _agrees(compiled, layer, image)
    for _ in range(8):  # those that change often are kept later
        _agrees(compiled, layer, image)
    assert held() - before == 8 * array.nbytes  # packed and a copy, for each of the four


def test_weights_of_inference_mode_are_compared(image: torch.Tensor) -> None:
    with torch.inference_mode():
        layers = nn.Sequential(*[nn.Conv2d(16, 16, 3) for _ in range(3)])
        before, compiled = held(), braze.compile(layers)
        for _ in range(4):
            _agrees(compiled, layers, image)
            _agrees(compiled, layers, image)
            layers[1].weight.mul_(1.5)
        for _ in range(8):
            _agrees(compiled, layers, image)
        assert held() > before


def test_modules_that_take_turns(image: torch.Tensor) -> None:
    layers = [nn.Conv2d(16, 16, 3) for _ in range(3)]

    def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, weight, bias).relu()

    compiled = braze.compile(call)
    for _ in range(4):
        for layer in layers:
            made = compiled(image, layer.weight, layer.bias)
            torch.testing.assert_close(made, call(image, layer.weight, layer.bias))


def test_weights_of_inference_mode_take_turns(image: torch.Tensor) -> None:
    layers = [nn.Sequential(*[nn.Conv2d(16, 16, 3) for _ in range(3)]) for _ in range(2)]
    with torch.inference_mode():
        layers[1] = copy.deepcopy(layers[1])
    assert layers[1][0].weight.is_inference()
    compiled = braze.compile(lambda x, *w: _chained(x, w))
    for _ in range(3):
        for layer in layers:
            weights = [each.weight for each in layer]
            for _ in range(3):
                torch.testing.assert_close(compiled(image, *weights), _chained(image, weights))


def _chained(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    for weight in weights:
        x = nn.functional.conv2d(x, weight)
    return x


def test_loaded_states(block: nn.Module, image: torch.Tensor) -> None:
    compiled = braze.compile(block, options=FAST)
    for assign in (False, True, False):
        for _ in range(3):
            _agrees(compiled, block, image)
        state = {
            name: torch.randn_like(v).abs() if v.is_floating_point() else v
            for name, v in block.state_dict().items()
        }
        block.load_state_dict(state, assign=assign)


def test_training_between(block: nn.Module, image: torch.Tensor) -> None:
    compiled = braze.compile(block, options=FAST)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.01)
    for _ in range(3):
        for _ in range(3):
            _agrees(compiled, block.eval(), image)
        with torch.enable_grad():
            compiled_loss = compiled(image).square().mean()
            compiled_loss.backward()
            block.train()(image)
        optimizer.step()
        optimizer.zero_grad()


def test_statistics_of_a_norm_in_training(block: nn.Module, image: torch.Tensor) -> None:
    compiled = braze.compile(block, options=FAST)
    for _ in range(3):
        for _ in range(3):
            _agrees(compiled, block.eval(), image)
        block.train()(image)


def test_numbers_that_are_none_stay_so(block: nn.Module, image: torch.Tensor) -> None:
    image[0, 3, 4, 5], image[1, 2, 3, 4] = torch.nan, torch.inf
    compiled = braze.compile(block, options=FAST)
    for _ in range(3):
        torch.testing.assert_close(compiled(image), block(image), equal_nan=True)
    assert block(image).isnan().any()


# --- in-place methods, as dir() lists them -------------------------------------------------------

_IN_PLACE = [
    name
    for name in dir(torch.Tensor)
    if name.endswith("_") and not name.endswith("__") and not name.startswith("_")
]


def _attempt(tensor: torch.Tensor, name: str) -> bool:
    for args in ((), (0.5,), (0.1, 0.9), (tensor.clone(),), (tensor.clone(), tensor.clone())):
        try:
            getattr(tensor, name)(*args)
        except Exception:  # other arguments
            continue
        return True
    return False


@pytest.mark.parametrize("name", _IN_PLACE)
@pytest.mark.parametrize("through", ["itself", "data", "detach"])
def test_every_method_in_place(name: str, through: str) -> None:
    torch.manual_seed(0)
    weight, image = torch.rand(4, 4, 3, 3), torch.rand(1, 4, 6, 6)
    image = image.contiguous(memory_format=torch.channels_last)
    rest: Any = (None, [], 0.0, None, [1, 1], [0, 0], [1, 1], 1, "relu", [])
    call = PackedConvolution(Options())
    for _ in range(3):
        call(image, weight, *rest)
    assert call.held_bytes()
    target = weight if through == "itself" else getattr(weight, through)
    target = target if through != "detach" else target()
    version, memory = weight._version, weight.clone()
    done = _attempt(target, name)
    del target
    if not done or weight.shape != memory.shape or weight.requires_grad or weight.is_shared():
        return
    if weight.dtype is not torch.float32 or not weight.is_contiguous():
        return
    for _ in range(3):
        made, want = call(image, weight, *rest), convolution(image, weight, *rest)
        torch.testing.assert_close(made, want, equal_nan=True, rtol=1e-4, atol=1e-4)
    assert torch.equal(weight, memory) or weight._version != version or through == "data"


# --- memory --------------------------------------------------------------------------------------


def test_memory_is_limited() -> None:
    layers = nn.Sequential(*[nn.Conv2d(64, 64, 3) for _ in range(12)])  # 147,456 bytes each
    wide = torch.randn(1, 64, 60, 60)
    before = held()
    compiled = braze.compile(layers, options={"packed_weights": 1 + (before >> 20)})
    for _ in range(3):
        _agrees(compiled, layers, wide)
    assert 0 < held() - before <= 1 << 20


def test_weights_that_are_gone_free_theirs(image: torch.Tensor) -> None:
    def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        made = nn.functional.conv2d(x, weight).relu()
        return nn.functional.conv2d(nn.functional.conv2d(made, weight), weight)

    before, compiled = held(), braze.compile(call)
    weight = torch.randn(16, 16, 3, 3)
    for _ in range(3):
        compiled(image, weight)
    assert held() - before == 3 * weight.nbytes
    del weight
    layers = nn.Sequential(*[nn.Conv2d(16, 16, 3) for _ in range(3)])
    other = braze.compile(layers)
    for _ in range(3):
        other(image)
    assert held() - before == 3 * layers[0].weight.nbytes


def _error(made: torch.Tensor, exact: torch.Tensor) -> float:
    return (made.double() - exact).abs().max().item()


def test_a_first_call_in_inference_mode() -> None:
    """What watches storages is begun there, by a tensor that counts versions."""
    program = """
import torch, braze
net = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 16, 1))
compiled, x = braze.compile(net.eval(), fullgraph=True), torch.randn(1, 16, 10, 10)
with torch.inference_mode():
    for _ in range(3):
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)
    net[0].weight.mul_(2)
    torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
