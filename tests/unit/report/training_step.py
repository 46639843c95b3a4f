"""A training step of GPT-2's shape (twelve layers, narrow), for the tests of its report: two
lengths, a graph break and a region that runs eagerly."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import braze

WIDTH, HEADS, DEPTH, WORDS = 48, 4, 12, 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.attend(self.norm1(x)).split(WIDTH, 2)
        q, k, v = (t.view(batch, length, HEADS, -1).transpose(1, 2) for t in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


model = GPT2()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


@braze.compile
def step(tokens: Tensor) -> Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


@braze.compile
def log(loss: Tensor) -> Tensor:
    smoothed = loss * 0.9
    print(f"loss {smoothed.item():.3f}")
    return smoothed.sqrt()


if __name__ == "__main__":
    for length in (33, 33, 33, 17):
        log(step(torch.randint(WORDS, (2, length))))
