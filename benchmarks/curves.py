"""`python -m benchmarks.curves`: two models trained to convergence, eagerly and compiled.

A convolutional net on 28 x 28 images of ten shapes, and a character-level GPT on generated text,
both made from fixed seeds, each by one compiled step (forward, loss, backward, AdamW, schedule).
Writes curves.png and curves.json; ends with status 1 where the curves part.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias, final

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional

import braze
from braze.trace import JOURNAL

Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]
_SEED = 20240229
_SMOOTH = 20  # steps that a point of a curve is the mean of
_PART = 0.05  # curves are the same if their means differ by less than this share of the start


# --- what is trained ----------------------------------------------------------------------------


class ConvolutionalNet(nn.Module):
    """[n, 1, 28, 28] -> logits of ten classes; batch norm and dropout in between."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(images))
        return logits


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.norm2(x))


class CharacterGPT(nn.Module):
    """[n, length] characters -> [n, length, 27] logits of the next ones."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2, length: int = 64) -> None:
        super().__init__()
        self.characters = nn.Embedding(27, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 27, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.characters(text) + self.places[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


# --- data ---------------------------------------------------------------------------------------


def images(generator: torch.Generator) -> Iterator[Batch]:
    """Ten smooth shapes, shifted, scaled in brightness, and noisy."""
    coarse = torch.randn(10, 1, 5, 5, generator=generator)
    shapes = functional.interpolate(coarse, (28, 28), mode="bicubic")
    while True:
        labels = torch.randint(10, (64,), generator=generator)
        shift = torch.randint(-4, 5, (2,), generator=generator).tolist()
        noise = torch.randn(64, 1, 28, 28, generator=generator)
        bright = 0.5 + torch.rand(64, 1, 1, 1, generator=generator)
        yield shapes[labels].roll(shift, (2, 3)) * bright + 1.5 * noise, labels


def text(generator: torch.Generator) -> Iterator[Batch]:
    """Words of a made-up language, drawn by a chain over 40 words, as letters and spaces."""
    lengths = torch.randint(2, 8, (40,), generator=generator).tolist()
    words = [torch.randint(1, 27, (n,), generator=generator).tolist() for n in lengths]
    following = torch.randint(40, (40, 4), generator=generator).tolist()
    written: list[int] = []
    word = 0
    for choice in torch.randint(4, (20_000,), generator=generator).tolist():
        written += [*words[word], 0]
        word = following[word][choice]
    corpus = torch.tensor(written)
    while True:
        starts = torch.randint(len(corpus) - 65, (32,), generator=generator)
        pieces = torch.stack([corpus[start : start + 65] for start in starts.tolist()])
        yield pieces[:, :-1], pieces[:, 1:]


@final
@dataclass(frozen=True, slots=True)
class Task:
    """What is trained on what. Both curves begin from the same weights."""

    name: str
    title: str
    model: Callable[[], nn.Module]
    batches: Callable[[torch.Generator], Iterator[Batch]]
    steps: int


TASKS = (
    Task("images", "convolutional net, 28 × 28 images", ConvolutionalNet, images, 400),
    Task("text", "character-level GPT, generated text", CharacterGPT, text, 800),
)


# --- training -----------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class Curve:
    """The loss of each step; seconds for all of it."""

    losses: tuple[float, ...]
    seconds: float

    def smooth(self) -> list[float]:
        """Means of neighbouring steps."""
        pieces = torch.tensor(self.losses).split(_SMOOTH)
        return [float(piece.mean()) for piece in pieces]


def train(
    task: Task, compile_: Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]
) -> Curve:
    """The task's model, trained by one function that `compile_` compiles."""
    torch.manual_seed(_SEED)
    model = task.model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, task.steps)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        logits = model(inputs)
        loss = functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = compile_(step)
    batches = task.batches(torch.Generator().manual_seed(_SEED))
    started = time.perf_counter()
    losses = []
    for _ in range(task.steps):
        losses.append(float(run(*next(batches))))
        schedule.step()
    seconds = time.perf_counter() - started
    return Curve(tuple(losses), seconds)


def parting(eager: Curve, compiled: Curve) -> float:
    """The greatest difference of the smoothed curves, as a share of the loss at the start."""
    pairs = zip(eager.smooth(), compiled.smooth(), strict=True)
    return max(abs(a - b) for a, b in pairs) / eager.losses[0]


# --- the picture --------------------------------------------------------------------------------


def draw(curves: dict[str, tuple[Curve, Curve]], path: Path) -> None:
    """Write a PNG: a panel a task, with eager's curve and the compiled one."""
    with matplotlib.rc_context({"font.size": 10}):
        figure = Figure(figsize=(11, 4), layout="constrained")
        for axes, task in zip(figure.subplots(1, len(TASKS)), TASKS):
            eager, compiled = curves[task.name]
            places = [_SMOOTH * (n + 0.5) for n in range(len(eager.smooth()))]
            axes.plot(places, eager.smooth(), color="#8c8c8c", linewidth=5, label="eager")
            axes.plot(places, compiled.smooth(), color="#1f6fb4", linewidth=1.5, label="Braze")
            axes.set_title(task.title, loc="left", fontweight="bold")
            axes.set_xlabel(f"step (each point the mean of {_SMOOTH})")
            axes.set_ylabel("training loss")
            axes.set_ylim(bottom=0)
            axes.grid(color="#dddddd")
            axes.legend(frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, facecolor="white", metadata={"Software": None})


def main(arguments: list[str] | None = None) -> int:
    """Train, print a line a task, write the picture; 1 where curves part."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--out", type=Path, default=Path("results"), help="folder")
    out = options.parse_args(arguments).out
    curves = {}
    for task in TASKS:
        eager = train(task, lambda step: step)
        JOURNAL.clear()
        compiled = train(task, lambda step: braze.compile(step, fullgraph=True))
        curves[task.name] = eager, compiled
        print(
            f"{task.title}: loss {eager.losses[0]:.3f} -> eager {eager.smooth()[-1]:.4f}, "
            f"Braze {compiled.smooth()[-1]:.4f}; the curves differ by at most "
            f"{parting(eager, compiled):.2%} of the start; {len(JOURNAL.records())} compiles; "
            f"{eager.seconds:.1f} s and {compiled.seconds:.1f} s",
            flush=True,
        )
    draw(curves, out / "curves.png")
    written = {name: [asdict(curve) for curve in pair] for name, pair in curves.items()}
    (out / "curves.json").write_text(json.dumps(written, indent=1) + "\n")
    return int(any(parting(*pair) > _PART for pair in curves.values()))


if __name__ == "__main__":
    sys.exit(main())
