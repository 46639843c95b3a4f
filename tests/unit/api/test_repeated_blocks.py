"""Models of equal blocks: one that differs in one thing is seen, at first and when it changes; a
block more is no code to the C++ compiler."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

import braze
from tests.recorded import recorded


class _Block(nn.Module):
    bias: torch.Tensor | None

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.register_buffer("bias", torch.randn(width))
        self.scale = 0.5
        self.frozen = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.up(self.norm(x).to(self.up.weight.dtype))
        inner = torch.nn.functional.dropout(inner, 0.5, self.training)
        x = x + self.scale * self.down(torch.tanh(inner)).to(x.dtype)
        return x if self.bias is None else x + self.bias


class _Model(nn.Module):
    def __init__(self, blocks: int, width: int = 8, hidden: int = 12) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(width, hidden) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def _scale(block: _Block, other: _Block) -> None:
    block.scale = 0.25


def _hook(block: _Block, other: _Block) -> None:
    block.register_forward_hook(lambda module, args, result: result * 1.5)


def _hook_before(block: _Block, other: _Block) -> None:
    block.down.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def _dtype(block: _Block, other: _Block) -> None:
    block.up.double()
    block.down.double()


def _shape(block: _Block, other: _Block) -> None:
    block.up, block.down = nn.Linear(8, 20), nn.Linear(20, 8)


def _shared(block: _Block, other: _Block) -> None:
    block.up.weight = other.up.weight


def _no_buffer(block: _Block, other: _Block) -> None:
    block.bias = None


def _no_parameter(block: _Block, other: _Block) -> None:
    block.down.bias = None


def _frozen(block: _Block, other: _Block) -> None:
    block.up.weight.requires_grad_(False)


def _training(block: _Block, other: _Block) -> None:
    block.train()


def _activation(block: _Block, other: _Block) -> None:
    block.forward = lambda x: x + torch.relu(block.up(x)).sum(-1, keepdim=True)  # type: ignore[method-assign]


def _eps(block: _Block, other: _Block) -> None:
    block.norm.eps = 0.3


CHANGES = (
    _scale, _hook, _hook_before, _dtype, _shape, _shared, _no_buffer, _no_parameter, _frozen,
    _training, _activation, _eps,
)  # fmt: skip


def _check(compiled: nn.Module, model: _Model, x: torch.Tensor, trains: bool) -> None:
    """Values, and gradients by parameter, are eager's."""
    found, wanted = [], []
    for callee, into in ((compiled, found), (model, wanted)):
        torch.manual_seed(3)
        model.zero_grad(set_to_none=True)
        given = x.clone().requires_grad_(trains)
        with torch.set_grad_enabled(trains):
            result = callee(given)
        into.append(result.detach())
        if trains:
            result.square().sum().backward()
            into += [given.grad, *(p.grad for p in model.parameters())]
    assert len(found) == len(wanted)
    for mine, eagers in zip(found, wanted, strict=True):
        assert (mine is None) == (eagers is None)
        if mine is not None:
            torch.testing.assert_close(mine, eagers, rtol=2e-4, atol=2e-5)


def _try(change: Callable[[_Block, _Block], None], seed: int) -> None:
    """Change one block of a compiled model of equal ones, then compile another that is so."""
    draws = random.Random(seed)
    torch.manual_seed(seed)
    blocks, trains = draws.randint(4, 6), draws.random() < 0.5
    number, other = draws.sample(range(blocks), 2)
    model, x = _Model(blocks).eval(), torch.randn(3, 8)
    with recorded() as journal:
        compiled = braze.compile(model, fullgraph=True, options={"suppress_errors": False})
    _check(compiled, model, x, trains)
    before = len(journal.records())
    _check(compiled, model, x, trains)
    assert len(journal.records()) == before
    change(model.blocks[number], model.blocks[other])  # type: ignore[arg-type]
    _check(compiled, model, x, trains)
    assert len(journal.records()) > before, "the change was not seen"
    assert not journal.fallbacks(), journal.fallbacks()
    _check(braze.compile(model, fullgraph=True), model, x, trains)


@pytest.mark.parametrize("change", CHANGES[::3])
def test_one_changed_block_is_seen(change: Callable[[_Block, _Block], None]) -> None:
    _try(change, 7)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(36))
def test_any_changed_block_is_seen(seed: int) -> None:
    _try(CHANGES[seed % len(CHANGES)], seed)


def test_a_block_more_is_data_to_the_compiler(caplog: pytest.LogCaptureFixture) -> None:
    def code_of(blocks: int) -> tuple[str, int]:
        with caplog.at_level(logging.INFO, logger="braze.output_code"), torch.no_grad():
            caplog.clear()
            braze.compile(_Model(blocks).eval(), fullgraph=True)(torch.randn(3, 8))
        (text,) = [m for m in map(logging.LogRecord.getMessage, caplog.records) if "bz_entry" in m]
        code = "\n".join(line for line in text.splitlines() if not _DATA.match(line))
        return code, text.count("BZ_ENTRY segment")

    (few, entries), (many, more) = code_of(4), code_of(12)
    assert more == entries + 2 * 8, "two products a block, and an entry behind each"
    assert many == few


# Lines of data, and those of comments.
_DATA = re.compile(r" *//|static const|BZ_ENTRY|const bz_entry|    \{|\};")
