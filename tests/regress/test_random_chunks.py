"""`vmap` in chunks with the same random numbers for all: PyTorch sets its generator's state back
before each chunk, which a graph did not, and drew on."""

from __future__ import annotations

import pytest
import torch

import braze


@pytest.mark.parametrize("randomness", ["same", "different"])
@pytest.mark.parametrize("made_inside", [False, True])
@pytest.mark.parametrize("backend", ["braze", "eager"])
def test_chunks_draw_as_eager_s(randomness: str, made_inside: bool, backend: str) -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn(2)

    outside = torch.vmap(shifted, randomness=randomness, chunk_size=2)

    def program(x: torch.Tensor) -> torch.Tensor:
        made = torch.vmap(shifted, randomness=randomness, chunk_size=2) if made_inside else outside
        result: torch.Tensor = made(x.sin()) * 2
        return result

    compiled, found = braze.compile(program, backend=backend), []
    for function in (program, compiled):
        torch.manual_seed(1)
        found.append([*[function(torch.ones(3, 2)) for _ in range(2)], torch.rand(1)])
    for mine, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, theirs)
