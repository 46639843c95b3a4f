"""Small models of the kinds that are packaged, in a module that a loading process does not have."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Causal attention with a cache of keys and values in buffers."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(1, heads, length, width // heads))
        self.register_buffer("values", torch.zeros(1, heads, length, width // heads))

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        self.keys[:, :, place] = key
        self.values[:, :, place] = value
        visible = torch.arange(self.keys.shape[2])[None, :] <= place[:, None]
        made = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=visible)
        return self.out(made.transpose(1, 2).reshape(batch, length, width))


class Decoder(nn.Module):
    """A GPT of two blocks, its embedding tied to its head: the logits of the last word of a prompt,
    by `prefill`, or of one word more, by `decode`."""

    def __init__(self, words: int = 50, width: int = 32, length: int = 24) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(4)])
        self.attentions = nn.ModuleList([Attention(width, 4, length) for _ in range(2)])
        self.mlps = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                for _ in range(2)
            ]
        )
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(place)
        for number, (attention, mlp) in enumerate(zip(self.attentions, self.mlps)):
            x = x + attention(self.norms[2 * number](x), place)
            x = x + mlp(self.norms[2 * number + 1](x))
        return self.head(x)

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        return self(tokens, torch.arange(tokens.shape[1]))[:, -1]

    def decode(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return self(token[:, None], place)[:, -1]


class Residual(nn.Module):
    """A ResNet of two blocks."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(3)])
        self.convs = nn.ModuleList(
            [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)]
        )
        self.head = nn.Linear(channels, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](self.stem(image)).relu()
        for conv, norm in zip(self.convs, self.norms[1:]):
            x = (x + norm(conv(x))).relu()
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Tied(nn.Module):
    """An embedding whose weight is that of the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(tokens).relu())


class Pairs(nn.Module):
    """Containers in and out, a size, a constant, an input that is a result, and a counter that is
    replaced at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(
        self, x: torch.Tensor, more: dict[str, list[torch.Tensor]], *, scale: float = 1.0
    ) -> dict[str, object]:
        self.calls = self.calls + 1
        y = self.linear(x).relu() * scale + more["a"][0] + torch.tensor([1.0] * 8)
        return {"y": y, "rows": [x.shape[0] * 2, "text"], "x": x, "first": (y[0], self.calls)}
