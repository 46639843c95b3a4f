"""Layers of PyTorch's fast path for transformers: what becomes of them, and stays right."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Iterable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import braze
from braze.options import GRAPH_PASSES
from braze.rewrite.decompose_encoder_layers import decompose_encoder_layers
from braze.rewrite.encoder_layer import FEW_KEYS
from braze.trace import Journal
from tests.differential.packed_products import all_packed

LAYER = "aten._transformer_encoder_layer_fwd.default"
ATTENTION = "aten._native_multi_head_attention.default"
KERNEL = "aten._scaled_dot_product_flash_attention_for_cpu.default"
BATCH = 2

pytestmark = pytest.mark.filterwarnings("ignore:Converting mask without torch.bool dtype")


def _causal(length: int) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def _padding(length: int, first: int = 0) -> torch.Tensor:
    """The last quarter is padding, and of the first sentence all from `first` on."""
    hidden = torch.zeros(BATCH, length, dtype=torch.bool)
    hidden[:, -max(length // 4, 1) :] = True
    hidden[0, first or length :] = True
    return hidden


# A layer's masks of a length.
MASKS: dict[str, Any] = {
    "none": lambda n: {},
    "padding": lambda n: {"src_key_padding_mask": _padding(n)},
    "nothing is left": lambda n: {
        "src_key_padding_mask": _padding(n) | (torch.arange(2) > 0)[:, None]
    },
    "causal": lambda n: {"src_mask": _causal(n)},
    "floats": lambda n: {"src_mask": torch.zeros(n, n).masked_fill(_causal(n), -torch.inf)},
    "both": lambda n: {"src_mask": _causal(n), "src_key_padding_mask": _padding(n, 1)},
}


def _layer(width: int = 64, heads: int = 2, **more: Any) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, heads, 3 * width + 1, batch_first=True, **more)
    for parameter in layer.parameters():  # biases of zeros would hide where they are added
        nn.init.normal_(parameter, std=0.2)
    return layer.eval()


def _extern_ops(journal: Journal) -> list[str]:
    assert not [reason for record in journal.records() for reason in record.fallbacks]
    return [op for record in journal.records() for op in record.extern_ops]


def _counted(journal: Journal, name: str) -> int:
    return sum(record.counters.get(name, 0) for record in journal.records())


def _check(module: nn.Module, *args: Any, options: Any = None, **kwargs: Any) -> None:
    """Strides and NaN as eager's, and errors at most 1.5 times eager's."""

    def exact(x: Any) -> Any:
        is_float = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x.double() if is_float else x

    double = copy.deepcopy(module).double()
    with torch.no_grad():
        found = braze.compile(module, fullgraph=True, options=options)(*args, **kwargs)
        wanted = module(*args, **kwargs)
        reference = double(*map(exact, args), **{name: exact(x) for name, x in kwargs.items()})
    results = [x if isinstance(x, tuple) else (x,) for x in (found, wanted, reference)]
    for ours, eager, right in zip(*results, strict=True):
        if eager is None:
            assert ours is None
            continue
        assert (ours.dtype, ours.shape, ours.stride()) == (eager.dtype, eager.shape, eager.stride())
        assert torch.equal(ours.isnan(), eager.isnan())
        errors = [(x - right).nan_to_num().square().mean().sqrt() for x in (ours, eager)]
        assert errors[0] <= 1.5 * errors[1] + (1e-13 if eager.dtype == torch.float64 else 0), errors


def _often(rows: Iterable[tuple[Any, ...]], *chosen: tuple[Any, ...]) -> list[Any]:
    """Parameters of a test: those chosen in each run, all of them at night."""
    return [pytest.param(*r, marks=() if r in chosen else pytest.mark.nightly) for r in rows]


_FEW, _MANY = 9, FEW_KEYS + 1

# --- layers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "length"),
    _often(
        itertools.product(MASKS, (_FEW, _MANY)),
        ("padding", _FEW),
        ("both", _FEW),
        ("floats", _FEW),
        ("nothing is left", _MANY),
        ("causal", _MANY),
    ),
)
def test_masks(mask: str, length: int, journal: Journal) -> None:
    with all_packed():
        _check(_layer(), torch.randn(BATCH, length, 64), **MASKS[mask](length))
    few = ["aten.bmm.default"] * 2
    assert _extern_ops(journal) == (few if length < FEW_KEYS else [KERNEL])
    assert _counted(journal, "products") == 4


@pytest.mark.parametrize(
    ("norm_first", "activation", "dtype"),
    _often(
        itertools.product(
            (False, True), ("relu", "gelu"), (torch.float32, torch.bfloat16, torch.float64)
        ),
        (True, "gelu", torch.float32),
        (False, "relu", torch.bfloat16),
    ),
)
def test_layers(norm_first: bool, activation: str, dtype: torch.dtype, journal: Journal) -> None:
    layer = _layer(40, 4, norm_first=norm_first, activation=activation).to(dtype)
    _check(layer, torch.randn(3, 7, 40, dtype=dtype))
    assert LAYER not in _extern_ops(journal)


def test_sums_and_norms_are_fused(journal: Journal) -> None:
    with all_packed():
        _check(_layer(), torch.randn(BATCH, 70, 64))
    # Four products with bias or ReLU, and each sum with the norm behind it.
    assert _counted(journal, "kernels") == 6


def test_layers_of_one_kind_are_traced_once(journal: Journal, monkeypatch: Any) -> None:
    module: Any = sys.modules[decompose_encoder_layers.__module__]
    trace = mock.Mock(wraps=module._traced)
    monkeypatch.setattr(module, "_traced", trace)
    _check(nn.TransformerEncoder(_layer(), 5), torch.randn(BATCH, 9, 64))
    assert trace.call_count == 1 and LAYER not in _extern_ops(journal)


@pytest.mark.parametrize("freeze", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_changed_weights_are_seen(freeze: bool, journal: Journal) -> None:
    layer, x = _layer(), torch.randn(BATCH, 30, 64)
    with torch.no_grad(), all_packed():
        compiled = braze.compile(layer, options={"freeze": freeze})
        before = [compiled(x) for _ in range(3)][-1]
        torch.testing.assert_close(before, layer(x))
        layer.linear1.weight.mul_(2)
        layer.norm2.bias.add_(1)
        after = compiled(x)
        torch.testing.assert_close(after, before if freeze else layer(x))
    assert LAYER not in _extern_ops(journal)


def test_changing_sizes(journal: Journal) -> None:
    layer = _layer()
    with torch.no_grad():
        compiled = braze.compile(layer, dynamic=True, fullgraph=True)
        for batch, length in ((2, 9), (3, 12), (5, 80)):
            x = torch.randn(batch, length, 64)
            hidden = torch.arange(length) > torch.arange(2, 2 + batch)[:, None]
            for masks in ({}, {"src_key_padding_mask": hidden}):
                torch.testing.assert_close(compiled(x, **masks), layer(x, **masks))
    assert LAYER not in _extern_ops(journal)
    assert len(journal.records()) == 2


# --- attention alone -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "average", "length"),
    _often(
        itertools.product(("none", "padding", "causal"), (True, False, None), (_FEW, _MANY)),
        ("none", True, _FEW),
        ("padding", False, _FEW),
        ("causal", None, _MANY),
    ),
)
def test_attention(mask: str, average: bool | None, length: int, journal: Journal) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(48, 6, batch_first=True).eval()
    given = {
        "none": {},
        "padding": {"key_padding_mask": _padding(length)},
        "causal": {"attn_mask": _causal(length)},
    }[mask]
    x = torch.randn(BATCH, length, 48)
    weights = {"need_weights": average is not None, "average_attn_weights": bool(average)}
    _check(module, x, x, x, **weights, **given)
    assert ATTENTION not in _extern_ops(journal)


# --- what is left to ATen -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"numerics": "eager"}, {"skip_passes": ("decompose_encoder_layers",)}], ids=str
)
def test_options(options: Any, journal: Journal) -> None:
    layer, x = _layer(), torch.randn(BATCH, 9, 64)
    with torch.no_grad():
        assert torch.equal(braze.compile(layer, options=options)(x), layer(x))
    assert _extern_ops(journal) == [LAYER] and "decompose_encoder_layers" in GRAPH_PASSES


def test_empty_batches(journal: Journal) -> None:
    layer, x = _layer(), torch.randn(0, 9, 64)
    with torch.no_grad():
        found = braze.compile(layer)(x)
        assert found.shape == layer(x).shape and found.stride() == layer(x).stride()
    assert _extern_ops(journal) == [LAYER]


def _call(x: Any, layer: Any, **changed: Any) -> Any:
    attention = layer.self_attn
    given = {
        "embed_dim": 64,
        "num_head": 2,
        "qkv_weight": attention.in_proj_weight,
        "qkv_bias": attention.in_proj_bias,
        "proj_weight": attention.out_proj.weight,
        "proj_bias": attention.out_proj.bias,
        **changed,
    }
    return torch._native_multi_head_attention(x, x, x, **given)[0]


@pytest.mark.parametrize(
    "changed", [{"num_head": 3}, {"qkv_bias": torch.zeros(64)}, {"proj_bias": torch.zeros(65)}]
)
def test_exceptions_are_atens(changed: Any) -> None:
    layer, x = _layer(), torch.randn(BATCH, 9, 64)
    with torch.no_grad():
        with pytest.raises(RuntimeError) as wanted:
            _call(x, layer, **changed)
        with pytest.raises(RuntimeError) as found:
            braze.compile(_call)(x, layer, **changed)
    assert str(found.value).splitlines()[0] == str(wanted.value).splitlines()[0]


def test_transposed_operands(journal: Journal) -> None:
    layer, x = _layer(), torch.randn(9, BATCH, 64).transpose(0, 1)
    _check(layer, x)
    _check(layer, torch.randn(BATCH, 64, 9).transpose(1, 2))
    assert LAYER not in _extern_ops(journal)
