"""The benchmarks' models, made small, over many batch sizes and lengths in a random order: how many
compiles it takes, and whether every call gives what eager gives."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from benchmarks.models import EIGHT, MODELS, Case, Size, build, tensors_in

import braze
from braze.trace import Journal
from tests.shares import due_today

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

# Sizes of each dimension, the first one's place in the order decided by the seed.
WHOLE = os.environ.get("BRAZE_ALL_SIZES") == "1"
BATCHES = (2, 3, 4, 5, 8) if WHOLE else (2, 3, 5)
LENGTHS = (5, 8, 11, 16, 24) if WHOLE else (5, 8, 12)
SIDES = (32, 48, 64, 40, 56) if WHOLE else (32, 48, 40)
IMAGES = ("densenet121", "resnet18", "vision_transformer")


@dataclass(frozen=True)
class Sweep:
    """A model and the calls that are made: (batch, length or side)."""

    name: str
    case: Case
    sizes: tuple[tuple[int, int], ...]

    @property
    def varying(self) -> int:
        """How many dimensions vary."""
        return len([1 for column in zip(*self.sizes) if len(set(column)) > 1])

    def arguments(self, batch: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of one call."""
        generator = torch.Generator().manual_seed(batch * 1000 + length)
        if self.name in IMAGES:
            return (self._image(batch, length, generator),), {}
        if self.name == "unet":
            sample = self._image(batch, length, generator)
            return (), {"sample": sample, "timestep": torch.full((batch,), 10)}
        args, kwargs = self.case.arguments(0)
        limit = self.case.model.config.vocab_size  # type: ignore[union-attr]
        tokens = {
            name: torch.randint(0, limit, (batch, length), generator=generator)
            for name, value in kwargs.items()
            if isinstance(value, torch.Tensor)
        }
        return args, {**kwargs, **tokens}

    def _image(self, batch: int, side: int, generator: torch.Generator) -> torch.Tensor:
        dtype = next(self.case.model.parameters()).dtype
        return torch.randn(batch, 3, side, side, generator=generator, dtype=dtype)


def sweep(name: str, dtype: torch.dtype = torch.float32) -> Sweep:
    """The calls of one model, in a random order. ViT asserts the image size that it was made for,
    and UNet needs sizes that halve evenly."""
    sides = SIDES[:1] if name == "vision_transformer" else SIDES
    lengths = [side // 4 * 2 for side in SIDES] if name == "unet" else sides
    if name not in (*IMAGES, "unet"):
        lengths = LENGTHS
    sizes = list(itertools.product(BATCHES, lengths))
    random.Random(name).shuffle(sizes)
    return Sweep(name, build(MODELS[name], dtype, size=Size.TINY), tuple(sizes))


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    braze.reset()


def frames(journal: Journal) -> list[str]:
    """What was compiled, backwards apart."""
    return [r.function for r in journal.records() if not r.function.endswith("(backward)")]


@pytest.mark.parametrize("dynamic", [None, True], ids=["grows", "at-once"])
@pytest.mark.parametrize("name", due_today(EIGHT, 2))
def test_sizes_of_calls(journal: Journal, name: str, dynamic: bool | None) -> None:
    calls = sweep(name)
    model = calls.case.model
    compiled = braze.compile(model, dynamic=dynamic)
    with torch.no_grad():
        for sizes in calls.sizes:
            args, kwargs = calls.arguments(*sizes)
            check(compiled(*args, **kwargs), model(*args, **kwargs), sizes)
    assert not journal.fallbacks(), journal.fallbacks()
    most = 1 if dynamic else 1 + calls.varying
    assert len(frames(journal)) <= most, frames(journal)


@pytest.mark.parametrize("name", due_today(EIGHT[::-1], 2))
def test_sizes_of_training_steps(journal: Journal, name: str) -> None:
    calls = sweep(
        name, torch.float64
    )  # a batch norm over few values is a matter of luck in float32
    model = calls.case.model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):  # T5's attention
            module.dropout = 0.0
    compiled = braze.compile(model)
    for sizes in calls.sizes[: 9 if WHOLE else 5]:
        args, kwargs = calls.arguments(*sizes)
        expected = gradients(model, model(*args, **kwargs), calls)
        found = gradients(model, compiled(*args, **kwargs), calls)
        largest = max(value.abs().max().item() for value in expected.values())
        for key, value in expected.items():
            message = f"{key} at {sizes}"
            # Some models norm in float32 whatever they are in; some gradients are noise.
            most = max(1e-5 * value.abs().max().item(), 1e-12 * largest)
            torch.testing.assert_close(found[key], value, rtol=1e-4, atol=most, msg=message)
    assert not journal.fallbacks(), journal.fallbacks()
    assert len(frames(journal)) <= 1 + calls.varying, frames(journal)


def gradients(model: torch.nn.Module, output: Any, calls: Sweep) -> dict[str, torch.Tensor]:
    """Every parameter's gradient of the loss."""
    model.zero_grad()
    calls.case.loss(output).backward()
    named = model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def check(found: Any, expected: Any, sizes: tuple[int, int]) -> None:
    """Whether two outputs are close."""
    pairs = zip(tensors_in(found), tensors_in(expected), strict=True)
    for mine, theirs in pairs:
        assert mine.stride() == theirs.stride(), sizes
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4, msg=f"at {sizes}")


@pytest.mark.parametrize("dynamic", [None, True], ids=["grows", "at-once"])
def test_a_growing_cache(journal: Journal, dynamic: bool | None) -> None:
    """64 tokens, one by one: what a decoder keeps of the earlier ones is longer at each call."""
    model = build(MODELS["llama_decode"], size=Size.TINY).model
    compiled = braze.compile(model, dynamic=dynamic)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 100, (2, 64), generator=generator)
    mine = theirs = None
    with torch.no_grad():
        for place in range(64):
            token = tokens[:, place : place + 1]
            expected = model(input_ids=token, past_key_values=theirs, use_cache=True)
            found = compiled(input_ids=token, past_key_values=mine, use_cache=True)
            mine, theirs = found.past_key_values, expected.past_key_values
            check(found, expected, (2, place))
    assert mine.get_seq_length() == 64
    assert not journal.fallbacks(), journal.fallbacks()
    assert len(frames(journal)) <= 3, frames(journal)
